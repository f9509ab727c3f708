"""What a person watches while a run goes on: cases, rate and faults per property.

A thread of the controller reads the event files as they grow. In a terminal it redraws
a small table in place; elsewhere it prints a line now and then.
"""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from reports.events import (
    ControlFinished,
    Event,
    Found,
    Progress,
    Replayed,
    RunStarted,
    ShardFinished,
    WorkerStarted,
)

REDRAW_S = 0.5
LINE_S = 15.0


@dataclass(kw_only=True)
class _Count:
    """Of one property: cases so far, shards done of shards planned, faults by id.

    ``began`` is when its first cases were told of, ``seen`` when its last ones were:
    its rate leaves out the time in which workers were at something else.
    """

    shards: int = 0
    finished: int = 0
    cases: int = 0
    began: float = 0.0
    seen: float = 0.0
    faults: set[str] = field(default_factory=set)

    @property
    def rate(self) -> float:
        """Cases per second while it was being run."""
        return self.cases / max(1.0, self.seen - self.began)


class Tally:
    """Folds events into what is shown; knows nothing of terminals."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.workers = 0
        self.replays, self.replayed = 0, 0
        self.controls, self.controlled = 0, 0
        self.expected: dict[str, str] = {}
        self.notes: list[str] = []
        self.counts: dict[str, _Count] = {}

    def add(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case RunStarted():
                self.replays += len(event.replays)
                self.controls += len(event.controls)
                self.expected |= {entry.id: entry.expected for entry in event.ledger}
                for shard in event.shards:
                    self._of(shard).shards += 1
            case WorkerStarted():
                self.workers += 1
            case Progress():
                count = self._of(event.shard)
                count.cases += event.cases
                count.seen = time.monotonic()
                count.began = count.began or count.seen - REDRAW_S
            case ShardFinished():
                self._of(event.shard).finished += 1
            case Found() if event.source != "replay":
                self._of(event.source).faults.add(event.id)
            case Replayed():
                self.replayed += 1
                self._note_replay(event)
            case ControlFinished():
                self.controlled += 1
                if not event.found:
                    self.notes.append(f"control not found: {event.name}")

    def _note_replay(self, event: Replayed) -> None:
        """Nothing is said of a fault that does what the ledger says of this tree."""
        if event.outcome == "ERRORED" or (
            event.outcome == "REPRODUCED" and self._is_new(event.id)
        ):
            self.notes.append(f"{event.outcome} {event.id}")

    def _is_new(self, fault: str) -> bool:
        return self.expected.get(fault, "") not in ("affected", "unknown")

    def _of(self, shard: str) -> _Count:
        return self.counts.setdefault(shard.rpartition("/")[0], _Count())

    def lines(self) -> list[tuple[str, str, str, str, str, str]]:
        """Property, shards, cases, cases per second, new and known faults."""
        return [
            (
                name,
                f"{count.finished}/{count.shards}",
                f"{count.cases:,}",
                f"{count.rate:,.1f}",
                str(sum(self._is_new(fault) for fault in count.faults)),
                str(sum(not self._is_new(fault) for fault in count.faults)),
            )
            for name, count in sorted(self.counts.items())
        ]

    def title(self) -> str:
        """Time so far, and what is done before and beside the search."""
        elapsed = int(time.monotonic() - self.started)
        return f"{elapsed // 60}:{elapsed % 60:02} · {self.state()}"

    def state(self) -> str:
        """What is done before and beside the search."""
        parts = [
            f"workers: {self.workers} ready" if self.workers else "importing vLLM",
        ]
        if self.replays:
            parts.append(f"saved faults replayed: {self.replayed}/{self.replays}")
        if self.controls:
            parts.append(f"controls: {self.controlled}/{self.controls}")
        return " · ".join(parts)


class Watcher(threading.Thread):
    """Shows a run's progress until it is told to stop."""

    def __init__(self, folder: Path, *, out: TextIO) -> None:
        super().__init__(name="kvfuzz-progress", daemon=True)
        self._folder = folder
        self._console = Console(file=out)
        self._tally = Tally()
        self._offsets: dict[Path, int] = {}
        self._told: tuple[str, ...] = ()
        self._done = threading.Event()

    def stop(self) -> None:
        """End the display and wait for the thread."""
        self._done.set()
        self.join()

    def run(self) -> None:
        """Read and show until stopped."""
        if self._console.is_terminal:
            with Live(
                console=self._console, transient=True, auto_refresh=False
            ) as live:
                while not self._done.wait(REDRAW_S):
                    self._read()
                    live.update(self._screen(), refresh=True)
        else:
            # Rates are of when events came: they are read as often as on a terminal.
            told = time.monotonic()
            while not self._done.wait(REDRAW_S):
                self._read()
                if time.monotonic() - told < LINE_S:
                    continue
                told = time.monotonic()
                if line := self._line():
                    self._console.print(line, highlight=False, soft_wrap=True)

    def _read(self) -> None:
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(whole + newline)
            for line in whole.splitlines():
                self._tally.add(msgspec.json.decode(line, type=Event))

    def _screen(self) -> Group:
        return Group(
            Text(self._tally.title()), self._table(), *map(Text, self._tally.notes[-5:])
        )

    def _table(self) -> Table:
        table = Table(box=None)
        table.add_column("property")
        for name in ("shards", "cases", "cases/s", "new", "known"):
            table.add_column(name, justify="right")
        for row in self._tally.lines():
            table.add_row(*row)
        return table

    def _line(self) -> str:
        """What has changed since the last line, "" when nothing has."""
        parts = tuple(
            f"{name} {cases} cases ({rate}/s, {new} new, {known} known)"
            for name, _, cases, rate, new, known in self._tally.lines()
            if cases != "0"
        )
        state = (*parts, self._tally.state())
        changed = [part for part in state if part not in self._told]
        self._told = state
        if not changed:
            return ""
        return " · ".join([self._tally.title(), *(p for p in parts if p in changed)])
