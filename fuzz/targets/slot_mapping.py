"""Maps a step's tokens to slots with the tables of both runners, in the memory checker.

V1: rows join, leave, move and change places in `MultiGroupBlockTable`, whose kernel
maps one group at a time. V2: `BlockTables` maps all groups at once, through tables of
addresses; its buffers are plain memory here.
"""

from collections.abc import Iterable
from typing import Any

import torch

from fuzz.edits import SourceEdit
from fuzz.runtime import Control, Runtime
from fuzz.targets._block_tables import (
    V2,
    NotInThisReleaseError,
    V2Filled,
    parts,
    starts,
    v1_tables,
)
from fuzz.targets._checked import findings_of
from fuzz.targets._escaped import tree_raised
from fuzz.targets._real_launch import STALE, ints, longs
from invariants.memory.launches import Log, checked_launches
from invariants.memory.regions import Memory, Ownership
from invariants.slot_mapping import Case, Observation
from invariants.table_case import condensed, rows_of

RUNTIME = Runtime()
CONTROLS = (
    Control(
        name="slot_mapping: each token gets the next one's slot",
        origin="wired",
        edits=(
            SourceEdit(
                modules=(V2,),
                function="_compute_slot_mappings_kernel",
                old="positions = tl.load(pos + offset, mask=offset < end_idx, other=0)",
                new="positions = tl.load(pos + offset, mask=offset < end_idx, other=0)"
                " + 1",
            ),
        ),
        invariant="SLOT-MAP-VALUES",
        cases=900,
    ),
)
# Where a row that no request has stands in V2's mapping of rows to state rows.
NO_REQUEST = -1


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    from vllm.triton_utils import HAS_TRITON

    return None if HAS_TRITON else "vLLM takes Triton for absent"


def run(case: Case) -> Observation:
    """Fill the tables and map the step's tokens."""
    try:
        logs, slots = _v1(case) if case.runner == "v1" else _v2(case)
    except NotInThisReleaseError as reason:
        return Observation(skipped=str(reason))
    except Exception as error:  # noqa: BLE001 - an observation too
        return Observation(raised=tree_raised(error))
    return Observation(
        findings=tuple(each for log in logs for each in findings_of(log)),
        undecided=tuple(each for log in logs for each in log.undecided),
        slots=slots,
    )


Mapped = tuple[tuple[Log, ...], tuple[tuple[int, ...] | None, ...]]


def _v1(case: Case) -> Mapped:
    tables = case.tables
    made = v1_tables(
        tables,
        prefill_ranks=case.prefill_ranks,
        tokens=case.capacity,
        origin=case.origin,
    )
    _fill_v1(case, made)
    batch = len(case.batch)
    query_starts, positions = starts(case.queries), longs(case.positions)
    memory = Memory()
    for each in made.block_tables:
        rows = each.block_table.gpu
        memory.own(rows, Ownership.of(rows, readable=range(batch)))
        _read_only(memory, (rows,))
        each.slot_mapping.gpu.fill_(STALE)
    _read_only(memory, (query_starts, positions))
    with checked_launches(memory) as log:
        made.compute_slot_mapping(batch, query_starts, positions)
    # What a group without slots computes, nobody reads.
    slots = tuple(
        tuple(each.slot_mapping.gpu.tolist()) if group.slots else None
        for each, group in zip(made.block_tables, tables.groups, strict=True)
    )
    return (log,), slots


def _fill_v1(case: Case, made: Any) -> None:
    """The calls of V1's input batch: add, clear, move, append, swap, commit."""
    tables = case.tables
    rows = rows_of(tables)
    for at in range(len(tables.requests)):
        made.add_row(parts(tables, rows, at, joins=True), at)
    for at, request in enumerate(tables.requests):
        if request.leaves:
            made.clear_row(at)
    kept = condensed(tables)
    for row, at in enumerate(kept):
        if at != row:
            made.move_row(at, row)
    for row, at in enumerate(kept):
        made.append_row(parts(tables, rows, at, joins=False), row)
    for one, other in case.swaps:
        made.swap_row(one, other)
    made.commit_block_table(len(kept))


def _v2(case: Case) -> Mapped:
    filled = V2Filled(
        case.tables, case.states, tokens=case.capacity, origin=case.origin
    )
    made = filled.tables
    if case.dummies and not hasattr(made, "dcp_sharded"):
        raise NotInThisReleaseError("this release's V2 has no rows of no request")
    mapping = ints((*case.states, *(NO_REQUEST for _ in case.dummies)))
    query_starts = starts(case.queries)
    positions = longs((*case.positions, *(STALE for _ in range(case.padded))))
    memory = filled.known(readable=case.states)
    _read_only(memory, (mapping, query_starts, positions, made.block_sizes_tensor))
    made.slot_mappings.fill_(STALE)
    tokens = sum(case.queries)
    with checked_launches(memory) as log:
        mapped = made.compute_slot_mappings(
            mapping, query_starts, positions, tokens + case.padded
        )
    if mapped.shape != (len(case.tables.groups), tokens + case.padded):
        raise RuntimeError(f"slots of shape {tuple(mapped.shape)}")
    slots = tuple(map(tuple, made.slot_mappings.tolist()))
    return (*filled.logs, log), slots


def _read_only(memory: Memory, tensors: Iterable[torch.Tensor]) -> None:
    for each in tensors:
        memory.read_only(each)
