"""Steps whose next inputs are made from sampled tokens and drafts.

One batch serves all kernels: what each request had computed, what was scheduled of it,
how many of its drafts were accepted. Token ids follow from the seed.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import msgspec

from invariants.model import Origin
from invariants.scheduling import NULL_BLOCK

# Token ids that no prompt of a case has.
PARALLEL = 3
PADDING_TOKEN = 0
_FIRST_TOKEN = 5
# next_tokens, step and expand: V1's proposers; inputs and update: V2's input_batch.
Form = Literal["next_tokens", "step", "expand", "inputs", "update"]
V2_FORMS: tuple[Form, ...] = ("inputs", "update")


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request in the step.

    Attributes:
        context: Tokens that were computed before.
        query: Tokens that are scheduled, drafts included.
        prompt: Tokens that were known when it began; what is sampled comes after.
        drafts: Last tokens of the query that are drafts.
        accepted: Of the drafts.
    """

    context: Annotated[int, msgspec.Meta(ge=0, le=2**27)]
    query: Annotated[int, msgspec.Meta(ge=1, le=2**12)]
    prompt: Annotated[int, msgspec.Meta(ge=1, le=2**27)]
    drafts: Annotated[int, msgspec.Meta(ge=0, le=64)]
    accepted: Annotated[int, msgspec.Meta(ge=0, le=64)]

    @property
    def length(self) -> int:
        """Tokens after the step, rejected drafts included."""
        return self.context + self.query

    @property
    def partial(self) -> bool:
        """Whether some of the prompt is still to come, so that nothing is sampled."""
        return self.length < self.prompt

    @property
    def tail(self) -> bool:
        """Whether drafts follow the last tokens of the prompt in one step."""
        return self.context < self.prompt < self.length

    @property
    def sampled(self) -> int:
        """Tokens that the step gives."""
        return 0 if self.partial else self.accepted + 1

    @property
    def rejected(self) -> int:
        """Drafts that are not taken."""
        return self.drafts - self.accepted


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step.

    Attributes:
        requests: In the order of the batch.
        padded: Rows of the batch, padding included.
        states: Requests that the runner has room for.
        longest: Tokens that a request may have.
        steps: Drafts that a request may have.
        extra: Slots for new tokens of each request, in the form expand.
        shifted: Whether the drafter takes each token with the hidden state before it.
        block_size, pool_blocks: Of the KV cache; requests have blocks from its end.
        seed: Of tokens and of which state is whose.
    """

    format_version: Literal[1]
    origin: Origin
    form: Form
    requests: Annotated[tuple[Request, ...], msgspec.Meta(min_length=1, max_length=64)]
    padded: Annotated[int, msgspec.Meta(ge=1, le=128)]
    states: Annotated[int, msgspec.Meta(ge=1, le=2**14)]
    longest: Annotated[int, msgspec.Meta(ge=1, le=2**27)]
    steps: Annotated[int, msgspec.Meta(ge=1, le=64)]
    extra: Annotated[int, msgspec.Meta(ge=1, le=64)]
    shifted: bool
    block_size: Annotated[int, msgspec.Meta(ge=1, le=2**14)]
    pool_blocks: Annotated[int, msgspec.Meta(ge=2, le=2**31)]
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

    def __post_init__(self) -> None:
        count = len(self.requests)
        if not count <= self.padded or not count <= self.states:
            raise ValueError(
                f"{count} requests in {self.padded} rows, room for {self.states}"
            )
        for at, each in enumerate(self.requests):
            # The scheduler leaves room for one more token.
            most = self.longest - (self.form in V2_FORMS)
            if each.length > most or each.prompt > most:
                raise ValueError(f"request {at} has more than {most} tokens")
            if not each.accepted <= each.drafts <= self.steps:
                raise ValueError(
                    f"request {at}: {each.accepted} of {each.drafts} drafts accepted, "
                    f"at most {self.steps}"
                )
            ends = each.prompt if each.context < each.prompt else each.context + 1
            if each.drafts and each.length != ends + each.drafts:
                raise ValueError(
                    f"request {at} has {each.drafts} drafts in tokens {each.context} "
                    f"to {each.length}, prompt {each.prompt}"
                )
            if not each.drafts and each.length > max(each.prompt, each.context + 1):
                raise ValueError(f"request {at} has tokens that nobody sampled")
            if each.tail and (self.origin == "wired" or self.form not in V2_FORMS):
                raise ValueError("drafts behind a prompt's last tokens: contract of V2")
        if self.form == "expand" and self.net_extra < 1:
            raise ValueError(f"{self.extra} slots, shifted: none is new")
        blocks = sum(len(row) for row in self.blocks)
        if blocks + NULL_BLOCK >= self.pool_blocks:
            raise ValueError(f"{blocks} blocks of {self.pool_blocks}; 0 is null")

    @property
    def net_extra(self) -> int:
        """Slots that the form expand adds to each request's tokens."""
        return self.extra - 1 if self.shifted else self.extra

    @property
    def starts(self) -> tuple[int, ...]:
        """``[requests + 1]`` first token of each request in the step."""
        starts = [0]
        for each in self.requests:
            starts.append(starts[-1] + each.query)
        return tuple(starts)

    @property
    def mapping(self) -> tuple[int, ...]:
        """``[requests]`` the state of each: the last ones, in an order of the seed."""
        count = len(self.requests)
        order = [(at + self.seed) % count for at in range(count)]
        return tuple(self.states - 1 - at for at in reversed(order))

    @cached_property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """``[requests][blocks]`` for each request's next tokens, where V1 needs them.

        Requests take blocks in turn from the pool's end. Rows end where the longest
        request may end, and have no block for what lies far before the step.
        """
        if self.form not in ("step", "expand"):
            return ()
        columns = -(-self.longest // self.block_size)
        count = len(self.requests)
        return tuple(
            tuple(
                self.pool_blocks - 1 - column * count - at for column in range(columns)
            )
            for at in range(count)
        )

    def token(self, request: int, position: int) -> int:
        """The id at a position of a request, drafts and sampled tokens included."""
        mixed = (self.seed + 1) * 2654435761 + request * 40503 + position * 9973
        return _FIRST_TOKEN + mixed % VOCABULARY_SPAN

    def sampled_tokens(self, request: int) -> tuple[int, ...]:
        """Accepted drafts, and the one token more."""
        each = self.requests[request]
        first = each.length - each.drafts
        drafts = [self.draft_tokens(request)[at] for at in range(each.accepted)]
        last = self.token(request, first + each.accepted + self.longest)
        return (*drafts, last)[: each.sampled]

    def draft_tokens(self, request: int) -> tuple[int, ...]:
        """``[drafts]``."""
        each = self.requests[request]
        first = each.length - each.drafts
        return tuple(self.token(request, first + at) for at in range(each.drafts))


# Ids of a case lie in [5, 5 + this).
VOCABULARY_SPAN = 59
VOCABULARY = _FIRST_TOKEN + VOCABULARY_SPAN
