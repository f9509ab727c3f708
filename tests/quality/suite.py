"""The planted faults of every target, written and mechanical, and their hunts."""

import importlib
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from fuzz import rooms
from fuzz.edits import EditError, fitting
from fuzz.execution import Executor
from fuzz.planted import find_planted
from fuzz.profiles import derived_seed
from fuzz.search import SearchResult
from invariants.model import ORIGINS, Origin, encode
from tests.quality.mechanical import Mechanical, mechanical
from tests.quality.mutant import Mutant

# Within how many cases of each origin a mechanical fault is looked for.
CASES = 300
CASES_ISOLATED = 30
# What shrinking a written fault may run; an isolated case costs a hundred others.
SHRINK_CASES = 800
SHRINK_CASES_ISOLATED = 150

# In place of an invariant: the fault was not judged, it stopped the target itself.
STOPPED = "stopped the run"

SURVIVORS = Path(__file__).parent / "survivors.toml"


def mutant_targets() -> tuple[str, ...]:
    """Targets of this repository, each of which must have a file of mutants."""
    return rooms.discover()


def written(target: str) -> tuple[Mutant, ...]:
    """The faults written for a target."""
    module = importlib.import_module(f"tests.quality.mutants_{target}")
    mutants: tuple[Mutant, ...] = module.WRITTEN
    return mutants


def mechanical_of(target: str) -> tuple[Mechanical, ...]:
    """All mechanical faults of a target's functions in the active tree."""
    module = importlib.import_module(f"tests.quality.mutants_{target}")
    places: tuple[tuple[tuple[str, ...], str], ...] = module.MECHANICAL
    mutants: list[Mechanical] = []
    for modules, function in places:
        try:
            mutants += mechanical(modules, function)
        except EditError:
            # Releases differ in their functions; the caller checks that some are left.
            continue
    return tuple(mutants)


@dataclass(frozen=True, kw_only=True)
class Hunt:
    """How the search for one planted fault went.

    Attributes:
        cases: Cases until it was found, or all of the budget.
        shrunk: The smallest case's canonical JSON, "" when not found or not shrunk.
        invariant: Id of the law that broke, "" when not found.
        site: Where it broke, "" when not found.
    """

    name: str
    target: str
    found: bool
    cases: int
    shrunk: str
    invariant: str
    site: str = ""


def hunt_written(
    executor: Executor, target: str, mutant: Mutant, *, seed: int = 0
) -> Hunt:
    """Look for a written fault and shrink it."""
    loaded = rooms.load(target)
    slow = rooms.target_module(target).RUNTIME.isolated
    result = find_planted(
        executor,
        loaded,
        cases=loaded.cases(origin=mutant.origin),
        edits=(fitting(mutant.edits),),
        budget=mutant.cases,
        seed=derived_seed(seed, "mutant", target, mutant.name),
        invariants=frozenset(mutant.invariants),
        shrink_cases=SHRINK_CASES_ISOLATED if slow else SHRINK_CASES,
    )
    return _hunt(mutant.name, target, result)


def cases_of(target: str) -> int:
    """Within how many cases of each origin its mechanical faults are looked for."""
    slow = rooms.target_module(target).RUNTIME.isolated
    return CASES_ISOLATED if slow else CASES


def hunt_mechanical(
    executor: Executor,
    target: str,
    mutant: Mechanical,
    *,
    cases: int | None = None,
    seed: int = 0,
) -> Hunt:
    """Look for a mechanical fault, by cases of every origin in turn."""
    loaded = rooms.load(target)
    spent = 0
    for origin in _origins(target):
        try:
            result = find_planted(
                executor,
                loaded,
                cases=loaded.cases(origin=origin),
                edits=(mutant.edit,),
                budget=cases or cases_of(target),
                seed=derived_seed(seed, "mechanical", target, mutant.name, origin),
            )
        except Exception as error:  # noqa: BLE001 (in a run it ends in exit code 2)
            stopped = f"{STOPPED}: {type(error).__name__}"
            return Hunt(
                name=mutant.name,
                target=target,
                found=True,
                cases=spent + 1,
                shrunk="",
                invariant=stopped,
            )
        spent += result.cases
        if result.faults:
            break
    return replace(_hunt(mutant.name, target, result), cases=spent, shrunk="")


def explained_survivors() -> dict[str, str]:
    """Why each known survivor among the mechanical faults survives, by name."""
    table = tomllib.loads(SURVIVORS.read_text(encoding="utf-8"))
    return {each["name"]: each["why"] for each in table.get("survivor", [])}


def _origins(target: str) -> tuple[Origin, ...]:
    laws = rooms.load(target).invariants
    return tuple(
        origin
        for origin in ORIGINS
        if any(law.labels_needed(origin) is not None for law in laws)
    )


def _hunt(name: str, target: str, result: SearchResult) -> Hunt:
    fault = result.faults[0] if result.faults else None
    return Hunt(
        name=name,
        target=target,
        found=fault is not None,
        cases=result.cases,
        shrunk=encode(fault.case) if fault is not None and fault.shrunk else "",
        invariant=fault.violation.invariant if fault is not None else "",
        site=fault.violation.site if fault is not None else "",
    )
