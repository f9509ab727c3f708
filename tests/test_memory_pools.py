"""Virtual pools: huge, sparse, with addresses of their own, gone at the end."""

from pathlib import Path

import pytest
import torch

from invariants.memory.pools import poison, virtual_pool

TIB = 1 << 40


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024


def mapped(address: int) -> bool:
    lines = Path("/proc/self/maps").read_text("utf-8").splitlines()
    ranges = [line.split()[0] for line in lines]
    bounds = [[int(end, 16) for end in each.split("-")] for each in ranges]
    return any(low <= address < high for low, high in bounds)


def test_terabytes_cost_only_what_is_written() -> None:
    before = resident_bytes()
    with virtual_pool(8 * TIB) as pool:
        pages = pool.view(torch.bfloat16).view(-1, 1024, 4, 256)
        poison(pages[-1])
        assert bool(pages[-1].isnan().all())
        assert pages[-1].data_ptr() - pool.data_ptr() > 7 * TIB
        assert 0 < resident_bytes() - before < 16 << 20
    assert resident_bytes() - before < 4 << 20


def test_two_pools_share_no_address_and_both_end() -> None:
    with virtual_pool(TIB) as one, virtual_pool(TIB) as other:
        assert abs(one.data_ptr() - other.data_ptr()) >= TIB
        address = one.data_ptr()
        assert mapped(address)
    assert not mapped(address)


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.int32, -1), (torch.uint8, 255), (torch.int64, -1)]
)
def test_integers_are_poisoned_with_what_is_no_id(
    dtype: torch.dtype, expected: int
) -> None:
    with virtual_pool(4096) as pool:
        view = pool.view(dtype)
        poison(view[:8])
        assert view[:9].tolist() == [expected] * 8 + [0]


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"), virtual_pool(0):
        pass
    with pytest.raises(OSError, match="without reserve"), virtual_pool(1 << 50):
        pass
