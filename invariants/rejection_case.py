"""Steps whose drafts are accepted or rejected: how many, of which kind, of what sizes.

A case says no probabilities: a kind of draft says what its row of logits is like, and
the seed says the rest.
"""

import random
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants.model import Origin

PLACEHOLDER = -1
# `MAX_SPEC_LEN` of vllm/v1/sample/rejection_sampler.py, 0.20.1 and 0.33.0.
DRAFTS_MAX = 128
# Logits of one case that are computed; with more, only addresses are.
COMPUTED_MAX = 2**20
# V1: vllm/v1/sample/rejection_sampler.py; V2: vllm/v1/worker/gpu/spec_decode.
Runner = Literal["v1", "v2"]
# right: the target's best token; open: likely enough for both; never: the target's
# probability is zero; same: drafted from the target's own distribution; certain: the
# target has one possible token, another one; placeholder: -1, no token at all;
# undrafted: the drafter's own probability is zero; broken: the target's row is NaN.
Kind = Literal[
    "right",
    "open",
    "never",
    "same",
    "certain",
    "placeholder",
    "undrafted",
    "broken",
]
CONTRACT_KINDS: tuple[Kind, ...] = ("placeholder", "undrafted", "broken")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step.

    Attributes:
        vocab: Tokens of the vocabulary.
        counts: ``[requests]`` drafts of each.
        greedy: ``[requests]`` whether a request takes the best token.
        kinds: Of the drafts in order; they begin anew where there are more drafts.
        drafted: Whether the drafter tells its probabilities; n-gram drafters do not.
        block: Whether V2 verifies drafts as a block.
        steps: Most drafts that a request may have.
        states: V2 only: requests that the runner has room for; the step's are the last.
        row_stride: V2 only: logits from one row of the target's to the next.
        seed: Of tokens, logits and random numbers.
    """

    format_version: Literal[1]
    origin: Origin
    runner: Runner
    vocab: Annotated[int, msgspec.Meta(ge=2, le=2**18)]
    counts: tuple[Annotated[int, msgspec.Meta(ge=0, le=DRAFTS_MAX)], ...]
    greedy: tuple[bool, ...]
    kinds: tuple[Kind, ...]
    drafted: bool
    block: bool
    steps: Annotated[int, msgspec.Meta(ge=1, le=DRAFTS_MAX)]
    states: Annotated[int, msgspec.Meta(ge=1, le=2**12)]
    row_stride: Annotated[int, msgspec.Meta(ge=2, le=2**32)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

    def __post_init__(self) -> None:
        requests = len(self.counts)
        if not 1 <= requests <= self.states or len(self.greedy) != requests:
            raise ValueError(
                f"{requests} requests, {len(self.greedy)} of them greedy or not, and "
                f"room for {self.states}"
            )
        if not 1 <= max(self.counts) <= self.steps or not self.kinds:
            raise ValueError(
                f"up to {max(self.counts)} drafts of {len(self.kinds)} kinds, and "
                f"{self.steps} steps"
            )
        if self.row_stride < self.vocab:
            raise ValueError(f"rows of {self.vocab} logits, {self.row_stride} apart")
        if self.runner == "v1":
            if (self.states, self.row_stride) != (requests, self.vocab) or self.block:
                raise ValueError("V1 has no states, strides and blocks")
        elif self.far or "undrafted" in self.kinds:
            raise ValueError(f"{self.tokens} drafts of V2 at {self.vocab} tokens")
        stray = set(self.kinds) & set(CONTRACT_KINDS)
        if stray and self.origin == "wired":
            raise ValueError(f"no wired cases of {', '.join(sorted(stray))}")
        if not self.drafted and "undrafted" in self.kinds:
            raise ValueError("without a drafter's probabilities none is zero")

    @property
    def tokens(self) -> int:
        """Drafts of all requests."""
        return sum(self.counts)

    @property
    def far(self) -> bool:
        """Whether only addresses are computed."""
        return self.tokens * self.vocab > COMPUTED_MAX

    @property
    def kinds_of_drafts(self) -> tuple[Kind, ...]:
        """``[tokens]``."""
        times = -(-self.tokens // len(self.kinds))
        return (self.kinds * times)[: self.tokens]

    @property
    def drafts(self) -> tuple[int, ...]:
        """``[tokens]`` token ids, at both ends of the vocabulary more often."""
        drawn = random.Random(self.seed)
        ends = (0, self.vocab - 1)
        return tuple(
            PLACEHOLDER
            if kind == "placeholder"
            else drawn.choice((*ends, drawn.randrange(self.vocab)))
            for kind in self.kinds_of_drafts
        )

    @property
    def top_offset(self) -> int:
        """Of the last draft's row, or of the last state, in elements: a product."""
        if self.runner == "v1":
            return (self.tokens - 1) * self.vocab
        target = (self.tokens + len(self.counts) - 1) * self.row_stride
        drafter = (self.states - 1) * self.steps * self.vocab if self.drafted else 0
        return max(target, drafter)
