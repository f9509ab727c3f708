"""Correct launches of the kernels that make block tables, windows and slot mappings."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch

from fuzz.targets._cuda_view import as_cuda
from fuzz.targets._real_launch import (
    STALE,
    RealLaunch,
    accepted,
    blocks_at_top,
    imported,
    ints,
    longs,
    read_only,
    starts_of,
    table_of,
)
from invariants.memory.regions import Memory

_V1 = ("vllm.v1.worker.block_table",)
_V2 = ("vllm.v1.worker.gpu.block_table",)
_BUFFERS = "vllm.v1.worker.gpu.buffer_utils"
_ALIGNED = ("vllm.v1.attention.backends.utils",)
_STEP = ("vllm.v1.spec_decode.utils",)
_CPU = torch.device("cpu")
_NO_UVA = "its buffers are plain CPU tensors, not pinned memory that the GPU reads"


def _positions(queries: Sequence[int], contexts: Sequence[int]) -> torch.Tensor:
    return longs(
        position
        for query, context in zip(queries, contexts, strict=True)
        for position in range(context - query, context)
    )


def _slot_mapping(
    memory: Memory,
    *,
    block_size: int,
    queries: Sequence[int] = (1500, 64, 1, 4),
    contexts: Sequence[int] = (1500, 1900, 700, 45),
    ranks: int = 1,
    pool_blocks: int = 140_000,
) -> None:
    """V1: persistent rows; the buffer's rest is padding."""
    table = imported(*_V1)
    rows = blocks_at_top(
        [-(-context // ranks) for context in contexts],
        block_size=block_size,
        pool_blocks=pool_blocks,
    )
    columns = 8192 // (block_size * ranks) + 1
    made = table.BlockTable(
        **accepted(
            table.BlockTable.__init__,
            block_size=block_size,
            kernel_block_size=block_size,
            max_num_reqs=len(rows) + 2,
            max_num_blocks_per_req=columns,
            max_num_batched_tokens=2048,
            pin_memory=False,
            device=_CPU,
            cp_kv_cache_interleave_size=1,
        )
    )
    made.dcp_world_size, made.dcp_rank = ranks, ranks - 1
    for at, row in enumerate(rows):
        made.add_row(row, at)
    made.commit_block_table(len(rows))
    starts, positions = starts_of(queries), _positions(queries, contexts)
    read_only(memory, made.block_table.gpu, starts, positions)
    made.slot_mapping.gpu.fill_(STALE)
    made.compute_slot_mapping(len(rows), starts, positions)
    _see_slots(
        made.slot_mapping.gpu,
        rows,
        queries=queries,
        contexts=contexts,
        block_size=block_size,
        ranks=ranks,
    )


def _see_slots(
    found: torch.Tensor,
    rows: Sequence[Sequence[int]],
    *,
    queries: Sequence[int],
    contexts: Sequence[int],
    block_size: int,
    ranks: int,
) -> None:
    """See that slots are those of the last rank, which has every so-manieth token.

    Raises:
        AssertionError: A slot is another one, or the buffer's rest is no padding.
    """
    slots = [-1] * len(found)
    tokens = [
        (row, position)
        for row, query, context in zip(rows, queries, contexts, strict=True)
        for position in range(context - query, context)
    ]
    for token, (row, position) in enumerate(tokens):
        if position % ranks == ranks - 1:
            column, at = divmod(position // ranks, block_size)
            slots[token] = row[column] * block_size + at
    for token, (one, other) in enumerate(zip(found.tolist(), slots, strict=True)):
        if one != other:
            raise AssertionError(f"token {token} has slot {one}, not {other}")


class _PlainBuffer:
    """What 0.20.1's `UvaBuffer` offers, without pinned memory."""

    def __init__(self, size: int | Sequence[int], dtype: torch.dtype) -> None:
        self.cpu = torch.zeros(size, dtype=dtype)
        self.np = self.cpu.numpy()
        self.uva = self.cpu


@contextmanager
def plain_buffers() -> Iterator[None]:
    """V2's buffers in plain memory, as where nothing can be pinned."""
    buffers = imported(_BUFFERS)
    if hasattr(buffers, "NonUvaBuffer"):
        with mock.patch.object(buffers, "is_uva_available", return_value=False):
            yield
        return

    def uploaded(values: Any, dtype: torch.dtype, *_: Any, **__: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    with (
        mock.patch.object(buffers, "UvaBuffer", _PlainBuffer),
        mock.patch.object(buffers, "async_tensor_h2d", uploaded),
    ):
        yield


def _v2_tables(
    memory: Memory,
    *,
    block_sizes: Sequence[int],
    queries: Sequence[int],
    contexts: Sequence[int],
    reach: Sequence[int] = (),
    ranks: int = 1,
    slots: Sequence[bool] = (),
    longest: int = 4096,
) -> None:
    """V2: append in two steps, gather into a padded batch, map the slots."""
    module = imported(*_V2)
    states, padded = 8, len(queries) + 3
    columns = [-(-longest // (size * ranks)) for size in block_sizes]
    with plain_buffers():
        tables = module.BlockTables(
            **accepted(
                module.BlockTables.__init__,
                block_sizes=list(block_sizes),
                max_num_reqs=states,
                max_num_batched_tokens=2048,
                max_model_len=longest,
                max_num_blocks_per_group=columns,
                device=_CPU,
                cp_size=ranks,
                cp_rank=ranks - 1,
                sliding_window_reach=list(reach) or None,
                slot_mapping_enabled=list(slots) or None,
            )
        )
        for each in (*tables.block_tables, *tables.input_block_tables):
            memory.table(getattr(each, "gpu", each), name="block table")
        order = [5, 0, 7, 2][: len(queries)]
        rows = [
            blocks_at_top(
                [-(-context // ranks) for context in contexts],
                block_size=size,
                pool_blocks=140_000,
            )
            for size in block_sizes
        ]
        for overwrite, part in ((True, slice(0, 1)), (False, slice(1, None))):
            for at, state in enumerate(order):
                new = tuple(group[at][part] for group in rows)
                tables.append_block_ids(state, new, overwrite=overwrite)
            tables.apply_staged_writes()
    mapping, starts = ints(order), starts_of(queries)
    positions = _positions(queries, contexts)
    computed = torch.zeros(states, dtype=torch.int32)
    computed[mapping.long()] = ints(
        context - query for query, context in zip(queries, contexts, strict=True)
    )
    read_only(memory, mapping, starts, positions, computed)
    for each in tables.input_block_tables:
        each.fill_(STALE)
    gathered = tables.gather_block_tables(
        mapping,
        padded,
        **accepted(
            tables.gather_block_tables, num_computed_tokens=computed if reach else None
        ),
    )
    _see_rows(tables, rows, gathered, list(reach), computed[mapping.long()].tolist())
    tables.slot_mappings.fill_(STALE)
    tables.compute_slot_mappings(mapping, starts, positions, sum(queries))
    for at, (group, size) in enumerate(zip(rows, block_sizes, strict=True)):
        found = tables.slot_mappings[at]
        if hasattr(tables, "slot_mapping_enabled") and slots and not slots[at]:
            if bool((found != -1).any()):
                raise AssertionError("a group without slots has some")
            continue
        _see_slots(
            found,
            group,
            queries=queries,
            contexts=contexts,
            block_size=size,
            ranks=ranks,
        )


def _see_rows(
    tables: Any,
    rows: Sequence[Sequence[Sequence[int]]],
    gathered: Sequence[torch.Tensor],
    reach: Sequence[int],
    computed: Sequence[int],
) -> None:
    """See that gathered rows are those of the requests, and no other one is touched.

    Raises:
        AssertionError: A row is another one, or more was written.
    """
    masking = hasattr(tables, "has_sliding_window_groups")
    for group, (blocks, batch) in enumerate(zip(rows, gathered, strict=True)):
        table = tables.input_block_tables[group].tolist()
        for at, expected in enumerate(blocks):
            # Blocks wholly below the window of the first new token are no longer read.
            out = 0
            if masking and reach and reach[group]:
                size = tables.block_sizes[group]
                out = max(computed[at] - reach[group], 0) // size
            row = [0] * out + list(expected[out:])
            if table[at] != row + [STALE] * (len(table[at]) - len(row)):
                raise AssertionError(f"row {at} of group {group} is {table[at]}")
        rest = [entry for row in table[len(batch) :] for entry in row]
        # 0.20.1 zeroes padding rows as far as the first group's are wide: a fault of
        # its own, which the launch with the wider group first shows.
        spills = not masking and len(table[0]) < len(tables.input_block_tables[0][0])
        if not spills and any(entry != STALE for entry in rest):
            raise AssertionError(f"more than {len(batch)} rows are written")


def _window(memory: Memory, *, requests: int, drafts: int, block_size: int) -> None:
    """`mamba_get_block_table_tensor`, aligned; rows without tokens are padding."""
    module = imported(*_ALIGNED)
    interface = imported("vllm.v1.kv_cache_interface")
    contexts = [0, 1, block_size, block_size + 1, 7 * block_size][:requests]
    rows = blocks_at_top(
        [context + drafts * block_size for context in contexts],
        block_size=block_size,
        pool_blocks=4_000,
    )
    table = as_cuda(table_of(rows, columns=max(map(len, rows))))
    lengths = as_cuda(ints(contexts))
    read_only(memory, table, lengths)
    spec = interface.MambaSpec(
        block_size=block_size,
        shapes=((1,),),
        dtypes=(torch.float32,),
        mamba_cache_mode="align",
        num_speculative_blocks=drafts,
    )
    window = module.mamba_get_block_table_tensor(table, lengths, spec, "align")
    for row, context, made in zip(rows, contexts, window.tolist(), strict=True):
        first = max(context - 1, 0) // block_size
        if made[: len(row) - first] != row[first : first + drafts + 1]:
            raise AssertionError(f"{made} is no window of {row} at {first}")


def _draft_step(memory: Memory, *, block_size: int) -> None:
    """One step of a drafter; one request is at the longest length, two are padding."""
    module = imported(*_STEP)
    longest, batch, padded = 4096, 4, 6
    positions = longs([0, block_size - 1, 700, longest - 1])
    rows = blocks_at_top([longest] * batch, block_size=block_size, pool_blocks=140_000)
    table = table_of(rows, columns=len(rows[0]))
    lengths = (positions + 1).to(torch.int32)
    read_only(memory, positions, table)
    slots = torch.full((padded,), STALE, dtype=torch.int64)
    module.eagle_step_update_slot_mapping_and_metadata(
        positions,
        table,
        lengths,
        block_size,
        longest,
        torch.empty(batch, dtype=torch.int64),
        slots,
        padded,
    )
    if slots[-3:].tolist() != [-1] * 3:
        raise AssertionError(f"no padding after the longest request: {slots.tolist()}")


_MAPPED = (("_compute_slot_mapping_kernel", "ComputeSlotMappingKernel.kernel"),)
_BATCH: dict[str, Any] = {
    "queries": (1500, 64, 1, 4),
    "contexts": (1500, 1900, 700, 45),
}
_GATHERED = (
    ("_apply_write_kernel",),
    ("_gather_block_tables_kernel",),
    ("_compute_slot_mappings_kernel",),
)


def _v1(name: str, **given: Any) -> RealLaunch:
    return RealLaunch(
        name=f"slot mapping, {name}",
        kernels=_MAPPED,
        module=_V1,
        run=partial(_slot_mapping, **given),
    )


def _v2(name: str, *faults: tuple[str, str, str], **given: Any) -> RealLaunch:
    return RealLaunch(
        name=f"V2 tables, {name}",
        kernels=_GATHERED,
        module=_V2,
        run=partial(_v2_tables, **{**_BATCH, **given}),
        note=_NO_UVA,
        faults=faults,
    )


def _aligned(name: str, **given: Any) -> RealLaunch:
    return RealLaunch(
        name=f"aligned window, {name}",
        kernels=(("_mamba_align_block_table_kernel",),),
        module=_ALIGNED,
        run=partial(_window, requests=5, **given),
        needs="_mamba_align_block_table_kernel",
        note="tensors say that they are on a CUDA device",
    )


def _drafter(block_size: int) -> RealLaunch:
    return RealLaunch(
        name=f"a drafter's step, block {block_size}",
        kernels=(("eagle_step_slot_mapping_metadata_kernel",),),
        module=_STEP,
        run=partial(_draft_step, block_size=block_size),
    )


LAUNCHES: Sequence[RealLaunch] = (
    _v1("block 16", block_size=16),
    _v1("block 544", block_size=544),
    _v1("block 1056, three ranks", block_size=1056, ranks=3),
    _v1("no tokens", block_size=16, queries=(), contexts=()),
    _v2("one group", block_sizes=(16,)),
    _v2("three groups", block_sizes=(1056, 544, 16)),
    # Padding rows of every group are zeroed as far as the first group is wide.
    _v2(
        "two groups, the wider first",
        ("0.20.1", "block table", "element 64 of 64"),
        block_sizes=(16, 544),
    ),
    _v2("two groups, one with a window", block_sizes=(544, 16), reach=(0, 128)),
    _v2("two groups, two ranks", block_sizes=(544, 16), ranks=2),
    _v2(
        "a long request",
        block_sizes=(16,),
        queries=(4,),
        contexts=(20_000,),
        longest=32_768,
    ),
    _v2("a group without slots", block_sizes=(544, 16), slots=(False, True)),
    _aligned("no drafts", drafts=0, block_size=544),
    _aligned("five drafts", drafts=5, block_size=1056),
    _drafter(16),
    _drafter(544),
)
