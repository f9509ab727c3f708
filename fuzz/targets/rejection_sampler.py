"""Runs rejection sampling of both runners under the memory checker.

Contract cases call `rejection_sample`; V1's wired ones are `RejectionSampler.forward`
with the runner's own metadata, V2's have the runner's own index mappings. Steps with so
many logits that only addresses are computed begin at `rejection_sample` in V1, for
copies of all logits come before it.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from fuzz.edits import SourceEdit
from fuzz.runtime import Control, Runtime
from fuzz.targets._chance import Chance
from fuzz.targets._checked import findings_of
from fuzz.targets._escaped import tree_raised
from fuzz.targets._real_launch import accepted, ints, longs, starts_of, virtual
from fuzz.targets._recorded import recorded
from fuzz.targets._rejection_inputs import Inputs, in_states, made, steps_of
from fuzz.targets._rejection_metadata import sampling_metadata, verify_metadata
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory
from invariants.rejection_case import PLACEHOLDER, Case
from invariants.rejection_rows import first_wrong
from invariants.rejection_sampler import Mismatch, Observation, Stray

_V1 = "vllm.v1.sample.rejection_sampler"
_V2 = "vllm.v1.worker.gpu.spec_decode"
_V2_FUNCTIONS = (
    (f"{_V2}.rejection_sampler_utils", "rejection_sample"),
    (f"{_V2}.probabilistic_rejection_sampler_utils", "probabilistic_rejection_sample"),
)
# More than one value for requests, the second of which is replaced.
_VALUES = (11, 0, 13, 0, 17)
_REPLACED_BY = 1
_NONE_GIVEN = "this release's runner never gives drafters' probabilities"

Rows = list[list[int]]
Sampler = Callable[[], Rows]

RUNTIME = Runtime()
CONTROLS = (
    Control(
        name="rejection_sampler: the next request's drafts",
        origin="contract",
        edits=(
            SourceEdit(
                modules=(_V1,),
                function="rejection_greedy_sample_kernel",
                old="tl.load(draft_token_ids_ptr + start_idx + pos)",
                new="tl.load(draft_token_ids_ptr + end_idx + pos)",
            ),
        ),
        invariant="REJECTION-OWNED",
        cases=150,
    ),
)


def absent() -> str | None:
    """Why this tree has no such path, None when it has."""
    try:
        import_module(_V1)
    except ModuleNotFoundError as error:
        return f"no module {error.name}"
    return None


def run(case: Case) -> Observation:
    """Sample the case's step once, and judge every access."""
    memory = Memory()
    if case.runner == "v2":
        return _run_v2(case, memory)
    if case.far:
        return _run_far(case, memory)
    inputs = made(case)
    module = import_module(_V1)
    recovered: list[Any] = []
    sample = (_forward if case.origin == "wired" else _direct)(case, inputs, memory)
    if isinstance(sample, str):
        return Observation(skipped=sample)
    chance = Chance(memory, uniform=inputs.uniform, exponential=inputs.exponential)
    expanded = ""
    with (
        recorded(module, "sample_recovered_tokens", recovered),
        checked_launches(memory, values=True) as log,
    ):
        try:
            with chance:
                rows = sample()
                expanded = _expanded(case, memory)
        except Exception as error:  # noqa: BLE001 - an observation too
            return Observation(raised=tree_raised(error))
    found = findings_of(log)
    if found or log.undecided:
        return Observation(findings=found, undecided=log.undecided)
    drawn = [int(token) for each in recovered for token in each]
    return _compared(case, inputs, rows, recovered=drawn, expanded=expanded)


def _compared(
    case: Case,
    inputs: Inputs,
    rows: Rows,
    *,
    recovered: list[int],
    expanded: str = "",
) -> Observation:
    """What is wrong with sampled and recovered tokens."""
    v1 = case.runner == "v1"
    strays = tuple(
        Stray(where=where, token=wrong[0], count=len(wrong))
        for where, tokens, least in (
            ("sampled", [token for row in rows for token in row], PLACEHOLDER),
            ("recovered", recovered, 0),
        )
        if (wrong := [token for token in tokens if not least <= token < case.vocab])
    )
    mismatches: list[Mismatch] = []
    steps = steps_of(case, inputs, randomness=v1)
    for request, (row, (*drafts, last)) in enumerate(zip(rows, steps, strict=True)):
        greedy = case.greedy[request]
        takes_best = v1 or greedy
        bonus = last.best if takes_best else last.logits > -torch.inf
        mismatch = first_wrong(
            row,
            drafts,
            bonus,
            request=request,
            greedy=greedy,
            together=case.block,
        )
        if mismatch is not None:
            mismatches.append(mismatch)
    kept = (tuple(token for token in row if token != PLACEHOLDER) for row in rows)
    return Observation(
        rows=tuple(kept),
        mismatches=tuple(mismatches),
        strays=strays,
        expanded=expanded,
    )


def _expanded(case: Case, memory: Memory) -> str:
    """Give each draft its request's value; say what is wrong."""
    module = import_module(_V1)
    requests = len(case.counts)
    given = (_VALUES * requests)[:requests]
    values, ends = ints(given), starts_of(case.counts)[1:].clone()
    memory.read_only(values)
    memory.read_only(ends)
    got = module.expand_batch_to_tokens(
        values, ends, case.tokens, replace_from=0, replace_to=_REPLACED_BY
    )
    expected = [
        value or _REPLACED_BY
        for value, count in zip(given, case.counts, strict=True)
        for _ in range(count)
    ]
    return "" if got.tolist() == expected else f"{got.tolist()}, expected {expected}"


# --- V1 -------------------------------------------------------------------------------


def _direct(case: Case, inputs: Inputs, memory: Memory) -> Sampler:
    """`rejection_sample` on the rows of the drafts."""
    module = import_module(_V1)
    rows = inputs.rows_of_drafts()
    logits = inputs.logits[rows]
    drafter = inputs.drafter.softmax(-1) if case.drafted else None
    ends = [end - 1 for end in inputs.starts[1:]]
    bonus = inputs.logits[ends].argmax(-1, keepdim=True).to(torch.int32)
    return partial(_v1_rows, module, case, memory, (logits, drafter, bonus), inputs)


def _v1_rows(
    module: Any,
    case: Case,
    memory: Memory,
    tensors: tuple[torch.Tensor, torch.Tensor | None, torch.Tensor],
    inputs: Inputs | None,
) -> Rows:
    logits, drafter, bonus = tensors
    drafts, ends = ints(case.drafts), starts_of(case.counts)[1:].clone()
    for each in (drafts, ends, logits, bonus, *([] if drafter is None else [drafter])):
        memory.read_only(each)
    all_greedy = all(case.greedy)
    temperature = None
    if not all_greedy:
        temperature = torch.tensor([0.0 if each else 1.0 for each in case.greedy])
        if inputs is not None:
            temperature = inputs.temperature
    out: Rows = module.rejection_sample(
        drafts,
        list(case.counts),
        case.steps,
        ends,
        drafter,
        logits,
        bonus,
        SimpleNamespace(
            all_greedy=all_greedy,
            all_random=not any(case.greedy),
            generators={},
            temperature=temperature,
        ),
    ).tolist()
    return out


def _forward(case: Case, inputs: Inputs, memory: Memory) -> Sampler | str:
    """The sampler's own `forward`, with metadata as the runner makes them."""
    module = import_module(_V1)
    metadata = verify_metadata(case.counts, case.drafts)
    if case.drafted and _none_given():
        return _NONE_GIVEN
    drafter = inputs.drafter.softmax(-1) if case.drafted else None
    for each in (metadata.draft_token_ids, metadata.cu_num_draft_tokens):
        memory.read_only(each)

    class BestToken:
        """Takes the best token of the bonus rows that it is given."""

        logprobs_mode = "raw_logprobs"

        def __call__(self, *, logits: torch.Tensor, **_: object) -> SimpleNamespace:
            best = logits.argmax(-1, keepdim=True).to(torch.int32)
            return SimpleNamespace(sampled_token_ids=best, logprobs_tensors=None)

    sampler = module.RejectionSampler(BestToken())
    sampling = sampling_metadata(case.greedy, inputs.temperature)

    def sample() -> Rows:
        out = sampler.forward(metadata, drafter, inputs.logits.clone(), sampling)
        rows: Rows = out.sampled_token_ids.tolist()
        return rows

    return sample


def _none_given() -> bool:
    """Whether the runner passes None for drafters' probabilities, as 0.20.1's does."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    return not hasattr(GPUModelRunner, "_get_spec_decode_draft_probs")


def _run_far(case: Case, memory: Memory) -> Observation:
    """V1 with logits that are addresses only.

    Recovered tokens are drawn for the first draft of each request: a program for every
    draft would cost minutes, and none depends on another.
    """
    module = import_module(_V1)
    if case.origin == "wired" and case.drafted and _none_given():
        return Observation(skipped=_NONE_GIVEN)
    shape = (case.tokens, case.vocab)
    tensors = (
        virtual(shape, torch.float32),
        virtual(shape, torch.float32) if case.drafted else None,
        torch.zeros(len(case.counts), 1, dtype=torch.int32),
    )
    chance = Chance(
        memory,
        uniform=torch.full((case.tokens,), 0.5, dtype=torch.float64),
        exponential=torch.ones(1, 1),
    )
    recover = module.sample_recovered_tokens

    def first_drafts(_most: int, *rest: Any) -> torch.Tensor:
        return torch.zeros_like(recover(1, *rest))

    with (
        mock.patch.object(module, "sample_recovered_tokens", first_drafts),
        checked_launches(memory) as log,
    ):
        try:
            with chance:
                _v1_rows(module, case, memory, tensors, None)
        except Exception as error:  # noqa: BLE001 - an observation too
            return Observation(raised=tree_raised(error))
    return Observation(findings=findings_of(log), undecided=log.undecided)


# --- V2 -------------------------------------------------------------------------------


def _v2_function() -> Any | None:
    for name, function in _V2_FUNCTIONS:
        try:
            return getattr(import_module(name), function)
        except ModuleNotFoundError:
            continue
    return None


def _run_v2(case: Case, memory: Memory) -> Observation:
    function = _v2_function()
    if function is None:
        return Observation(skipped="this release has no rejection sampling in V2")
    options = accepted(function, use_block_verification=case.block)
    if not options and (
        case.block or not case.drafted or set(case.kinds) & {"placeholder", "broken"}
    ):
        return Observation(
            skipped="V2 of this release verifies one by one, with probabilities only"
        )
    inputs = made(case)
    states = in_states(case, inputs)
    drafts = iter(case.drafts)
    # Before the drafts of a request comes the token that it had sampled last.
    tokens = longs(
        token
        for count in case.counts
        for token in (0, *(next(drafts) for _ in range(count)))
    )
    starts, total = ints(inputs.starts), inputs.starts[-1]
    batch = import_module("vllm.v1.worker.gpu.input_batch")
    positions = torch.arange(total) + 5
    for each in (tokens, starts, positions, states.mapping, states.logits):
        memory.read_only(each)
    for each in (states.temperature, states.seeds):
        memory.read_only(each)
    if states.drafter is not None:
        memory.read_only(states.drafter)
    with checked_launches(memory, values=True) as log:
        try:
            with Chance(memory):
                expanded = batch.expand_idx_mapping(
                    states.mapping, total, starts, case.steps + 1
                )
                sampled, counts = function(
                    states.logits,
                    states.drafter,
                    tokens,
                    starts,
                    positions,
                    states.mapping,
                    *expanded,
                    states.temperature,
                    states.seeds,
                    case.steps,
                    **options,
                )
        except Exception as error:  # noqa: BLE001 - an observation too
            return Observation(raised=tree_raised(error))
    found = findings_of(log)
    if found or log.undecided:
        return Observation(findings=found, undecided=log.undecided)
    rows = [
        [*row[: max(count, 0)], *[PLACEHOLDER] * (case.steps + 1 - max(count, 0))]
        for row, count in zip(sampled.tolist(), counts.tolist(), strict=True)
    ]
    return _compared(case, inputs, rows, recovered=[])
