"""Runs V2's sampling states on a step's logits, under the memory checker.

Contract cases apply one part to rows at any distance; wired ones go through the
sampler, which applies all. Staged writes are another target's, and land without their
kernel here.
"""

import importlib.util

import numpy as np
import torch
from numpy.typing import NDArray

from fuzz.edits import SourceEdit
from fuzz.runtime import Control, Runtime
from fuzz.targets._checked import findings_of
from fuzz.targets._escaped import tree_raised
from fuzz.targets._sampling_step import (
    Served,
    packed,
    parts_of,
    plain_memory,
)
from invariants.memory.findings import Finding, Undecided
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory
from invariants.model import Raised
from invariants.penalised_logits import RULES, counts_of, expected_row
from invariants.penalties import Mismatch, Observation
from invariants.penalties_case import Case

_Floats = NDArray[np.float64]

RUNTIME = Runtime()
CONTROLS = (
    Control(
        name="penalties: the draft before is not counted",
        origin="contract",
        edits=(
            SourceEdit(
                modules=("vllm.v1.worker.gpu.sample.penalties",),
                function="_penalties_kernel",
                old="start_idx + prev_pos + 1",
                new="start_idx + prev_pos",
            ),
        ),
        invariant="PENALTIES-LOGITS",
        cases=600,
    ),
)


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    if importlib.util.find_spec("vllm.v1.worker.gpu") is None:
        return "no vllm/v1/worker/gpu"
    if importlib.util.find_spec("vllm.v1.worker.gpu.sample.penalties") is None:
        return "no vllm/v1/worker/gpu/sample/penalties.py"
    return None


def run(case: Case) -> Observation:
    """Serve the ended requests, then those of the step, and apply the part."""
    memory = Memory()
    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()
    raised: Raised | None = None
    mismatch: Mismatch | None = None
    served = None
    ended: set[int] = set()
    with plain_memory():
        try:
            served = Served(case)
            with checked_launches(memory, values=True) as log:
                _serve(served, memory, ended=True)
                names = [f"ended {at}" for at in range(len(case.ended))]
                ended = {served.slot(name) for name in names}
                for name in names:
                    served.requests.remove_request(name)
                _serve(served, memory, ended=False)
                mismatch = _counted_wrong(served)
                step = served.step()
                raw = step.logits.numpy().astype(np.float64)
                for each in (step.mapping, step.local, step.inputs, step.positions):
                    memory.read_only(each)
                made = parts_of(served, step)[case.part]()
            findings, undecided = findings_of(log), log.undecided
            mismatch = mismatch or _changed_wrong(case, raw, made)
        except Exception as error:  # noqa: BLE001 - an observation too
            raised = tree_raised(error)
    count = range(len(case.requests))
    slots = tuple(served.slot(str(at)) for at in count) if served and not raised else ()
    return Observation(
        raised=raised,
        findings=findings,
        undecided=undecided,
        mismatch=mismatch,
        slots=slots,
        reused=bool(ended & set(slots)),
    )


def _serve(served: Served, memory: Memory, *, ended: bool) -> None:
    """Add requests, and what was sampled for them."""
    case = served.case
    named = {
        f"ended {at}" if ended else str(at): (one, case.tokens(at, ended=ended))
        for at, one in enumerate(case.ended if ended else case.requests)
    }
    if not named:
        return
    for name, (one, tokens) in named.items():
        served.add(name, one, tokens)
    served.own(memory, list(named))
    served.apply()
    served.sampled(named)


def _counted_wrong(served: Served) -> Mismatch | None:
    """The first token that is marked or counted otherwise than the request has it."""
    case, state = served.case, served.state("penalties")
    for request, one in enumerate(case.requests):
        if not one.penalised:
            # Nobody reads them.
            continue
        slot = served.slot(str(request))
        prompt = set(case.tokens(request)[: one.prompt])
        counts = np.zeros(case.vocabulary, dtype=np.int32)
        for token, count in counts_of(case, request).items():
            counts[token] = count
        mask = state.prompt_bin_mask[slot].numpy()
        for name, got, expected in (
            ("prompt_bin_mask", mask, packed(prompt, len(mask))),
            ("output_bin_counts", state.output_bin_counts[slot].numpy(), counts),
        ):
            wrong = np.flatnonzero(got != expected)
            if len(wrong):
                token = int(wrong[0])
                return Mismatch(
                    kind="counts",
                    where=request,
                    token=token,
                    got=str(int(got[token])),
                    expected=str(int(expected[token])),
                    rule=name,
                )
    return None


def _changed_wrong(case: Case, raw: _Floats, made: torch.Tensor) -> Mismatch | None:
    """In the first row that is wrong, a logit that is not what the parameters say."""
    for row in range(len(case.rows)):
        expected = expected_row(case, row, raw[row])
        got = made[row].numpy().astype(np.float64)
        with np.errstate(invalid="ignore"):
            near = np.abs(got - expected.logits) <= expected.allowed
        banned = np.isneginf(got)
        right = near | (banned & (np.isneginf(expected.logits) | expected.either))
        wrong = np.flatnonzero(~right)
        if len(wrong):
            order = [RULES.index(expected.rules[each]) for each in wrong]
            token = int(wrong[int(np.argmin(order))])
            return Mismatch(
                kind="logits",
                where=row,
                token=token,
                got=str(got[token]),
                expected=str(expected.logits[token]),
                rule=expected.rules[token],
            )
    return None
