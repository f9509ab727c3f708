"""The tensors of a step with drafts: what each kind of draft means in logits."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fuzz.targets._real_launch import starts_of, virtual
from invariants.rejection_case import PLACEHOLDER, Case, Kind
from invariants.rejection_rows import Step

# Of requests that are not greedy, in turn.
_TEMPERATURES = (1.0, 0.5, 1.5)
_IMPOSSIBLE = -torch.inf


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """A step, row by row; the last row of each request is the bonus token's.

    Attributes:
        logits: ``[tokens + requests, vocab]`` float32 of the target.
        drafter: ``[tokens, vocab]`` float32 logits of the drafter.
        temperature: ``[requests]`` float32, 0 for greedy.
        uniform: ``[tokens]`` float64.
        exponential: ``[requests, vocab]`` float32.
        starts: ``[requests + 1]`` first row of each request.
    """

    logits: torch.Tensor
    drafter: torch.Tensor
    temperature: torch.Tensor
    uniform: torch.Tensor
    exponential: torch.Tensor
    starts: tuple[int, ...]

    def rows_of_drafts(self) -> list[int]:
        """``[tokens]`` rows of `logits` that are a draft's."""
        ends = set(self.starts[1:])
        return [row for row in range(self.starts[-1]) if row + 1 not in ends]


def made(case: Case) -> Inputs:
    """Draw the contents of a case; temperatures are 1 where the case's runner is V2."""
    chance = torch.Generator().manual_seed(case.seed)
    tokens, requests, vocab = case.tokens, len(case.counts), case.vocab
    hot = case.runner == "v1" and case.origin == "wired"
    temperature = torch.tensor(
        [
            0.0 if greedy else _TEMPERATURES[at % 3 if hot else 0]
            for at, greedy in enumerate(case.greedy)
        ]
    )
    starts = tuple(starts_of([count + 1 for count in case.counts]).tolist())
    logits = torch.randn(tokens + requests, vocab, generator=chance)
    drafter = torch.randn(tokens, vocab, generator=chance)
    inputs = Inputs(
        logits=logits,
        drafter=drafter,
        temperature=temperature,
        uniform=torch.rand(tokens, dtype=torch.float64, generator=chance),
        exponential=torch.empty(requests, vocab).exponential_(generator=chance),
        starts=starts,
    )
    of = [at for at, count in enumerate(case.counts) for _ in range(count)]
    for at, (row, kind, token) in enumerate(
        zip(inputs.rows_of_drafts(), case.kinds_of_drafts, case.drafts, strict=True)
    ):
        _shape(kind, token, logits[row], drafter[at], float(temperature[of[at]]))
    return inputs


def _shape(
    kind: Kind, token: int, row: torch.Tensor, drafter: torch.Tensor, heat: float
) -> None:
    """Make two rows of noise what a kind says."""
    if kind == "broken":
        row.fill_(torch.nan)
    if token == PLACEHOLDER:
        return
    if kind == "right":
        row[token] = row.max() + 4
    elif kind == "never":
        row[token] = _IMPOSSIBLE
    elif kind == "certain":
        row.fill_(_IMPOSSIBLE)
        row[(token + 1) % len(row)] = 0.0
    elif kind in ("open", "undrafted"):
        row[token] = row.max() + 1
    if kind == "same":
        drafter.copy_(row / (heat or 1.0))
    elif kind == "undrafted":
        drafter[token] = _IMPOSSIBLE
    elif kind != "right":
        drafter[token] = drafter.max() + 3


def steps_of(
    case: Case, inputs: Inputs, *, randomness: bool
) -> tuple[tuple[Step, ...], ...]:
    """Drafts of each request as the reference takes them, the bonus token's row last.

    Args:
        case: The step.
        inputs: Its tensors.
        randomness: Whether the sampler used the random numbers of the inputs.
    """
    heat = torch.where(inputs.temperature == 0, 1.0, inputs.temperature)
    drafters = inputs.drafter.softmax(-1).double()
    noise = inputs.exponential.reciprocal().double()
    tokens, uniform = case.drafts, inputs.uniform.tolist()
    rows: list[tuple[Step, ...]] = []
    at = 0
    for request, (start, count) in enumerate(
        zip(inputs.starts, case.counts, strict=False)
    ):
        hot = (inputs.logits[start : start + count + 1] / heat[request]).double()
        rows.append(
            (
                *(
                    Step(
                        token=tokens[at + each],
                        logits=hot[each],
                        drafter=drafters[at + each] if case.drafted else None,
                        uniform=uniform[at + each] if randomness else None,
                        noise=noise[request] if randomness else None,
                    )
                    for each in range(count)
                ),
                Step(token=PLACEHOLDER, logits=hot[count]),
            )
        )
        at += count
    return tuple(rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class States:
    """V2's view of a step: tensors by state, and the states of its requests.

    Attributes:
        logits: ``[tokens + requests, vocab]``, rows apart as the case says.
        drafter: ``[states, steps, vocab]``, None where drafters tell nothing.
        mapping: ``[requests]`` int32 states.
        temperature, seeds: ``[states]``.
    """

    logits: torch.Tensor
    drafter: torch.Tensor | None
    mapping: torch.Tensor
    temperature: torch.Tensor
    seeds: torch.Tensor


def in_states(case: Case, inputs: Inputs) -> States:
    """Spread a step over the last states, in no order; the rest is NaN and seed 0."""
    requests, rows = len(case.counts), len(inputs.logits)
    chance = torch.Generator().manual_seed(case.seed)
    order = torch.randperm(requests, generator=chance)
    mapping = (case.states - 1 - order).to(torch.int32)
    whole = virtual((rows * case.row_stride,), torch.float32)
    logits = whole.as_strided((rows, case.vocab), (case.row_stride, 1))
    logits.copy_(inputs.logits)
    temperature = torch.full((case.states,), torch.nan)
    temperature[mapping.long()] = inputs.temperature
    drafter = None
    if case.drafted:
        drafter = virtual((case.states, case.steps, case.vocab), torch.float32)
        for (state, step), row in zip(
            _places(case, mapping), inputs.drafter, strict=True
        ):
            drafter[state, step] = row
    return States(
        logits=logits,
        drafter=drafter,
        mapping=mapping,
        temperature=temperature,
        seeds=torch.arange(case.states) * 7919 + case.seed,
    )


def _places(case: Case, mapping: torch.Tensor) -> Sequence[tuple[int, int]]:
    """State and step of each draft."""
    return [
        (state, step)
        for state, count in zip(mapping.tolist(), case.counts, strict=True)
        for step in range(count)
    ]
