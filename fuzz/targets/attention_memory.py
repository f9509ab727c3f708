"""Launches attention kernels under the memory checker: nothing dies, nothing is read.

In address mode no key or value is loaded, so that the pool needs no contents; tables,
lengths and scratch are real tensors.
"""

import torch

from fuzz.runtime import Control, Runtime
from fuzz.targets._checked import findings_of
from fuzz.targets._escaped import tree_raised
from fuzz.targets._verify_batch import Batch, make_batch
from fuzz.targets._verify_launch import Launch, attention_absent, opened_launch
from fuzz.targets._wired_attention import NotInThisReleaseError
from invariants.attention_memory import Observation
from invariants.memory.launches import Log, checked_launches
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
# A script without this project shows such a fault by what it does to its process:
# target, law and ending there. No page exists but those that the batch owns.
STAND_IN = ("verify_attention", "VERIFY-ADDRESS", "signal 11")


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    return attention_absent()


def run(case: Case) -> Observation:
    """Launch the case's kernels once, and judge every access."""
    batch = make_batch(case, _query(case))
    try:
        with opened_launch(case, batch) as (_, launch):
            memory = _known(case, batch, launch)
            with checked_launches(memory) as log:
                try:
                    launch.run()
                except Exception as error:  # noqa: BLE001 - an observation too
                    raised = LaunchObservation(raised=tree_raised(error))
                    return Observation(launch=raised)
            return _observed(launch, log)
    except NotInThisReleaseError as reason:
        return Observation(launch=LaunchObservation(skipped=str(reason)))


def _query(case: Case) -> torch.Tensor:
    shape = (sum(case.query_lens), case.shape.heads, case.shape.head_size)
    return torch.zeros(shape, dtype=getattr(torch, case.dtype))


def _known(case: Case, batch: Batch, launch: Launch) -> Memory:
    """Who owns the pool's blocks, what is input, and what is scratch."""
    memory = Memory()
    owned = set(case.layout.owned_ids())
    if any(NULL_BLOCK in row for row in case.layout.block_ids[0]):
        owned.add(NULL_BLOCK)
    states = dict.fromkeys(case.layout.freed, "freed") | {NULL_BLOCK: "the null block"}
    for view in launch.views.tensors():
        memory.own(view, Ownership.of(view, readable=owned, states=states))
    for tensor in (batch.query, batch.cu_query, batch.used, batch.table):
        memory.read_only(tensor)
    for tensor in launch.scratch:
        memory.scratch(tensor)
    return memory


def _observed(launch: Launch, log: Log) -> Observation:
    scale = launch.views.key_scale
    return Observation(
        launch=LaunchObservation(
            split=any(each.kernel == "reduce_segments" for each in log.launches),
            block_stride=launch.views.key.stride(0),
            head_stride=launch.views.key.stride(2),
            scale_stride=0 if scale is None else scale.stride(0),
            scale_head_stride=0 if scale is None else scale.stride(2),
            element_bytes=launch.views.key.element_size(),
        ),
        findings=findings_of(log),
        undecided=log.undecided,
    )
