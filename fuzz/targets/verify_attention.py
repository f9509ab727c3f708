"""Runs speculative-verify attention kernels on a paged cache, in Triton's interpreter.

Contract cases call `unified_attention` (or `SpecDecodeAttention`, where a tree has it)
on tensors of any geometry; wired ones are made by the release. Integers wrap here as on
a GPU (`_interpreter`); specialisation to 1 and multiples of 16 changes no value. Only
owned blocks have addresses (`_sparse_pool`): a wrapped one ends the process.
"""

import torch

from fuzz.runtime import Control, Runtime
from fuzz.targets._escaped import tree_raised
from fuzz.targets._interpreter import InterpreterGap, corrected_interpreter
from fuzz.targets._paged_cache import (
    Contents,
    draw_contents,
    fill_cache,
    worst_mismatch,
)
from fuzz.targets._sparse_pool import SparsePool
from fuzz.targets._verify_batch import Batch, bits_of, make_batch
from fuzz.targets._verify_launch import (
    Launch,
    attention_absent,
    control_launch,
    opened_launch,
)
from fuzz.targets._wired_attention import NotInThisReleaseError
from invariants.scheduling import NULL_BLOCK
from invariants.verify_attention import Observation
from invariants.verify_case import Case

RUNTIME = Runtime(
    triton="interpret", isolated=True, timeout_s=60.0, memory_bytes=3 << 30
)
CONTROLS = (
    Control(
        name="verify_attention: block id times stride in 32 bits",
        origin="contract",
        edits=(),
        invariant="VERIFY-ADDRESS",
        cases=10,
    ),
)


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    return attention_absent()


def run(case: Case) -> Observation:
    """Launch the case's kernel once, in a process that may die of it."""
    contents = draw_contents(case)
    batch = make_batch(case, contents.query)
    try:
        with corrected_interpreter(), opened_launch(case, batch) as (pool, launch):
            return _observe(case, contents, batch, pool, launch)
    except NotInThisReleaseError as reason:
        return Observation(skipped=str(reason))


def _observe(
    case: Case, contents: Contents, batch: Batch, pool: SparsePool, launch: Launch
) -> Observation:
    null_block = any(NULL_BLOCK in row for row in case.layout.block_ids[0])
    fill_cache(pool, launch.written, contents, null_block=null_block)
    before = {name: each.clone() for name, each in batch.inputs().items()}
    cache_before = pool.checksum()
    try:
        split = launch.run()
    except Exception as error:  # noqa: BLE001 - any exception is an observation
        cause = error.__cause__ or error
        if isinstance(cause, InterpreterGap):
            return Observation(skipped=f"the interpreter gets {cause} wrong")
        return Observation(raised=tree_raised(error))
    changed = [
        name
        for name, each in batch.inputs().items()
        if not torch.equal(bits_of(each), bits_of(before[name]))
    ]
    if pool.checksum() != cache_before:
        changed.append("the KV cache")
    scale = launch.views.key_scale
    twin_differs = None
    if case.kernel == "control_fixed" and not case.may_wrap:
        fixed = batch.out.clone()
        control_launch(case, batch, launch.views, wide_ids=False)
        twin_differs = int((bits_of(fixed) != bits_of(batch.out)).sum())
    return Observation(
        split=split,
        block_stride=launch.views.key.stride(0),
        head_stride=launch.views.key.stride(2),
        scale_stride=0 if scale is None else scale.stride(0),
        scale_head_stride=0 if scale is None else scale.stride(2),
        element_bytes=launch.views.key.element_size(),
        mismatch=worst_mismatch(case, contents, batch.out, batch.sinks),
        changed=tuple(changed),
        twin_differs=twin_differs,
    )
