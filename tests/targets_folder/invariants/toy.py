"""A sum must be the sum: the smallest target, in the form of a user's own.

Its cases also tell the target to misbehave, so that isolation can be tested on it.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants.model import Death, Invariant, Judgement, Origin, Violation

Number = Annotated[int, msgspec.Meta(ge=0, le=10_000)]

# What the target does beside adding; each is described in fuzz/targets/toy.py.
Deed = Literal[
    "add",
    "segfault",
    "exit",
    "system_exit",
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
    """Two numbers to add, and a deed."""

    format_version: Literal[1] = 1
    origin: Origin = "contract"
    left: Number
    right: Number
    deed: Deed = "add"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the tree made of it; ``text`` is what the deed has to say."""

    total: int
    text: str


INVARIANTS = (
    Invariant(
        id="TOY-SUM",
        target="toy",
        statement="The sum is the sum.",
        severity="corruption",
        wired=None,
        contract=("both numbers positive",),
    ),
    Invariant(
        id="TOY-ALIVE",
        target="toy",
        statement="Adding does not end the process.",
        severity="crash",
        wired=None,
        contract=(),
    ),
)


def judge(case: Case, observation: Observation | Death) -> Judgement:
    """Compare the observed sum with Python's own."""
    if isinstance(observation, Death):
        invariant, exception = "TOY-ALIVE", observation.cause
        message = f"the process ended: {observation.cause}"
        held, judged = False, {"TOY-ALIVE"}
    else:
        invariant, exception = "TOY-SUM", ""
        expected = case.left + case.right
        message = f"{case.left} + {case.right} gave {observation.total}"
        held, judged = observation.total == expected, {"TOY-ALIVE", "TOY-SUM"}
    violation = Violation(
        invariant=invariant,
        target="toy",
        origin=case.origin,
        site="add",
        message=message,
        evidence={"left": case.left, "right": case.right},
        exception=exception,
    )
    positive = case.left > 0 and case.right > 0
    return Judgement(
        judged=frozenset(judged),
        violations=() if held else (violation,),
        labels=frozenset({"both numbers positive"} if positive else ()),
    )
