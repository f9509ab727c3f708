"""Launches attention kernels under the memory checker: nothing dies.

In address mode no key or value is loaded, so that the pool needs no contents; tables,
lengths and scratch are real tensors. A share of the cases computes floats too.
"""

from fuzz.runtime import Control, Runtime
from fuzz.targets._checked import findings_of
from fuzz.targets._escaped import tree_raised
from fuzz.targets._paged_cache import (
    Contents,
    draw_contents,
    fill_cache,
    worst_mismatch,
)
from fuzz.targets._verify_batch import Batch, make_batch
from fuzz.targets._verify_launch import Launch, attention_absent, opened_launch
from fuzz.targets._wired_attention import NotInThisReleaseError
from invariants.attention_memory import Observation, compared
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory, Ownership
from invariants.scheduling import NULL_BLOCK
from invariants.verify_attention import LaunchObservation
from invariants.verify_case import Case

RUNTIME = Runtime()
CONTROLS = (
    Control(
        name="attention_memory: block id times stride in 32 bits",
        origin="contract",
        edits=(),
        invariant="ATTN-EXACT",
        cases=20,
    ),
)
# A script without this project shows an address that is wrong by what it does to its
# process: target, law and ending there, and the tensors here whose pages do not exist
# but where the batch owns them.
STAND_IN = (
    "verify_attention",
    "VERIFY-ADDRESS",
    "signal 11",
    ("key_cache_ptr", "value_cache_ptr", "k_scale_cache_ptr", "v_scale_cache_ptr"),
)


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    return attention_absent()


def run(case: Case) -> Observation:
    """Launch the case's kernels once, and judge every access."""
    contents = draw_contents(case)
    batch = make_batch(case, contents.query)
    try:
        with opened_launch(case, batch) as (pool, launch):
            if compared(case):
                fill_cache(
                    pool, launch.written, contents, null_block=_null_block_read(case)
                )
            return _observed(case, contents, batch, launch)
    except NotInThisReleaseError as reason:
        return Observation(launch=LaunchObservation(skipped=str(reason)))


def _null_block_read(case: Case) -> bool:
    """Whether the tables name the null block, which may then be read."""
    return any(NULL_BLOCK in row for row in case.layout.block_ids[0])


def _known(case: Case, batch: Batch, launch: Launch) -> Memory:
    """Who owns the pool's blocks, what is input, and what is scratch."""
    memory = Memory()
    owned = set(case.layout.owned_ids())
    if _null_block_read(case):
        owned.add(NULL_BLOCK)
    states = dict.fromkeys(case.layout.freed, "freed") | {NULL_BLOCK: "the null block"}
    for view in launch.views.tensors():
        memory.own(view, Ownership.of(view, readable=owned, states=states))
    inputs = (batch.query, batch.cu_query, batch.used, batch.table, batch.sinks)
    for tensor in inputs:
        if tensor is not None:
            memory.read_only(tensor)
    for tensor in launch.scratch:
        memory.scratch(tensor)
    return memory


def _observed(
    case: Case, contents: Contents, batch: Batch, launch: Launch
) -> Observation:
    memory = _known(case, batch, launch)
    with checked_launches(memory, values=compared(case)) as log:
        try:
            launch.run()
        except Exception as error:  # noqa: BLE001 - an observation too
            return Observation(launch=LaunchObservation(raised=tree_raised(error)))
    found = findings_of(log)
    mismatch = None
    if compared(case) and not found and not log.undecided:
        mismatch = worst_mismatch(case, contents, batch.out, batch.sinks, tf32=True)
    scale = launch.views.key_scale
    return Observation(
        launch=LaunchObservation(
            split=any(each.kernel == "reduce_segments" for each in log.launches),
            block_stride=launch.views.key.stride(0),
            head_stride=launch.views.key.stride(2),
            scale_stride=0 if scale is None else scale.stride(0),
            scale_head_stride=0 if scale is None else scale.stride(2),
            element_bytes=launch.views.key.element_size(),
            mismatch=mismatch,
        ),
        findings=found,
        undecided=log.undecided,
    )
