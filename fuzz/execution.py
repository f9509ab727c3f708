"""Runs a target's cases where they belong: in this process, or isolated from it.

What needs the platform and Triton mode that this process has, and cannot kill it, runs
here without any detour through JSON. Everything else goes to a kept isolation.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fuzz.edits import Edit, applied
from fuzz.isolation import Culprit, Isolation, Outcome
from fuzz.rooms import Rooms, target_module
from fuzz.runtime import Runtime
from fuzz.trees import Tree, activate
from invariants.model import Death, FaultKey, Judgement, decode, encode

# Edits that cure a known fault on the tree, none where nothing is known to.
Cure = Callable[[Rooms, FaultKey], tuple[Edit, ...]]

BESIDE = ", beside "


def site_beside(site: str, known_id: str) -> str:
    """The site of a death that remains once a known one at that site is cured."""
    return f"{site}{BESIDE}{known_id}"


def split_site(site: str) -> tuple[str, str]:
    """The site itself, and the known fault that stands beside this one, "" if none."""
    place, _, known_id = site.partition(BESIDE)
    return place, known_id


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a target's cases run; no isolation means this process."""

    run: Callable[[Any], Any]
    isolation: Isolation | None


class Executor:
    """Runs and judges cases of any target on one tree; one per worker.

    Activates the tree in this process when the first case is run. Not to be shared
    between threads.

    Args:
        tree: The tree under test.
        target_folders: Folders of the user's own targets, added before.
        here: Platform and Triton mode of this process.
    """

    def __init__(
        self,
        *,
        tree: Tree,
        target_folders: tuple[Path, ...] = (),
        here: Runtime | None = None,
    ) -> None:
        self._tree = tree
        self._target_folders = target_folders
        self._here = Runtime() if here is None else here
        self._places: dict[str, _Place] = {}
        self._isolations: dict[tuple[str, str], Isolation] = {}
        self._keeps_edits = False
        self._in_force: tuple[Edit, ...] = ()
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def isolation_startup_s(self) -> float:
        """Seconds spent so far on starting isolating processes."""
        return sum(each.startup_s for each in self._isolations.values())

    def execute(
        self,
        rooms: Rooms,
        case: object,
        *,
        edits: tuple[Edit, ...] = (),
        fresh: bool = False,
    ) -> Any:
        """Run a case; give its observation, or the death of its process.

        Args:
            rooms: The case's target.
            case: A value of the target's case type.
            edits: Changes to the tree for this case.
            fresh: Run it in a process in which no other case ran; without meaning for
                a target that runs in this process.

        Raises:
            EditError: In this process, when an edit does not fit the tree.
            IsolationError: See `Isolation.run`.
            Exception: What the target raises here: a fault of the harness.
        """
        place = self._settled(rooms.name)
        if place.isolation is None:
            if self._keeps_edits:
                self._put_in_force(edits)
                return place.run(case)
            with applied(*edits):
                return place.run(case)
        result = place.isolation.run(rooms.name, encode(case), edits=edits, fresh=fresh)
        return _observation(rooms, result)

    def judge(
        self,
        rooms: Rooms,
        case: object,
        *,
        edits: tuple[Edit, ...] = (),
        fresh: bool = False,
        silenced: frozenset[str] = frozenset(),
        cure: Cure | None = None,
    ) -> Judgement:
        """Run a case and judge what it observed.

        A violation seen in a process in which other cases had run is returned only
        when a fresh process shows one too; else the earlier cases are searched for the
        one that did harm, which `take_culprits` gives.

        All wild addresses of a kernel end its process alike. So a case that dies of a
        known fault is run again with that one cured, and a death that remains is a
        fault of its own, whose site says which one it stands beside.

        Args:
            rooms: As for `execute`, like the other arguments.
            case: As there.
            edits: As there.
            fresh: As there.
            silenced: Ids of faults that are known and need no confirmation.
            cure: How known deaths are cured; None when they hide nothing of interest.

        Raises:
            Exception: As `execute`.
        """
        place = self._settled(rooms.name)
        if place.isolation is None:
            return rooms.judge(case, self.execute(rooms, case, edits=edits))
        text = encode(case)
        outcome = place.isolation.outcome(rooms.name, text, edits=edits, fresh=fresh)
        judgement = rooms.judge(case, _observation(rooms, outcome.result))
        broken = {each.key.id for each in judgement.violations} - silenced
        if not broken and isinstance(outcome.result, Death) and cure is not None:
            return self._beside_known(rooms, case, judgement, cure)
        if not broken or not outcome.earlier:
            return judgement
        alone = place.isolation.run(rooms.name, text, edits=edits, fresh=True)
        confirmed = rooms.judge(case, _observation(rooms, alone))
        if not confirmed.violations:
            self._blame(place.isolation, rooms, case, outcome, judgement)
        return confirmed

    def _beside_known(
        self, rooms: Rooms, case: object, judgement: Judgement, cure: Cure
    ) -> Judgement:
        """The judgement of a known death, with the one that its cure leaves."""
        for known in judgement.violations:
            edits = cure(rooms, known.key)
            if not edits:
                continue
            cured = self.judge(
                rooms, case, edits=edits, silenced=frozenset({known.key.id})
            )
            remaining = tuple(
                replace(
                    violation,
                    site=site_beside(known.site, known.key.id),
                    message=f"{violation.message}; so it does with the fix for "
                    f"{known.key.id}",
                )
                for violation in cured.violations
                if violation.key == known.key
            )
            return replace(judgement, violations=judgement.violations + remaining)
        return judgement

    def take_culprits(self) -> tuple[Culprit, ...]:
        """Cases found since the last call to harm those that run after them."""
        isolations = self._isolations.values()
        return tuple(one for each in isolations for one in each.take_culprits())

    @contextmanager
    def keeping_edits(self) -> Iterator[None]:
        """Leave edits in force between cases that ask for the same ones.

        Applying edits takes ten times as long as many a case.
        """
        self._keeps_edits = True
        try:
            yield
        finally:
            self._keeps_edits = False
            self._put_in_force(())

    def _put_in_force(self, edits: tuple[Edit, ...]) -> None:
        if edits == self._in_force:
            return
        self._undo.close()
        self._in_force = ()
        self._undo.enter_context(applied(*edits))
        self._in_force = edits

    def close(self) -> None:
        """End all isolating processes; a later case starts them again."""
        for isolation in self._isolations.values():
            isolation.close()

    def _settled(self, name: str) -> _Place:
        """Where a target's cases run; finding that out takes importing it."""
        if name in self._places:
            return self._places[name]
        here = self._here
        activate(self._tree, platform=here.platform, triton=here.triton)
        target = target_module(name)
        wanted = target.RUNTIME
        process = (wanted.platform, wanted.triton)
        isolation: Isolation | None = None
        if wanted.isolated or process != (here.platform, here.triton):
            isolation = self._isolations.get(process)
            if isolation is None:
                isolation = self._isolations[process] = Isolation(
                    tree=self._tree,
                    runtime=wanted,
                    target_folders=self._target_folders,
                )
        place = self._places[name] = _Place(run=target.run, isolation=isolation)
        return place

    @staticmethod
    def _blame(
        isolation: Isolation,
        rooms: Rooms,
        case: object,
        outcome: Outcome,
        judgement: Judgement,
    ) -> None:
        """Look for the earlier case after which this one breaks what it broke."""
        keys = {violation.key for violation in judgement.violations}

        def shows(result: str | Death) -> bool:
            again = rooms.judge(case, _observation(rooms, result))
            return not keys.isdisjoint(each.key for each in again.violations)

        isolation.blame(
            outcome.earlier,
            outcome.request,
            symptom=", ".join(sorted(key.invariant for key in keys)),
            shows=shows,
        )


def _observation(rooms: Rooms, result: str | Death) -> Any:
    return result if isinstance(result, Death) else decode(result, rooms.observation)
