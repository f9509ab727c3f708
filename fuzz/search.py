"""The search for faults of one property: draw, run, judge; shrink each fault by itself.

A Hypothesis run ends early once something fails, so the search is a series of runs:
faults found in one are silenced in the next, until the budget of cases is spent. Each
fault raises a type of its own, for Hypothesis shrinks distinct types separately.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.strategies import SearchStrategy

from fuzz.profiles import derived_seed
from invariants.model import FaultKey, Judgement, Violation, encode

Judge = Callable[[Any], Judgement]


class FaultFound(Exception):
    """Base of the exceptions that carry a violation to Hypothesis' shrinker."""

    def __init__(self, case: object, violation: Violation) -> None:
        super().__init__(violation.message)
        self.case = case
        self.violation = violation


class NotReproducible(Exception):
    """The judge gave two verdicts on one case."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault with the smallest case known for it."""

    case: object
    violation: Violation
    shrunk: bool


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search did and found.

    Attributes:
        cases: Cases run, those of shrinking left out.
        judged: Cases in which each invariant applied and was checked, by id.
        labels: Cases that showed each coverage label.
        skips: Cases of which nothing ran, by the reason.
    """

    cases: int
    judged: Counter[str]
    labels: Counter[str]
    skips: Counter[str]
    faults: tuple[Fault, ...]
    seconds: float


@dataclass(kw_only=True)
class _Round:
    """One Hypothesis run: counts what happens before the first fault, and shrinks."""

    judge: Judge
    silenced: frozenset[str]
    shrink_cases: int
    on_case: Callable[[], None]
    on_fault: Callable[[Fault], None]
    types: dict[FaultKey, type[FaultFound]]
    cases: int = 0
    judged: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    skips: Counter[str] = field(default_factory=Counter)
    failed: dict[str, FaultFound] = field(default_factory=dict)
    executed_since_fault: int = 0

    def __call__(self, case: object) -> None:
        if not self.failed:
            self._search(case)
        else:
            self._shrink(case)

    def _search(self, case: object) -> None:
        judgement = self.judge(case)
        self.cases += 1
        self.judged.update(judgement.judged)
        self.labels.update(judgement.labels)
        if judgement.skipped:
            self.skips[judgement.skipped] += 1
        self.on_case()
        self._raise_fault(case, judgement)

    def _shrink(self, case: object) -> None:
        text = encode(case)
        before = self.failed.get(text)
        if before is not None:
            raise before
        # Beyond the budget only cases that failed before fail again, so that
        # Hypothesis ends its shrinking with the best one it has.
        if self.executed_since_fault >= self.shrink_cases:
            return
        self.executed_since_fault += 1
        self._raise_fault(case, self.judge(case))

    def _raise_fault(self, case: object, judgement: Judgement) -> None:
        for violation in judgement.violations:
            key = violation.key
            if key.id in self.silenced:
                continue
            if key not in self.types:
                self.types[key] = type(f"Fault_{key.id}", (FaultFound,), {})
                self.on_fault(Fault(case=case, violation=violation, shrunk=False))
            fault = self.types[key](case, violation)
            self.failed[encode(case)] = fault
            raise fault


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _run_round(
    round_: _Round, cases: SearchStrategy[Any], *, budget: int, seed: int, shrink: bool
) -> tuple[Fault, ...]:
    phases = (Phase.generate, Phase.shrink) if shrink else (Phase.generate,)

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=budget,
        phases=phases,
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=True,
        verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=cases)
    def property_(case: object) -> None:
        round_(case)

    try:
        property_()
    except (FaultFound, BaseExceptionGroup) as error:
        leaves = tuple(_leaves(error))
        others = [leaf for leaf in leaves if not isinstance(leaf, FaultFound)]
        if others:
            raise others[0] from error
        return tuple(
            Fault(case=leaf.case, violation=leaf.violation, shrunk=shrink)
            for leaf in leaves
            if isinstance(leaf, FaultFound)
        )
    return ()


def search(
    *,
    cases: SearchStrategy[Any],
    judge: Judge,
    seed: int,
    budget: int,
    silenced: frozenset[str] = frozenset(),
    shrink_cases: int = 1_000,
    first_only: bool = False,
    on_case: Callable[[], None] = lambda: None,
    on_fault: Callable[[Fault], None] = lambda _: None,
) -> SearchResult:
    """Search one property until its budget of cases is spent.

    Args:
        cases: Strategy of cases, values that `invariants.model.encode` takes.
        judge: Runs a case and judges what it observed.
        seed: Same seed, same strategy, same tree: same cases and verdicts.
        budget: Cases to run, those of shrinking left out.
        silenced: Ids of faults that do not raise, for they are known.
        shrink_cases: Cases that shrinking may run, per round; 0 for no shrinking.
        first_only: End at the first round that finds something.
        on_case: Called after each case of the search.
        on_fault: Called with each fault as first seen, and again as shrunk.

    Raises:
        NotReproducible: When a shrunk case passes when judged again.
        Exception: What the judge raises: a fault of the harness, not of the tree.
    """
    started = time.monotonic()
    judged: Counter[str] = Counter()
    labels: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    faults: list[Fault] = []
    spent = 0
    rounds = 0
    while spent < budget and not (faults and first_only):
        round_ = _Round(
            judge=judge,
            silenced=silenced | {fault.violation.key.id for fault in faults},
            shrink_cases=shrink_cases,
            on_case=on_case,
            on_fault=on_fault,
            types={},
        )
        found = _run_round(
            round_,
            cases,
            budget=budget - spent,
            seed=derived_seed(seed, "round", rounds),
            shrink=shrink_cases > 0,
        )
        rounds += 1
        spent += round_.cases
        judged += round_.judged
        labels += round_.labels
        skips += round_.skips
        for fault in found:
            _confirm(judge, fault)
            on_fault(fault)
            faults.append(fault)
        if not found:
            # The strategy has no more distinct cases, or the budget is spent.
            break
    return SearchResult(
        cases=spent,
        judged=judged,
        labels=labels,
        skips=skips,
        faults=tuple(faults),
        seconds=time.monotonic() - started,
    )


def _confirm(judge: Judge, fault: Fault) -> None:
    key = fault.violation.key
    again = {violation.key for violation in judge(fault.case).violations}
    if key not in again:
        raise NotReproducible(
            f"{key.id} ({key.invariant} at {key.site}) was found on a case that "
            f"passes when judged again: {encode(fault.case)}"
        )
