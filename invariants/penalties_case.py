"""Steps that sample: requests, their sampling parameters, tokens and drafts.

Tokens come from a short list of ids at edges of vocabulary, tiles and packed words, so
that they repeat, and so that words of the parameters occur in them.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants.model import Origin

# Rows of a request with drafts: one for each of them and one for the last token.
DRAFTS_MAX = 3
# Elements that a program of the penalties', the counting and the min_p kernels takes
# (vllm/v1/worker/gpu/sample of 0.20.1 and 0.33.0), and tokens of one packed word.
PENALTY_TILE = 8192
COUNT_TILE = 1024
WORD_BITS = 32
ROW_STRIDE_MAX = 2**31
VOCABULARY_MAX = 2**19

Token = Annotated[int, msgspec.Meta(ge=0, lt=VOCABULARY_MAX)]
# all: the sampler, which applies every part in its order; else one part alone.
Part = Literal["all", "bias", "penalties", "bad_words", "temperature", "min_p"]
PARTS: tuple[Part, ...] = ("bias", "penalties", "bad_words", "temperature", "min_p")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request of the step.

    Attributes:
        prompt: Tokens of its prompt.
        resumed: Output tokens that it has when it is added, as after a preemption.
        sampled: Output tokens that were sampled since.
        drafts: Draft tokens of this step.
        repetition: Penalty, 1.0 for none.
        bias: Token ids and what is added to their logits.
        allowed: Token ids of which one is sampled, () for all.
        min_tokens: As many output tokens come before one of `stops`.
        bad_words: Token ids of words; the last of a word may not follow its others.
        temperature: 0.0 for greedy sampling, which no other number changes.
    """

    prompt: Annotated[int, msgspec.Meta(ge=1, le=4 * COUNT_TILE)]
    resumed: Annotated[int, msgspec.Meta(ge=0, le=4 * COUNT_TILE)]
    sampled: Annotated[int, msgspec.Meta(ge=0, le=DRAFTS_MAX + 1)]
    drafts: Annotated[int, msgspec.Meta(ge=0, le=DRAFTS_MAX)]
    repetition: Annotated[float, msgspec.Meta(gt=0.0, le=4.0)]
    frequency: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)]
    presence: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)]
    bias: tuple[tuple[Token, Annotated[float, msgspec.Meta(ge=-100.0, le=100.0)]], ...]
    allowed: tuple[Token, ...]
    min_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**13)]
    stops: tuple[Token, ...]
    bad_words: tuple[tuple[Token, ...], ...]
    temperature: Annotated[float, msgspec.Meta(ge=0.0, le=4.0)]
    min_p: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]

    @property
    def output(self) -> int:
        """Output tokens, drafts left out."""
        return self.resumed + self.sampled

    @property
    def penalised(self) -> bool:
        """Whether any penalty changes its logits."""
        return (self.repetition, self.frequency, self.presence) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step.

    Attributes:
        slots: Requests that can be served at once; each has a row of every state.
        longest: Tokens of the longest request.
        ended: Requests that were served before, and whose slots are free again.
        requests: Those of the step.
        order: Of the step's batch: indices of `requests`.
        row_stride: From row to row of the logits in elements; of contract cases only.
        seed: Of tokens and logits.
    """

    format_version: Literal[1]
    origin: Origin
    part: Part
    vocabulary: Annotated[int, msgspec.Meta(ge=2, le=VOCABULARY_MAX)]
    slots: Annotated[int, msgspec.Meta(ge=1, le=2**22)]
    longest: Annotated[int, msgspec.Meta(ge=2, le=2**24)]
    ended: tuple[Request, ...]
    requests: tuple[Request, ...]
    order: tuple[Annotated[int, msgspec.Meta(ge=0, lt=16)], ...]
    row_stride: Annotated[int, msgspec.Meta(ge=2, le=ROW_STRIDE_MAX)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

    def __post_init__(self) -> None:
        count = len(self.requests)
        if not count or max(count, len(self.ended)) > self.slots:
            raise ValueError(f"{count} requests in {self.slots} slots")
        if sorted(self.order) != list(range(count)):
            raise ValueError(f"{self.order} is no order of {count} requests")
        if (self.origin == "wired") != (self.part == "all"):
            raise ValueError(f"{self.origin} cases of {self.part}")
        if self.row_stride < self.vocabulary or (
            self.origin == "wired" and self.row_stride != self.vocabulary
        ):
            raise ValueError(
                f"rows of {self.vocabulary} logits are {self.row_stride} apart"
            )
        for each in (*self.ended, *self.requests):
            if each.prompt + each.output + each.drafts > self.longest:
                raise ValueError(f"a request longer than {self.longest} tokens")
            if max(_named(each), default=0) >= self.vocabulary:
                raise ValueError(f"token {max(_named(each))} of {self.vocabulary}")
            if any(not word for word in each.bad_words):
                raise ValueError("a bad word without tokens")

    @property
    def alphabet(self) -> tuple[int, ...]:
        """The token ids that occur: edges of the vocabulary, of words and of tiles."""
        edges = (0, 1, WORD_BITS - 1, WORD_BITS, COUNT_TILE, PENALTY_TILE)
        near = {*edges, PENALTY_TILE - 1, self.vocabulary - 1, self.vocabulary - 2}
        return tuple(sorted(each for each in near if each < self.vocabulary))

    def tokens(self, request: int, *, ended: bool = False) -> list[int]:
        """All tokens of a request: prompt, output, drafts."""
        one = (self.ended if ended else self.requests)[request]
        letters = self.alphabet
        first = self.seed + 5 * request + (3 if ended else 0)
        return [
            letters[(first + at * at + at // 7) % len(letters)]
            for at in range(one.prompt + one.output + one.drafts)
        ]

    @property
    def rows(self) -> tuple[tuple[int, int], ...]:
        """Request of each row of logits, and how many of its drafts come before."""
        return tuple(
            (request, drafts)
            for request in self.order
            for drafts in range(self.requests[request].drafts + 1)
        )


def _named(request: Request) -> list[int]:
    words = [token for word in request.bad_words for token in word]
    biased = [token for token, _ in request.bias]
    return [*words, *biased, *request.allowed, *request.stops]
