"""The events of a run: one JSON line each, written as they happen.

Each process appends to a file of its own below the run's folder, so what it had seen
survives its death; the report is a fold over all lines, in any order.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal

import msgspec

FORMAT_VERSION = 1

Origin = Literal["wired", "contract"]
ORIGINS: tuple[Origin, ...] = ("wired", "contract")
Expected = Literal["affected", "fixed", "unknown"]
Outcome = Literal["REPRODUCED", "FIXED", "ERRORED", "NOT_APPLICABLE"]


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base of all events; the JSON field ``event`` holds the class's tag."""


class CatalogueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An invariant as the report needs it; None labels: not judged for that origin."""

    id: str
    target: str
    statement: str
    severity: str
    wired: tuple[str, ...] | None
    contract: tuple[str, ...] | None


class TreeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The exact subject: what was asked for, what it is, its content hash."""

    spec: str
    version: str
    digest: str
    patches: tuple[str, ...]
    notes: tuple[str, ...]


class LedgerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A finding known to be open.

    Attributes:
        expected: Whether this tree is recorded as affected: "affected", "fixed", or
            "unknown" for a tree whose version the ledger does not speak of.
    """

    id: str
    link: str
    summary: str
    expected: Expected


class RunStarted(_Event, frozen=True, kw_only=True, tag="run-started"):
    """First event of a run: what will run, so that a report can tell what never did.

    Attributes:
        properties: ``target/origin`` of each property selected for this run.
        shards: ``target/origin/index`` of each shard this machine is to run.
        replays: Ids of the saved faults to be replayed.
        controls: Names of the controls to be found.
        target_folders: Folders of users' own targets, absolute.
        labels_min: How often each needed label must have been seen.
    """

    format_version: Literal[1]
    run: str
    profile: str
    seed: int
    strict: bool
    labels_min: int
    num_shards: int
    shard_id: int
    tree: TreeRecord
    torch: str
    triton: str
    hypothesis: str
    python: str
    platform: str
    command: str
    target_folders: tuple[str, ...] = ()
    catalogue: tuple[CatalogueEntry, ...]
    properties: tuple[str, ...]
    shards: tuple[str, ...]
    replays: tuple[str, ...]
    controls: tuple[str, ...]
    ledger: tuple[LedgerRecord, ...]
    started_unix_s: float


class WorkerStarted(_Event, frozen=True, kw_only=True, tag="worker-started"):
    """A process has activated the tree and imported what its cases need."""

    worker: str
    startup_s: float


class WorkerFinished(_Event, frozen=True, kw_only=True, tag="worker-finished"):
    """A process has ended its isolating processes; `isolation_s` went on their starts.

    That time lies within the shards', for they start when a case first needs them.
    """

    worker: str
    isolation_s: float


class Progress(_Event, frozen=True, kw_only=True, tag="progress"):
    """Cases run in a shard since its previous progress event; for watching only."""

    shard: str
    cases: int


class Found(_Event, frozen=True, kw_only=True, tag="found"):
    """A violation, as first seen (shrunk false) and as shrunk.

    Attributes:
        source: Shard, or ``replay``.
        id: The fault's id.
        case: The case's canonical JSON.
        saved: Path of the reproducer below the project, "" when not saved yet.
        fix: "verified" (the fixed implementation passes on this case), "none", or
            "does not hold", "does not fit this tree", "cannot be told", each with why.
        before_characters: Length of the case that had been saved before, 0 for none.
    """

    source: str
    id: str
    invariant: str
    target: str
    origin: Origin
    site: str
    exception: str
    message: str
    evidence: dict[str, int | str | list[int]]
    case: str
    shrunk: bool
    saved: str
    fix: str
    before_characters: int = 0


class ShardFinished(_Event, frozen=True, kw_only=True, tag="shard-finished"):
    """Totals of a shard.

    Attributes:
        judged: Cases in which each invariant applied and was checked, by id.
        labels: Cases that showed each coverage label.
    """

    shard: str
    cases: int
    judged: dict[str, int]
    labels: dict[str, int]
    seconds: float


class Replayed(_Event, frozen=True, kw_only=True, tag="replayed"):
    """A saved fault was run on this tree."""

    id: str
    target: str
    invariant: str
    origin: Origin
    outcome: Outcome
    message: str


class ControlFinished(_Event, frozen=True, kw_only=True, tag="control-finished"):
    """A planted fault was looked for; one that is not found voids the run."""

    name: str
    found: bool
    cases: int
    message: str


class Skipped(_Event, frozen=True, kw_only=True, tag="skipped"):
    """Something that was designed to run and did not, with the reason that fired.

    Attributes:
        what: The property, or whatever else was skipped.
        cases: How many cases of it.
    """

    what: str
    reason: str
    cases: int = 1


class Absent(_Event, frozen=True, kw_only=True, tag="absent"):
    """The tree has no such code path: said by the target, and no fault of the run.

    Attributes:
        reason: In the target's own words.
    """

    target: str
    reason: str


class Problem(_Event, frozen=True, kw_only=True, tag="problem"):
    """Something that keeps the run from telling: exit 2."""

    where: str
    message: str


class RunFinished(_Event, frozen=True, kw_only=True, tag="run-finished"):
    """Last event: the run ended by itself."""

    seconds: float


Event = (
    RunStarted
    | WorkerStarted
    | WorkerFinished
    | Progress
    | Found
    | ShardFinished
    | Replayed
    | ControlFinished
    | Skipped
    | Absent
    | Problem
    | RunFinished
)


class EventLog:
    """Appends events to one file, a line each, flushed at once."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab", buffering=0)

    def write(self, event: Event) -> None:
        """Append one event; a single write call keeps lines whole."""
        self._file.write(msgspec.json.encode(event) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_events(folder: Path) -> Iterator[Event]:
    """All events below a run's folder, file by file.

    A last line without its newline was cut by a killed process and is passed over;
    any other line that cannot be read becomes a `Problem`, so that it is not lost.
    """
    for path in sorted(folder.glob("*.jsonl")):
        if not path.is_file():
            yield Problem(where=path.name, message="not a file of events")
            continue
        content = path.read_bytes()
        complete, _, _ = content.rpartition(b"\n")
        for number, line in enumerate(complete.splitlines(), start=1):
            try:
                yield msgspec.json.decode(line, type=Event)
            except (msgspec.DecodeError, RecursionError) as error:
                yield Problem(
                    where=f"{path.name}:{number}",
                    message=f"not an event of format {FORMAT_VERSION}: {error}",
                )
