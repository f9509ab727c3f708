"""Launches of planted kernels, at a threshold and beside it; run in the child."""

from __future__ import annotations

from typing import Any

import torch

from invariants.memory.findings import Launch
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory, Ownership


def launched(
    kernel: str,
    grid: tuple[int, ...],
    *args: Any,
    memory: Memory | None = None,
    **kw: Any,
) -> Launch:
    """Launch one of the planted kernels; give what the checker says of it."""
    from tests import memory_kernels

    with checked_launches(memory) as log:
        getattr(memory_kernels, kernel)[grid](*args, **kw)
    (launch,) = log.launches
    return launch


def ints(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def outside(first: int) -> Launch:
    """A row of 8 elements out of the middle of a storage, read from an offset."""
    source = torch.arange(32, dtype=torch.int32)[8:16]
    return launched("read_at", (1,), ints(4), source, first, N=4)


def before_a_view(first: int) -> Launch:
    """The same with a storage offset, so that what is before it is another view."""
    source = ints(4, 8)[2]
    return launched("read_at", (1,), ints(4), source, first, N=4)


def between_rows(column: int) -> Launch:
    """The left half of a matrix: what is right of it belongs to a sibling view."""
    source = ints(4, 16)[:, :8]
    return launched("copy_row", (4,), ints(4, 4), source[:, column:], 16, N=4)


def past_a_storage(rows: int) -> Launch:
    """Four rows of 8 elements, read by as many programs as asked for."""
    return launched("copy_row", (rows,), ints(rows, 8), ints(4, 8), 8, N=8)


def pages(table: list[int], *, write: bool = False) -> Launch:
    """A pool of 8 pages, of which a request may read 3 and 5, and write 5."""
    pool = ints(8, 16)
    memory = Memory()
    owned = Ownership.of(
        pool, readable=[3, 5], writable=[5], states={0: "null", 2: "freed"}
    )
    memory.own(pool, owned)
    blocks = torch.tensor(table, dtype=torch.int32)
    grid = (len(table),)
    if write:
        return launched("write_page", grid, pool, blocks, 16, N=16, memory=memory)
    out = ints(len(table), 16)
    return launched("read_page", grid, out, pool, blocks, 16, N=16, memory=memory)


def virtual_pages(block: int, *, stride: int, wide: bool = False) -> Launch:
    """A pool as large as its page ids need, which takes no memory."""
    pool = torch.empty((block + 1, stride), dtype=torch.int8, device="meta")
    blocks = torch.tensor([1, block], dtype=torch.int32)
    kernel = "read_page_wide" if wide else "read_page"
    out = torch.empty((2, 16), dtype=torch.int8)
    return launched(kernel, (2,), out, pool, blocks, stride, N=16)


def mask_of_a_product(block: int, stride: int) -> Launch:
    """A product that decides which lanes are read, and not where."""
    args = (ints(8), ints(8), block, stride, 2**31 - 1)
    return launched("wrapped_mask", (1,), *args, N=8)


def branch_of_a_product(block: int) -> Launch:
    """A product that decides whether a store runs."""
    return launched("guarded_by_a_wrap", (1,), ints(1), block, 2**20, 5)


def scratch(filled: int) -> tuple[Launch, ...]:
    """Scratch of 8 elements, of which a launch before has filled some."""
    from tests import memory_kernels

    rest, out = ints(8), ints(8)
    memory = Memory()
    memory.scratch(rest)
    with checked_launches(memory) as log:
        memory_kernels.fill[(1,)](rest, filled, N=8)
        memory_kernels.read_scratch[(1,)](out, rest, N=8)
    return tuple(log.launches)


def stored_twice(step: int) -> Launch:
    """Three programs that store to one element, each a step more than the last."""
    return launched("store_in_one_place", (3,), ints(1), 40, step)


def read_only(*, protected: bool) -> Launch:
    """A store to what may be an input."""
    out = ints(4)
    memory = Memory()
    if protected:
        memory.read_only(out)
    return launched("store_number", (3,), out, 9, memory=memory)


def table_of_addresses(count: int, *, known: bool = True, shift: int = 0) -> Launch:
    """Two tensors of 8 elements, written through a table of their addresses."""
    targets = [ints(8), ints(8)]
    memory = Memory()
    if known:
        for at, each in enumerate(targets):
            memory.table(each, name=f"target {at}")
    addresses = torch.tensor([each.data_ptr() + shift for each in targets])
    launch = launched("through_table", (2,), addresses, count, N=16, memory=memory)
    if not launch.findings:
        assert [each.tolist() for each in targets] == [
            [at if at < count else 0 for at in range(8)]
        ] * 2
    return launch
