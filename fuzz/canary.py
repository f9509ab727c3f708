"""A property that is always false, so that silence is never taken for health.

It passes through the same search as every other property: when it is not found, the
search is broken and the run is void.
"""

from dataclasses import dataclass

from hypothesis import strategies as st

from fuzz.search import SearchResult, search
from invariants.model import Judgement, Violation

LIMIT = 1_000
CASES = 500


@dataclass(frozen=True, kw_only=True)
class CanaryCase:
    """One number."""

    number: int


def judge_canary(case: CanaryCase) -> Judgement:
    """The false law: no number is above the limit."""
    sings = case.number > LIMIT
    violation = Violation(
        invariant="CANARY",
        target="canary",
        origin="contract",
        site="canary",
        message=f"{case.number} > {LIMIT}",
        evidence={"number": case.number},
    )
    return Judgement(
        judged=frozenset({"CANARY"}),
        violations=(violation,) if sings else (),
        labels=frozenset(),
    )


def search_canary(seed: int) -> SearchResult:
    """Search for the canary and shrink it, which must end at the limit plus one."""
    return search(
        cases=st.builds(CanaryCase, number=st.integers(0, 1 << 40)),
        judge=judge_canary,
        seed=seed,
        budget=CASES,
        first_only=True,
    )


def sings(result: SearchResult) -> bool:
    """Whether the canary was found, and shrunk to the smallest case there is."""
    return [fault.case for fault in result.faults] == [CanaryCase(number=LIMIT + 1)]
