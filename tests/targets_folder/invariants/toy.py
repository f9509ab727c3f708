"""Rounded-up division must be just that: the smallest target, in a user's form.

Its cases also tell the target to misbehave, so that isolation can be tested on it.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants.model import Death, Invariant, Judgement, Origin, Violation

Number = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
Divisor = Annotated[int, msgspec.Meta(ge=1, le=10_000)]

# What the target does beside dividing; each is described in fuzz/targets/toy.py.
Deed = Literal[
    "divide",
    "segfault",
    "exit",
    "system_exit",
    "slow",
    "hang",
    "hang_in_c",
    "hog",
    "error",
    "noise",
    "large",
    "last_words",
    "poison",
    "stain",
    "offspring",
    "patricide",
    "inspect",
]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two numbers to divide, and a deed."""

    format_version: Literal[1] = 1
    origin: Origin = "contract"
    tokens: Number
    block_size: Divisor
    deed: Deed = "divide"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the tree made of it; ``text`` is what the deed has to say."""

    blocks: int
    text: str


INVARIANTS = (
    Invariant(
        id="TOY-BLOCKS",
        target="toy",
        statement="There are just enough blocks for the tokens.",
        severity="corruption",
        wired=None,
        contract=("last block full", "last block partly full"),
    ),
    Invariant(
        id="TOY-ALIVE",
        target="toy",
        statement="Dividing does not end the process.",
        severity="crash",
        wired=None,
        contract=(),
    ),
)


def judge(case: Case, observation: Observation | Death) -> Judgement:
    """Count blocks one by one."""
    if isinstance(observation, Death):
        invariant, exception = "TOY-ALIVE", observation.cause
        message = f"the process ended: {observation.cause}"
        held, judged = False, {"TOY-ALIVE"}
    else:
        invariant, exception = "TOY-BLOCKS", ""
        message = f"{observation.blocks} blocks of {case.block_size} for {case.tokens}"
        starts = range(0, case.tokens, case.block_size)
        held, judged = observation.blocks == len(starts), {"TOY-ALIVE", "TOY-BLOCKS"}
    violation = Violation(
        invariant=invariant,
        target="toy",
        origin=case.origin,
        site="cdiv",
        message=message,
        evidence={"tokens": case.tokens, "block_size": case.block_size},
        exception=exception,
    )
    full = case.tokens % case.block_size == 0
    return Judgement(
        judged=frozenset(judged),
        violations=() if held else (violation,),
        labels=frozenset({"last block full" if full else "last block partly full"}),
    )
