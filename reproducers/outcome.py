"""What running a saved case says about its fault, as values.

Imports nothing but the shared values: its source is inlined in reproducer scripts.
"""

from dataclasses import dataclass
from typing import Literal

from invariants.model import FaultKey, Judgement, Violation

# fails: the fault shows. differs: its law is broken, but in another way. holds: the law
# was checked and kept. unproven: the check did not apply, so nothing is known.
# absent: this tree has no such code. unfit: no fix fits this tree. errored: no verdict.
ArmStatus = Literal[
    "fails", "differs", "holds", "unproven", "absent", "unfit", "errored"
]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One run of a case: on the tree as it is (broken arm), or with a fix applied.

    Attributes:
        message: The cause in one line.
        others: Violations of other laws that the same case showed, a line each.
    """

    status: ArmStatus
    message: str
    others: tuple[str, ...] = ()


def judged_arm(judgement: Judgement, key: FaultKey) -> Arm:
    """What a judgement says about one fault."""
    if judgement.skipped:
        return Arm(status="absent", message=f"not applicable: {judgement.skipped}")
    same_law = [v for v in judgement.violations if v.invariant == key.invariant]
    others = tuple(
        violation_line(violation)
        for violation in judgement.violations
        if violation.invariant != key.invariant
    )
    for violation in same_law:
        if violation.key == key:
            return Arm(status="fails", message=violation.message, others=others)
    if same_law:
        lines = "; ".join(violation_line(violation) for violation in same_law)
        return Arm(
            status="differs",
            message=f"{key.invariant} is broken in another way than recorded: {lines}",
            others=others,
        )
    if key.invariant in judgement.judged:
        return Arm(status="holds", message=f"{key.invariant} holds", others=others)
    return Arm(
        status="unproven",
        message=f"{key.invariant} did not apply to what this tree did with the case",
        others=others,
    )


def violation_line(violation: Violation) -> str:
    """A violation in one line, with the ID under which it would be saved."""
    return (
        f"{violation.key.id} ({violation.invariant} at {violation.site}): "
        f"{violation.message}"
    )
