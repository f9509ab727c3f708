"""Launches that look faulty and are right, or fail elsewhere; run in the child."""

from __future__ import annotations

from typing import Any

import torch

from invariants.memory.findings import Launch
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory
from tests.memory_faults import ints, launched

Launches = tuple[Launch, ...]


def padding() -> list[int]:
    """A window of block ids padded with -1, whose lanes are masked off."""
    out, pool = ints(8), torch.arange(64, dtype=torch.int32)
    table = torch.tensor([3, 0, -1, -1, 2, -1, -1, -1], dtype=torch.int32)
    return right(launched("padded_window", (1,), out, table, pool, 6, 8, N=8), out)


def floor_division() -> list[int]:
    out, source = ints(8), torch.arange(10, 14, dtype=torch.int32)
    return right(launched("floor_division", (1,), out, source, 0, 3, N=8), out)


def right(launch: Launch, out: torch.Tensor) -> list[int]:
    """What a launch stored, of which nothing is said."""
    assert launch.findings == (), launch.findings[0].message
    assert launch.undecided == (), launch.undecided[0]
    return [int(each) for each in out.flatten()]


def siblings() -> list[int]:
    """Key and value halves of one storage, in blocks that alternate."""
    pool = torch.arange(4 * 2 * 8, dtype=torch.int32).reshape(4, 2, 8)
    out = ints(4, 8)
    keys, values = pool.unbind(1)
    right(launched("copy_row", (4,), out, keys, 16, N=8), out)
    return right(launched("copy_row", (4,), out, values, 16, N=8), out)


def random_numbers() -> list[int]:
    out, source = ints(16), torch.zeros(10, dtype=torch.int32)
    launch = launched("random_index", (1,), out, source, 2**31 - 5, 10, N=16)
    assert launch.undecided == (), launch.undecided[0]
    return right(launch, out)


def hashes() -> list[int]:
    out, source = ints(16), torch.arange(16, dtype=torch.int32)
    launch = launched("multiply_shift", (1,), out, source, 77, SHIFT=28, N=16)
    found = right(launch, out)
    assert found == [((77 + at) * 2654435769 % 2**32) >> 28 for at in range(16)]
    return found


def comes_back() -> list[int]:
    out, source = ints(4), torch.arange(4, dtype=torch.int32)
    far = 2**31 - 2
    return right(launched("wraps_and_comes_back", (1,), out, source, far, N=4), out)


def only_a_value() -> list[int]:
    out = ints(2)
    return right(launched("wraps_into_a_value", (2,), out, 2**20, 2**13), out)


def expanded() -> list[int]:
    """Every row is the same one: the stride is 0."""
    row = torch.arange(8, dtype=torch.int32).expand(4, 8)
    out = ints(4, 8)
    return right(launched("copy_row", (4,), out, row, row.stride(0), N=8), out)


def storage_offset() -> list[int]:
    source = torch.arange(32, dtype=torch.int32)[20:]
    out = ints(4)
    return right(launched("read_at", (1,), out, source, 8, N=4), out)


def no_programs() -> Launch:
    """A grid without programs, of which a program would leave its tensor."""
    return launched("fill", (0,), ints(2), 8, N=8)


def empty_tensor(count: int) -> Launch:
    """A tensor without elements, under a mask that lets nobody read."""
    args = (ints(8), ints(0), count)
    return launched("with_heuristic", (1,), *args)


def bools() -> list[int]:
    flags = torch.tensor([True, False, True, True])
    out = ints(4)
    return right(launched("of_bools", (1,), out, flags, N=4), out)


def annotated() -> Launches:
    """An i64 parameter makes the product wide, whatever its value; 1 stays a value."""
    out, source = ints(4), torch.empty(2**12, dtype=torch.int8, device="meta")
    return (
        launched("unspecialized", (1,), out, source, 1, 16, N=4),
        launched("unspecialized", (1,), out, source, 2**12, 2**20, N=4),
    )


def tuples() -> list[int]:
    """Tuples of tensors and of numbers, one of which is 1."""
    first, second = ints(4), ints(4)
    source = torch.arange(16, dtype=torch.int32)
    launch = launched("of_tuples", (1,), (first, second), source, (1, 9), N=4)
    return right(launch, torch.cat([first, second]))


def past_a_tuple() -> Launch:
    outs = (ints(4), ints(3))
    return launched("of_tuples", (1,), outs, ints(16), (1, 9), N=4)


def keywords() -> list[int]:
    out, source = ints(4), torch.arange(8, dtype=torch.int32)
    launch = launched("read_at", (1,), N=4, first=4, source=source, out=out)
    return right(launch, out)


def heuristic() -> list[int]:
    out, source = ints(8), torch.arange(1, 6, dtype=torch.int32)
    return right(launched("with_heuristic", (1,), out, source, 5), out)


def tuned(size: int, configuration: int = 0) -> Launches:
    """An autotuned kernel with a grid that asks the configuration."""
    from tests import memory_kernels

    out, source = ints(size), torch.arange(size, dtype=torch.int32)
    with checked_launches(configuration=configuration) as log:
        memory_kernels.autotuned[lambda meta: (-(-10 // meta["N"]),)](out, source, 10)
    return tuple(log.launches)


def calls() -> list[int]:
    """A device function that returns early, called in a loop."""
    starts, source = ints(3) + 2, torch.arange(10, 20, dtype=torch.int32)
    out = ints(1)
    return right(launched("nested_calls", (1,), out, starts, source, 4), out)


def other_strides() -> Launches:
    """One kernel, launched on tensors of two layouts."""
    from tests import memory_kernels

    memory = Memory()
    wide = torch.arange(64, dtype=torch.int32).reshape(4, 16)[:, :8]
    out = ints(4, 8)
    with checked_launches(memory) as log:
        memory_kernels.copy_row[(4,)](out, wide, 16, N=8)
        assert bool((out == wide).all())
        memory_kernels.copy_row[(4,)](out, wide.contiguous(), 8, N=8)
        memory_kernels.copy_row[(4,)](out, wide.contiguous(), 16, N=8)
    return tuple(log.launches)


def trips() -> list[int]:
    """Two stores in a loop, of which one overwrites what the other wrote before."""
    out = ints(5)
    return right(launched("overlapping_trips", (1,), out, N=1), out)


def searched() -> list[int]:
    """Four programs, of which three have something to do."""
    out, source = ints(4, 8), torch.arange(100, 120, dtype=torch.int32)
    starts = torch.tensor([0, 2, 2], dtype=torch.int32)
    return right(launched("searched", (4,), out, starts, source, 3, N=8), out)


def unknown_mask() -> Launch:
    """An atomic whose mask nobody computes: what it leaves is not known either."""
    args: tuple[Any, ...] = (ints(8), ints(4), torch.ones(4))
    return launched("counted", (1,), *args, N=4)


def tallied() -> list[int]:
    """Atomics at addresses that lanes which are masked off never read."""
    counts, tokens = ints(4), torch.tensor([3, 0, 3], dtype=torch.int32)
    return right(launched("tallied", (2,), counts, tokens, 3, N=8), counts)


def unknown_address() -> Launch:
    return launched("by_float", (1,), ints(4), ints(4), torch.zeros(4), N=4)


def shift(amount: int, size: int) -> Launch:
    source = torch.empty(size, dtype=torch.int8, device="meta")
    return launched("shifted", (1,), ints(4), source, amount, N=4)


def same_in_the_end() -> list[int]:
    out = ints(1)
    return right(launched("same_in_the_end", (3,), out), out)


def bytes_of_either() -> list[int]:
    """Lanes that point into tensors of other element sizes."""
    out, words = ints(4), torch.tensor([1 + 2 * 256 + 3 * 65536], dtype=torch.int32)
    small = torch.arange(10, 14, dtype=torch.int8)
    return right(launched("bytes_of_either", (1,), out, words, small, N=4), out)


def pointer_of_a_branch() -> list[int]:
    """Programs that point into tensors of other element sizes."""
    out, words = ints(2, 2), torch.tensor([1 + 2 * 256 + 3 * 65536], dtype=torch.int32)
    small = torch.arange(10, 14, dtype=torch.int8)
    return right(launched("pointer_of_a_branch", (2,), out, words, small, N=2), out)


def unsigned_loop(first: int, last: int) -> list[int]:
    out = ints(1)
    return right(launched("unsigned_loop", (1,), out, first, last), out)


def virtual_store() -> Launch:
    """A store to memory that only has addresses."""
    out = torch.empty(8, dtype=torch.int32, device="meta")
    return launched("fill", (1,), out, 9, N=16)


def floats_over_integers() -> Launches:
    """Integers read beside, and at, where floats were stored, and after new ones."""
    from tests import memory_kernels as kernels

    held, out, source = ints(8), ints(4), ints(4)
    with checked_launches() as log:
        kernels.store_floats[(1,)](held.view(torch.float32), N=4)
        kernels.by_index[(1,)](out, source, held[4:], N=4)
        kernels.by_index[(1,)](out, source, held, N=4)
        kernels.store_number[(4,)](held, 0)
        kernels.by_index[(1,)](out, source, held, N=4)
    return tuple(log.launches)


def single() -> list[int]:
    """One lane of a tensor is the address; in value mode one is the value."""
    from tests import memory_kernels as kernels

    out, source = ints(4), torch.tensor([2], dtype=torch.int32)
    scales = torch.tensor([3.5])
    with checked_launches(Memory(), values=True) as log:
        kernels.single[(1,)](out, source, scales)
    return right(log.launches[0], out)
