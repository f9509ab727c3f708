"""Launches of kernels that compute addresses as numbers, from a table's entries."""

# Kernels are read by Triton's compiler, which annotations would tell something; their
# upper-case parameters are compiled in.
# ruff: noqa: ANN001, ANN202, N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl

from invariants.memory.findings import Launch
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory, Ownership

PAGE = 8


@triton.jit
def _copy_bytes(sources, targets, sizes, B: tl.constexpr):
    source = tl.load(sources + tl.program_id(0))
    target = tl.load(targets + tl.program_id(0))
    size = tl.load(sizes + tl.program_id(0))
    for i in range(0, size, B):
        at = i + tl.arange(0, B)
        data = tl.load((source + at).to(tl.pointer_type(tl.uint8)), mask=at < size)
        tl.store((target + at).to(tl.pointer_type(tl.uint8)), data, mask=at < size)


@triton.jit
def _page_address(bases, pages, stride, out, WIDE: tl.constexpr):
    page = tl.load(pages)
    offset = page.to(tl.int64) * stride if WIDE else page * stride
    address = tl.load(bases) + offset
    tl.store(out, tl.load(address.to(tl.pointer_type(tl.int16))))


def copied(*, size: int) -> tuple[Launch, list[int]]:
    """Bytes of the first state's page 0 go to its page 2; a page holds two states."""
    pool = torch.arange(3 * PAGE, dtype=torch.int16).view(3, PAGE)
    first, second = pool[:, :3], pool[:, 3:7]
    memory = Memory()
    for name, view in (("first", first), ("second", second)):
        memory.own(view, Ownership.of(view, readable=[0], writable=[2]))
        memory.table(view, name=name)
    memory.own(second, Ownership.of(second, readable=[], writable=[]))
    memory.table(second, name="second")
    with checked_launches(memory) as log:
        _copy_bytes[(1,)](
            torch.tensor([first[0].data_ptr()]),
            torch.tensor([first[2].data_ptr()]),
            torch.tensor([size], dtype=torch.int32),
            B=4,
        )
    return log.launches[0], pool[2].tolist()


def many_addresses() -> list[int]:
    """As many addresses as bytes, in one operation."""
    size = 1 << 16
    source = torch.arange(size // 2, dtype=torch.int16)
    target = torch.zeros_like(source)
    memory = Memory()
    memory.table(source, name="source")
    memory.table(target, name="target")
    with checked_launches(memory) as log:
        _copy_bytes[(1,)](
            torch.tensor([source.data_ptr()]),
            torch.tensor([target.data_ptr()]),
            torch.tensor([size], dtype=torch.int32),
            B=size,
        )
    assert not log.findings
    assert not log.undecided
    return target.tolist()


def far_page(*, page: int, wide: bool) -> Launch:
    """A page's first element, in a pool that has no memory."""
    stride = 1 << 20
    pool = torch.empty_strided((page + 1, 4), (stride // 2, 1), dtype=torch.int16)
    memory = Memory()
    memory.table(pool, name="pool")
    with checked_launches(memory) as log:
        _page_address[(1,)](
            torch.tensor([pool.data_ptr()]),
            torch.tensor([page], dtype=torch.int32),
            stride,
            torch.zeros(1, dtype=torch.int16),
            WIDE=wide,
        )
    return log.launches[0]
