"""Every access of the attention kernels: exact, owned, written before, alone.

The same launches as `verify_attention`, judged access by access for the whole grid by
`invariants.memory` instead of by what they compute: nothing dies, and what is wrong is
named with the numbers that show it.
"""

from dataclasses import dataclass

from invariants.kernel_laws import KernelLaws, undecided_reason
from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Judgement
from invariants.verify_attention import (
    LAST_BLOCK,
    LONG_QUERY,
    PAST_BYTES,
    PAST_ELEMENTS,
    PAST_HEADS,
    PAST_SCALES,
    RAGGED,
    SHARED,
    SPLIT,
    LaunchObservation,
    boundaries,
)
from invariants.verify_case import Case

TARGET = "attention_memory"

_FAR = (PAST_ELEMENTS, PAST_BYTES, LAST_BLOCK)

EXACT = Invariant(
    id="ATTN-EXACT",
    target=TARGET,
    statement=(
        "No number that has wrapped in 32 bits reaches an address or the mask of an "
        "access."
    ),
    severity="crash",
    wired=_FAR,
    contract=(*_FAR, PAST_SCALES, PAST_HEADS),
)
OWNED = Invariant(
    id="ATTN-OWNED",
    target=TARGET,
    statement=(
        "Every access lies in the view of its argument and in a block that the batch "
        "owns."
    ),
    severity="corruption",
    wired=(LAST_BLOCK, SHARED, RAGGED),
    contract=(LAST_BLOCK, SHARED, RAGGED, LONG_QUERY),
)
SCRATCH = Invariant(
    id="ATTN-SCRATCH",
    target=TARGET,
    statement="A kernel reads only such scratch as the launch before it has stored.",
    severity="corruption",
    wired=(SPLIT,),
    contract=(SPLIT,),
)
STORES = Invariant(
    id="ATTN-STORES",
    target=TARGET,
    statement=(
        "A launch stores to its output and scratch only, and no two programs store "
        "different integers to one element."
    ),
    severity="corruption",
    wired=(RAGGED,),
    contract=(RAGGED,),
)
INVARIANTS = (EXACT, OWNED, SCRATCH, STORES)

_LAWS = KernelLaws(exact=EXACT, owned=OWNED, stores=STORES, scratch=SCRATCH)


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the checker saw of a launch.

    Attributes:
        launch: Whether and how it ran.
        findings: Of all its kernels.
        undecided: What could not be judged; the case then passes nothing.
    """

    launch: LaunchObservation
    findings: tuple[Finding, ...] = ()
    undecided: tuple[Undecided, ...] = ()


def judge(case: Case, observation: Observation) -> Judgement:
    """Sort findings by law; one for each law and tensor, the first."""
    launch = observation.launch
    skipped = launch.skipped
    if launch.raised is not None:
        # The wrapper's own law; `verify_attention` judges it.
        skipped = f"the wrapper raised {launch.raised.type}"
    skipped = skipped or undecided_reason(observation.findings, observation.undecided)
    if skipped:
        return Judgement(
            judged=frozenset(),
            violations=(),
            labels=frozenset(),
            skipped=skipped,
        )
    return Judgement(
        judged=frozenset(law.id for law in INVARIANTS),
        violations=_LAWS.violations(observation.findings, origin=case.origin),
        labels=boundaries(case, launch),
    )
