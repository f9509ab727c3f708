"""What a person watches while a run goes on: cases, rate and findings per target.

A thread of the controller reads the event files as they grow. In a terminal it redraws
a small table in place; elsewhere it prints a line now and then.
"""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table

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
    """Of one property: cases so far, shards done of shards planned, faults by id."""

    shards: int = 0
    finished: int = 0
    cases: int = 0
    faults: set[str] = field(default_factory=set)


class Tally:
    """Folds events into what is shown; knows nothing of terminals."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.workers = 0
        self.notes: list[str] = []
        self.counts: dict[str, _Count] = {}

    def add(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case RunStarted():
                for shard in event.shards:
                    self._of(shard).shards += 1
            case WorkerStarted():
                self.workers += 1
            case Progress():
                self._of(event.shard).cases += event.cases
            case ShardFinished():
                self._of(event.shard).finished += 1
            case Found() if event.source != "replay":
                self._of(event.source).faults.add(event.id)
            case Replayed() if event.outcome in ("REPRODUCED", "ERRORED"):
                self.notes.append(f"{event.outcome} {event.id}")
            case ControlFinished() if not event.found:
                self.notes.append(f"control not found: {event.name}")

    def _of(self, shard: str) -> _Count:
        return self.counts.setdefault(shard.rpartition("/")[0], _Count())

    def lines(self) -> list[tuple[str, str, str, str, str]]:
        """Property, shards, cases, cases per second, faults: one row each."""
        seconds = max(1e-9, time.monotonic() - self.started)
        return [
            (
                name,
                f"{count.finished}/{count.shards}",
                f"{count.cases:,}",
                f"{count.cases / seconds:,.1f}",
                str(len(count.faults)),
            )
            for name, count in sorted(self.counts.items())
        ]

    def title(self) -> str:
        """Time so far, and what the workers are doing."""
        elapsed = int(time.monotonic() - self.started)
        state = f"{self.workers} ready" if self.workers else "importing vLLM"
        return f"{elapsed // 60}:{elapsed % 60:02} · workers: {state}"


class Watcher(threading.Thread):
    """Shows a run's progress until it is told to stop."""

    def __init__(self, folder: Path, *, out: TextIO) -> None:
        super().__init__(name="kvfuzz-progress", daemon=True)
        self._folder = folder
        self._console = Console(file=out)
        self._tally = Tally()
        self._offsets: dict[Path, int] = {}
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
                    live.update(self._table(), refresh=True)
        else:
            while not self._done.wait(LINE_S):
                self._read()
                self._console.print(self._line(), highlight=False, soft_wrap=True)

    def _read(self) -> None:
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(whole + newline)
            for line in whole.splitlines():
                self._tally.add(msgspec.json.decode(line, type=Event))

    def _table(self) -> Table:
        table = Table(title=self._tally.title(), title_justify="left", box=None)
        table.add_column("property")
        for name in ("shards", "cases", "cases/s", "faults"):
            table.add_column(name, justify="right")
        for row in self._tally.lines():
            table.add_row(*row)
        for note in self._tally.notes[-5:]:
            table.add_row(note)
        return table

    def _line(self) -> str:
        parts = [
            f"{name} {cases} cases ({rate}/s, {faults} faults)"
            for name, _, cases, rate, faults in self._tally.lines()
        ]
        return f"{self._tally.title()} · {' · '.join(parts)}"
