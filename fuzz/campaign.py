"""One process's share of a run: searches shards and controls, writes events.

A `Worker` is the process: it activates the tree once and keeps the event log. A
`Campaign` is one shard of one property, handed to the property as a pytest fixture.
"""

import importlib
import math
import pkgutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import msgspec

from fuzz import rooms as rooms_module
from fuzz.canary import search_canary, sings
from fuzz.edits import Edit, EditError
from fuzz.execution import Executor
from fuzz.planted import find_control
from fuzz.profiles import Profile, derived_seed
from fuzz.rooms import Rooms
from fuzz.runtime import Control
from fuzz.search import Fault, SearchResult, search
from fuzz.trees import Tree, activate
from invariants.model import FaultKey, Judgement, Origin, encode
from reports.events import (
    Absent,
    ControlFinished,
    Event,
    EventLog,
    Found,
    Problem,
    Progress,
    ShardFinished,
    Skipped,
    WorkerFinished,
    WorkerStarted,
)

PROGRESS_INTERVAL_S = 0.5
# A shard that has not met every boundary goes on, for so many times its cases in all.
EXTENSIONS_MAX = 4


class TargetAbsent(Exception):
    """The tree has no such code path; says what is missing."""


class NewFaults(Exception):
    """A shard found faults that break the run: all of them, saved already."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What every process of a run knows.

    Attributes:
        silenced: Ids of faults in the ledger: judged by replay, not searched for.
        workers: How many processes share a profile's wall-clock budget.
    """

    id: str
    folder: Path
    profile: Profile
    seed: int
    tree: Tree
    strict: bool = False
    target_folders: tuple[Path, ...] = ()
    silenced: frozenset[str] = frozenset()
    workers: int = 1

    def to_json(self) -> str:
        """A form that crosses to another process."""
        return msgspec.json.encode(self, enc_hook=str).decode()

    @staticmethod
    def from_json(text: str) -> "Run":
        """Read what `to_json` wrote."""
        return msgspec.json.decode(
            text, type=Run, dec_hook=lambda kind, value: kind(value)
        )


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What became of a fault: where its reproducer lies, and what its fix does.

    Attributes:
        before_characters: Length of the case that had been saved before, 0 for none.
    """

    path: str
    fix: str
    before_characters: int


SaveFault = Callable[["Worker", Rooms, Fault], Saved]
CureFault = Callable[["Worker", Rooms, FaultKey], tuple[Edit, ...]]


class Worker:
    """A process of a run. Starts lazily: collection must not import torch or vLLM."""

    def __init__(
        self, run: Run, *, name: str, save: SaveFault, cure: CureFault
    ) -> None:
        self.run = run
        self.name = name
        self._save = save
        self._cure = cure
        self._cures: dict[FaultKey, tuple[Edit, ...]] = {}
        self._executor: Executor | None = None
        self._log: EventLog | None = None
        for folder in run.target_folders:
            rooms_module.add_folder(folder)

    def write(self, event: Event) -> None:
        """Append an event to this process's file."""
        if self._log is None:
            self._log = EventLog(self.run.folder / f"events-{self.name}.jsonl")
        self._log.write(event)

    @property
    def executor(self) -> Executor:
        """The executor; activates the tree and imports every room at first use."""
        if self._executor is None:
            started = time.monotonic()
            activate(self.run.tree)
            self._executor = Executor(
                tree=self.run.tree, target_folders=self.run.target_folders
            )
            import_rooms()
            startup_s = time.monotonic() - started
            self.write(WorkerStarted(worker=self.name, startup_s=startup_s))
        return self._executor

    def judge(self, rooms: Rooms) -> Callable[[object], Judgement]:
        """A function that runs a case of a target and judges what it observed."""
        executor, silenced = self.executor, self.run.silenced
        return lambda case: executor.judge(
            rooms, case, silenced=silenced, cure=self._cured
        )

    def _cured(self, rooms: Rooms, key: FaultKey) -> tuple[Edit, ...]:
        if key not in self._cures:
            self._cures[key] = self._cure(self, rooms, key)
        return self._cures[key]

    def present(self, target: str) -> Rooms:
        """The rooms of a target that this tree has.

        Raises:
            TargetAbsent: When the tree has no such code path.
        """
        rooms = rooms_module.load(target)
        _ = self.executor
        reason = rooms_module.target_module(target).absent()
        if reason is not None:
            raise TargetAbsent(reason)
        return rooms

    def found(
        self, source: str, rooms: Rooms, fault: Fault, *, saved: Saved | None = None
    ) -> None:
        """Report a fault at once, as first seen; save it when it is shrunk.

        Args:
            source: The shard that found it, or ``replay``.
            rooms: Of the fault's target.
            fault: What was found.
            saved: Where it lies already; None for a fault that may have to be saved.
        """
        if saved is None and fault.shrunk:
            saved = self._save(self, rooms, fault)
        self.write(_found_event(source, fault, saved))

    def tell_culprits(self, where: str) -> None:
        """Tell of cases that did harm which only a later case of their process showed.

        Nobody can say which law they broke, so the run cannot pass.
        """
        for culprit in self.executor.take_culprits():
            cases = "; ".join(request.case for request in culprit.damaging)
            self.write(
                Problem(
                    where=where,
                    message=f"cases that passed damaged their process ("
                    f"{culprit.symptom} in a later case, alone without it): {cases}",
                )
            )

    def close(self) -> None:
        """End child processes and close the log."""
        if self._executor is not None:
            isolation_s = self._executor.isolation_startup_s
            self._executor.close()
            self.write(WorkerFinished(worker=self.name, isolation_s=isolation_s))
        if self._log is not None:
            self._log.close()


def _found_event(source: str, fault: Fault, saved: Saved | None) -> Found:
    violation = fault.violation
    return Found(
        source=source,
        id=violation.key.id,
        invariant=violation.invariant,
        target=violation.target,
        origin=violation.origin,
        site=violation.site,
        exception=violation.exception,
        message=violation.message,
        evidence=dict(violation.evidence),
        case=encode(fault.case),
        shrunk=fault.shrunk,
        saved=saved.path if saved else "",
        fix=saved.fix if saved else "",
        before_characters=saved.before_characters if saved else 0,
    )


def import_rooms() -> None:
    """Import every module of every room.

    Hypothesis draws constants from the local modules that are loaded, so all processes
    must have loaded the same ones before their first draw.
    """
    for room in ("invariants", "strategies", "fuzz", "reproducers", "reports"):
        package = importlib.import_module(room)
        _import_below(package)


def _import_below(package: ModuleType) -> None:
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        last = module.name.rsplit(".", 1)[-1]
        if not last.startswith(("test_", "__main__")):
            importlib.import_module(module.name)


class _Pace:
    """Counts cases and tells of them at most twice a second."""

    def __init__(self, worker: Worker, shard: str) -> None:
        self._worker = worker
        self._shard = shard
        self._cases = 0
        self._told = time.monotonic()

    def __call__(self) -> None:
        self._cases += 1
        if time.monotonic() - self._told >= PROGRESS_INTERVAL_S:
            self.tell()

    def tell(self) -> None:
        if self._cases:
            self._worker.write(Progress(shard=self._shard, cases=self._cases))
        self._cases = 0
        self._told = time.monotonic()


class Campaign:
    """One shard of one property.

    Args:
        index: Which shard of its property.
        shards: How many shards of all properties share a wall-clock budget.
    """

    def __init__(self, worker: Worker, *, index: int, shards: int) -> None:
        self._worker = worker
        self._index = index
        self._shards = shards

    def search(self, target: str, *, origin: Origin, share: float = 1.0) -> None:
        """Search this shard for faults of a target that are not in the ledger.

        A shard whose cases have not met every boundary that its property must meet goes
        on for a while, so that rare ones need no large share.

        Faults on contract input are told and saved, but fail a strict run only.

        Args:
            target: The target's name.
            origin: Which cases are drawn.
            share: Fraction of the profile's cases, such that each property takes
                about as long as others.

        Raises:
            TargetAbsent: When the tree has no such code path.
            NewFaults: When it found faults that break the run.
        """
        worker, run = self._worker, self._worker.run
        shard = f"{target}/{origin}/{self._index}"
        try:
            rooms = worker.present(target)
        except TargetAbsent as error:
            worker.write(Absent(target=target, reason=str(error)))
            raise
        budget = math.ceil(run.profile.cases * share / run.profile.shards)
        stop = self._stop_time()
        results: list[SearchResult] = []
        while (
            not results
            or time.monotonic() < stop
            or (len(results) < EXTENSIONS_MAX and self._unmet(rooms, origin, results))
        ):
            pace = _Pace(worker, shard)
            results.append(
                search(
                    cases=rooms.cases(origin=origin),
                    judge=worker.judge(rooms),
                    seed=derived_seed(run.seed, shard, len(results)),
                    budget=budget,
                    silenced=run.silenced
                    | {f.violation.key.id for r in results for f in r.faults},
                    shrink_cases=_shrink_cases(run.profile, share),
                    on_case=pace,
                    on_fault=lambda fault: worker.found(shard, rooms, fault),
                )
            )
            pace.tell()
        worker.tell_culprits(shard)
        skips: Counter[str] = sum((each.skips for each in results), start=Counter())
        for reason, cases in sorted(skips.items()):
            worker.write(Skipped(what=f"{target}/{origin}", reason=reason, cases=cases))
        worker.write(_finished(shard, results))
        if origin == "wired" or run.strict:
            faults = [fault for result in results for fault in result.faults]
            if faults:
                raise NewFaults("\n".join(_line(fault) for fault in faults))

    def _unmet(self, rooms: Rooms, origin: Origin, results: list[SearchResult]) -> bool:
        """Whether a boundary was met less often than this shard owes its property."""
        profile = self._worker.run.profile
        met = sum((each.labels for each in results), start=Counter[str]())
        owed = math.ceil(profile.labels_min / profile.shards)
        return any(
            met[label] < owed
            for law in rooms.invariants
            for label in law.labels_needed(origin) or ()
        )

    def _stop_time(self) -> float:
        """When to begin no further repetition; a moment past for most profiles."""
        run = self._worker.run
        if run.profile.minutes is None:
            return 0.0
        slice_s = run.profile.minutes * 60 * run.workers / self._shards
        return time.monotonic() + slice_s


def _line(fault: Fault) -> str:
    violation = fault.violation
    return f"{violation.key.id} {violation.invariant}: {violation.message}"


def _shrink_cases(profile: Profile, share: float) -> int:
    return max(50, math.ceil(profile.shrink_cases * min(1.0, math.sqrt(share))))


def _finished(shard: str, results: list[SearchResult]) -> ShardFinished:
    judged: Counter[str] = sum((each.judged for each in results), start=Counter())
    labels: Counter[str] = sum((each.labels for each in results), start=Counter())
    return ShardFinished(
        shard=shard,
        cases=sum(result.cases for result in results),
        judged=dict(sorted(judged.items())),
        labels=dict(sorted(labels.items())),
        seconds=sum(result.seconds for result in results),
    )


def find_controls(worker: Worker, target: str) -> bool:
    """Look for every planted fault of a target; a run that misses one is void.

    A plant that does not fit the tree, whose line somebody has changed, is passed over
    as long as another one fits.
    """
    try:
        rooms = worker.present(target)
    except TargetAbsent as error:
        worker.write(Absent(target=target, reason=str(error)))
        return True
    controls: tuple[Control, ...] = rooms_module.target_module(target).CONTROLS
    spent, planted = 0, 0
    missed: list[str] = []
    unfit: list[str] = []
    for control in controls:
        try:
            result = find_control(
                worker.executor,
                rooms,
                control,
                seed=worker.run.seed,
                silenced=worker.run.silenced,
            )
        except EditError as error:
            unfit.append(f"{control.name}: cannot be planted: {error}")
            continue
        planted += 1
        spent += result.cases
        if not result.faults:
            missed.append(f"{control.name}: not found within {control.cases} cases")
    if not controls:
        missed.append("the target plants none; add one to its CONTROLS")
    found = planted > 0 and not missed
    worker.write(
        ControlFinished(
            name=target,
            found=found,
            cases=spent,
            message="; ".join((*missed, *unfit)),
        )
    )
    return found


def find_canary(worker: Worker) -> bool:
    """Look for the property that is always false."""
    result = search_canary(derived_seed(worker.run.seed, "canary"))
    found = sings(result)
    worker.write(
        ControlFinished(
            name="canary",
            found=found,
            cases=result.cases,
            message="" if found else f"not found and shrunk: {result.faults}",
        )
    )
    return found
