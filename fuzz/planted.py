"""Looking for a fault that was planted on purpose: controls, and the quality suite.

A violation proves that the plant was found only where the same case breaks nothing of
the kind on the tree as it is.
"""

from dataclasses import replace
from typing import Any

from hypothesis.strategies import SearchStrategy

from fuzz.edits import Edit, fitting
from fuzz.execution import Executor
from fuzz.profiles import derived_seed
from fuzz.rooms import Rooms, RoomsError
from fuzz.runtime import Control
from fuzz.search import SearchResult, search
from invariants.model import Judgement


def find_planted(
    executor: Executor,
    rooms: Rooms,
    *,
    cases: SearchStrategy[Any],
    edits: tuple[Edit, ...],
    budget: int,
    seed: int,
    invariants: frozenset[str] | None = None,
    silenced: frozenset[str] = frozenset(),
    shrink_cases: int = 0,
) -> SearchResult:
    """Search until the plant is found, or the budget is spent.

    Args:
        executor: With the tree.
        rooms: The target.
        cases: Which cases are drawn.
        edits: The plant; empty when the cases themselves carry the fault.
        budget: Cases to run, those of shrinking left out.
        seed: Same seed, same cases.
        invariants: Ids any of which must break; None for any at all.
        silenced: Ids of known faults, which prove nothing: a plant may let a case
            reach one that the tree as it is does not show on it.
        shrink_cases: As for `search`; 0 for no shrinking.
    """

    def only_planted(case: object) -> Judgement:
        judgement = executor.judge(rooms, case, edits=edits)
        broken = [
            violation
            for violation in judgement.violations
            if invariants is None or violation.invariant in invariants
            if violation.key.id not in silenced
        ]
        if broken and edits:
            alone = executor.judge(rooms, case)
            own = {violation.key for violation in alone.violations}
            broken = [violation for violation in broken if violation.key not in own]
        return replace(judgement, violations=tuple(broken))

    with executor.keeping_edits():
        return search(
            cases=cases,
            judge=only_planted,
            seed=seed,
            budget=budget,
            shrink_cases=shrink_cases,
            first_only=True,
        )


def find_control(
    executor: Executor,
    rooms: Rooms,
    control: Control,
    *,
    seed: int,
    silenced: frozenset[str] = frozenset(),
) -> SearchResult:
    """Look for a target's control within the cases that it states.

    The other arguments are those of `find_planted`.

    Raises:
        EditError: When none of its edits fits the tree.
        RoomsError: When it has neither edits nor cases that carry it.
    """
    return find_planted(
        executor,
        rooms,
        cases=_control_cases(rooms, control),
        edits=(fitting(control.edits),) if control.edits else (),
        budget=control.cases,
        seed=derived_seed(seed, "control", control.name),
        invariants=frozenset({control.invariant}),
        silenced=silenced,
    )


def _control_cases(rooms: Rooms, control: Control) -> SearchStrategy[Any]:
    if control.edits:
        return rooms.cases(origin=control.origin)
    if rooms.control_cases is None:
        raise RoomsError(
            f"control {control.name!r} has no edits, and strategies.{rooms.name} has "
            "no control_cases(); give it one of them"
        )
    return rooms.control_cases()
