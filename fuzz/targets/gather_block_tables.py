"""Fills V2's state rows and gathers a step's block tables, in the memory checker.

Wired cases have the groups that the release's planning makes of layers with unequal
pages; their number and blocks are checked against it. Buffers are plain memory here.
"""

from functools import cache

import torch

from fuzz.edits import SourceEdit
from fuzz.runtime import Control, Runtime
from fuzz.targets._block_tables import V2, NotInThisReleaseError, V2Filled
from fuzz.targets._checked import findings_of
from fuzz.targets._escaped import tree_raised
from fuzz.targets._kv_cache_specs import planning_module
from fuzz.targets._real_launch import STALE, accepted, ints
from invariants.gather_block_tables import Case, Observation
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Ownership
from invariants.table_case import Group

RUNTIME = Runtime()
CONTROLS = (
    Control(
        name="gather_block_tables: the last block of a row stays behind",
        origin="wired",
        edits=(
            SourceEdit(
                modules=(V2,),
                function="_gather_block_tables_kernel",
                old="num_blocks = tl.load(group_num_blocks_ptr + req_idx)",
                new="num_blocks = tl.load(group_num_blocks_ptr + req_idx) - 1",
            ),
        ),
        invariant="TABLES-ROWS",
        cases=60,
    ),
)
# Elements of a head in the layers of the group with the largest blocks.
_HEAD_SIZE = 64


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    from vllm.triton_utils import HAS_TRITON

    return None if HAS_TRITON else "vLLM takes Triton for absent"


def run(case: Case) -> Observation:
    """Fill the state rows and gather the step's."""
    try:
        if case.origin == "wired" and not _is_planned(case.tables.groups):
            return Observation(skipped="this release plans other groups")
        return _gathered(case)
    except NotInThisReleaseError as reason:
        return Observation(skipped=str(reason))
    except Exception as error:  # noqa: BLE001 - an observation too
        return Observation(raised=tree_raised(error))


def _gathered(case: Case) -> Observation:
    tables, batch = case.tables, len(case.states)
    filled = V2Filled(tables, case.states, tokens=1, origin=case.origin)
    made = filled.tables
    memory = filled.known(readable=case.states)
    for each in made.input_block_tables:
        each.fill_(STALE)
        rows = range(batch + case.padded)
        memory.own(each, Ownership.of(each, readable=(), writable=rows))
        memory.table(each, name="table of the step")
    mapping = ints(case.states)
    computed = torch.zeros(tables.rows, dtype=torch.int32)
    for state, at in zip(case.states, tables.staying, strict=True):
        computed[state] = tables.requests[at].computed
    for each in (mapping, computed, made.block_sizes_tensor, made.num_blocks.gpu):
        memory.read_only(each)
    given = accepted(made.gather_block_tables, num_computed_tokens=computed)
    with checked_launches(memory) as log:
        result = made.gather_block_tables(mapping, batch + case.padded, **given)
    if [len(each) for each in result] != [batch + case.padded] * len(tables.groups):
        raise RuntimeError(f"tables of {[len(each) for each in result]} rows")
    logs = (*filled.logs, log)
    return Observation(
        findings=tuple(each for log in logs for each in findings_of(log)),
        undecided=tuple(each for log in logs for each in log.undecided),
        masks=bool(given) and tables.ranks == 1,
        stale=STALE,
        gathered=tuple(
            tuple(map(tuple, each.tolist())) for each in made.input_block_tables
        ),
    )


@cache
def _is_planned(groups: tuple[Group, ...]) -> bool:
    """Whether the release makes these groups, in this order, of one layer each.

    All layers start with the smallest block; the less a token of a layer needs, the
    larger the block that gives it a page as large as the others'.
    """
    from vllm.v1 import kv_cache_interface as interface

    planning = planning_module()
    assert planning is not None
    sizes = [each.block_size for each in groups]
    specs = {}
    for number, group in enumerate(groups):
        common = {
            "block_size": min(sizes),
            "num_kv_heads": 1,
            "head_size": _HEAD_SIZE * max(sizes) // group.block_size,
            "dtype": torch.bfloat16,
        }
        specs[f"layer.{number}"] = (
            interface.SlidingWindowSpec(**common, sliding_window=group.reach + 1)
            if group.reach
            else interface.FullAttentionSpec(**common)
        )
    unified = planning.unify_kv_cache_spec_page_size(specs)
    made = planning._get_kv_cache_groups_uniform_page_size(unified)  # noqa: SLF001
    names = [each.layer_names for each in made]
    found = [each.kv_cache_spec.block_size for each in made]
    return names == [[name] for name in specs] and found == sizes
