"""What a target's cases show on a release: one search, in the process that has it.

Unlike a run's search it raises nothing, so that one pass counts every fault.
"""

from collections import Counter
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase

from fuzz import rooms
from fuzz.edits import Edit
from fuzz.execution import Executor
from invariants.model import Invariant, Origin, Violation
from reproducers.fixing import NoFix, fitting_fix


@dataclass(kw_only=True)
class Searched:
    """What a search saw.

    Attributes:
        faults: By ID, the first violation and all cases that showed it.
        labels: Cases that showed each coverage label.
    """

    cases: int = 0
    faults: dict[str, tuple[Violation, list[Any]]] = field(default_factory=dict)
    labels: Counter[str] = field(default_factory=Counter)

    def fault_keys(self) -> set[tuple[str, str, str]]:
        """Invariant, site and exception of each fault."""
        return {
            (first.invariant, first.site, first.exception)
            for first, _ in self.faults.values()
        }

    def unmet(
        self, laws: tuple[Invariant, ...], *, origin: Origin
    ) -> list[tuple[str, str]]:
        """Labels that laws need and no case showed, with the laws' ids."""
        return [
            (law.id, label)
            for law in laws
            for label in law.labels_needed(origin) or ()
            if not self.labels[label]
        ]


def searched(
    executor: Executor,
    /,
    target: str,
    origin: Origin,
    count: int,
    *,
    fixed: bool = False,
    seed: int = 0,
    **bounds: Any,
) -> Searched:
    """Draw cases of a target that runs in process, and judge them.

    Args:
        executor: With the tree.
        target: Its name.
        origin: Which cases.
        count: How many.
        fixed: Whether all fixes that fit the tree are in force.
        seed: Same seed, same cases.
        bounds: Keyword arguments of the target's strategy.
    """
    loaded = rooms.load(target)
    edits = _fixes(target) if fixed else ()
    result = Searched()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(loaded.cases(origin=origin, **bounds))
    def each(case: Any) -> None:
        judgement = executor.judge(loaded, case, edits=edits)
        result.cases += 1
        result.labels.update(judgement.labels)
        for violation in judgement.violations:
            _, cases = result.faults.setdefault(violation.key.id, (violation, []))
            cases.append(case)

    assert rooms.target_module(target).absent() is None
    with executor.keeping_edits():
        each()
    return result


def _fixes(target: str) -> tuple[Edit, ...]:
    """Each site's first fix that fits, every edit once."""
    fixes = import_module(f"reproducers.fixes.{target}").FIXES
    edits: list[Edit] = []
    for site in dict.fromkeys(site for fix in fixes for site in fix.sites):
        try:
            fix = fitting_fix(fixes, site)
        except NoFix:
            continue
        edits += [edit for edit in fix.edits if edit not in edits]
    return tuple(edits)
