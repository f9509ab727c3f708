"""Every access of the attention kernels: exact, owned, written before, alone.

The same launches as `verify_attention`, judged access by access for the whole grid by
`invariants.memory` instead of by what they compute: nothing dies, and what is wrong is
named with the numbers that show it.
"""

from dataclasses import dataclass

from invariants.kernel_laws import KernelLaws, settled
from invariants.memory.findings import Finding, Undecided
from invariants.model import Invariant, Judgement, Raised
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
    mismatch_of,
)
from invariants.verify_case import Case

TARGET = "attention_memory"

COMPARED = "output compared"
SINKS = "sinks"
PADDED = "rows of padding"
FEW_ROWS = "scratch for requests only"
# One in so many cases has its floats computed.
COMPARED_OF = 4
# Rows of a program's tile, over which a group's heads are spread.
_TILE_ROWS = 16
_STORED = ("bfloat16", "float16", "fp8", "int8_per_token_head")

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
    wired=(LAST_BLOCK, SHARED, RAGGED, PADDED),
    contract=(LAST_BLOCK, SHARED, RAGGED, LONG_QUERY, PADDED, FEW_ROWS),
)
SCRATCH = Invariant(
    id="ATTN-SCRATCH",
    target=TARGET,
    statement="A kernel reads only such scratch as the launch before it has stored.",
    severity="corruption",
    wired=(SPLIT, PADDED),
    contract=(SPLIT, PADDED, FEW_ROWS),
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
VALUES = Invariant(
    id="ATTN-VALUES",
    target=TARGET,
    statement=(
        "The output is dense causal attention over the block tables, within the "
        "rounding that dtype and number of keys allow, whatever unwritten slots hold."
    ),
    severity="corruption",
    wired=(COMPARED, *_STORED, SINKS, SPLIT),
    contract=(COMPARED, *_STORED, SINKS, SPLIT),
)
RAISES = Invariant(
    id="ATTN-RAISES",
    target=TARGET,
    statement="A launch that the wrapper's asserts allow raises nothing.",
    severity="crash",
    wired=(RAGGED, PADDED),
    contract=(RAGGED, PADDED, FEW_ROWS),
)
INVARIANTS = (EXACT, OWNED, SCRATCH, STORES, VALUES, RAISES)

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

    @property
    def raised(self) -> Raised | None:
        """What escaped the wrapper."""
        return self.launch.raised


def judge(case: Case, observation: Observation) -> Judgement:
    """Sort findings by law; one for each law and tensor, the first."""
    launch = observation.launch
    early = settled(
        observation, raises=RAISES, origin=case.origin, skipped=launch.skipped
    )
    if early is not None:
        return early
    violations = _LAWS.violations(observation.findings, origin=case.origin)
    judged = {EXACT.id, OWNED.id, SCRATCH.id, STORES.id, RAISES.id}
    if compared(case) and not observation.findings:
        judged.add(VALUES.id)
        if launch.mismatch is not None:
            violations = (mismatch_of(case, launch.mismatch, law=VALUES),)
    return Judgement(
        judged=frozenset(judged),
        violations=violations,
        labels=boundaries(case, launch) | _labels(case),
    )


def compared(case: Case) -> bool:
    """Whether floats are computed too, and the output is compared.

    Where a group's heads do not fill a tile, two programs store one token's part of the
    scratch, each rounded in its own way: that is judged by its addresses alone.
    """
    fills = _TILE_ROWS % case.shape.queries_per_kv == 0
    return fills and case.seed % COMPARED_OF == COMPARED_OF - 1


def _labels(case: Case) -> frozenset[str]:
    shown = {
        COMPARED: compared(case),
        SINKS: case.sinks,
        PADDED: case.padding_rows > 0,
        FEW_ROWS: case.scratch == "requests",
    }
    return frozenset(label for label, seen in shown.items() if seen)
