"""Stages writes and applies them under the memory checker.

Contract cases drive `StagedWriteTensor` itself, one or several at once; wired ones the
states of requests that own such tensors, as the model runner adds and ends requests.
"""

import importlib.util

from fuzz.edits import SourceEdit
from fuzz.runtime import Control, Runtime
from fuzz.targets._checked import findings_of
from fuzz.targets._escaped import tree_raised
from fuzz.targets._staged_rows import (
    BUFFERS,
    Owner,
    Rows,
    host_buffers,
    own_rows,
    requests_of,
    tensors_of,
)
from invariants.memory.launches import Log, checked_launches
from invariants.memory.regions import Memory
from invariants.model import Raised
from invariants.staged_writes import KERNEL, Mismatch, Observation
from invariants.staged_writes_case import Batch, Case

RUNTIME = Runtime()
CONTROLS = (
    Control(
        name="staged_writes: one element too many",
        origin="contract",
        edits=(
            SourceEdit(
                modules=(BUFFERS,),
                function=KERNEL,
                old="mask = block < content_len",
                new="mask = block <= content_len",
            ),
        ),
        invariant="STAGED-WRITE-OWNED",
        cases=60,
    ),
)


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    if importlib.util.find_spec("vllm.v1.worker.gpu") is None:
        return "no vllm/v1/worker/gpu"
    return None


def run(case: Case) -> Observation:
    """Stage and apply the batches; the first fault ends the case."""
    memory = Memory()
    rows = Rows(case=case)
    owner = None
    log = Log(memory=memory)
    raised: Raised | None = None
    mismatch = None
    with host_buffers(pinned=case.pinned):
        try:
            owner = (requests_of if case.origin == "wired" else tensors_of)(
                case, memory
            )
            for number, batch in enumerate(case.batches):
                log = _applied(case, owner, rows, memory, number)
                mismatch = _mismatch(owner, rows, number, batch)
                if mismatch or log.findings or log.undecided:
                    break
        except Exception as error:  # noqa: BLE001 - an observation too
            raised = tree_raised(error)
    names = list(owner.tensors)[: len(case.columns)] if owner else []
    return Observation(
        raised=raised,
        findings=findings_of(log),
        undecided=log.undecided,
        mismatch=mismatch,
        top_rows=tuple(rows.tops.get(name, -1) for name in names),
        reused=owner.reused() if owner else False,
    )


def _applied(case: Case, owner: Owner, rows: Rows, memory: Memory, number: int) -> Log:
    """Stage one batch and end it as the case says."""
    ending = case.batches[number].ending
    staged = owner.stage(number)
    rows.expect(staged, cleared=ending == "cleared")
    own_rows(memory, owner, staged if ending != "cleared" else [])
    if ending == "cleared":
        owner.clear()
    with checked_launches(memory, values=case.dtype == "float32") as log:
        owner.apply()
        if ending == "applied twice":
            owner.apply()
    return log


def _mismatch(owner: Owner, rows: Rows, number: int, batch: Batch) -> Mismatch | None:
    """What is wrong after a batch; what was cleared changes no request."""
    wrong = rows.first_wrong(number)
    if wrong is not None or batch.ending == "cleared":
        return wrong
    for name, row, got, expected in owner.besides():
        if got != expected:
            return Mismatch(
                batch=number,
                tensor=name,
                row=row,
                column=0,
                got=str(got),
                expected=str(expected),
            )
    return None
