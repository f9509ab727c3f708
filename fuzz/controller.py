"""The process that a person started: run folder, progress, report, verdict.

Everything it knows at the end it reads from the event files, so that
`python -m reports show` makes the same report when this process was killed.
"""

import time
from typing import Any, NoReturn, Protocol, TextIO

import pytest
from rich.console import Console

from fuzz.campaign import Run, Saved, Worker
from fuzz.description import run_started, targets_of
from fuzz.edits import Edit
from fuzz.preflight import check_imports
from fuzz.progress import Watcher
from fuzz.rooms import Rooms, RoomsError
from fuzz.search import Fault
from fuzz.trees import TreeError
from invariants.model import FaultKey
from reports import store
from reports.decide import Decision, decide
from reports.document import Report
from reports.events import EventLog, LedgerRecord, Problem, Replayed, RunFinished
from reports.terminal import render

FINDING = ("kvfuzz", "finding")
IMPORT_TOLD_AFTER_S = 2.0
IMPORT_TOLD_EVERY_S = 10.0


class LedgerUnusable(Exception):
    """The ledger of known faults cannot be read; says where and what to do."""


class SavedFaults(Protocol):
    """What the plugin asks of the room of reproducers; `conftest.py` provides it."""

    def ids(self) -> tuple[str, ...]:
        """Ids of the saved faults."""

    def ledger(self, version: str) -> tuple[LedgerRecord, ...]:
        """The ledger as it speaks of a release.

        Raises:
            LedgerUnusable: When it cannot be read.
        """

    def save(self, worker: Worker, rooms: Rooms, fault: Fault) -> Saved:
        """Save a fault's reproducer and try its fix."""

    def cure(self, worker: Worker, rooms: Rooms, key: FaultKey) -> tuple[Edit, ...]:
        """Edits that cure a saved fault on the worker's tree, none where none do."""

    def replay(self, worker: Worker, fault_id: str) -> Replayed:
        """Run a saved fault on the worker's tree."""


SAVED_FAULTS = pytest.StashKey[SavedFaults]()


class Controller:
    """A plugin object, registered in the controlling process of an armed run."""

    def __init__(self, config: pytest.Config, run: Run, *, saved: SavedFaults) -> None:
        self._config = config
        self._run = run
        self._saved = saved
        self._log = EventLog(run.folder / "events-controller.jsonl")
        self._watcher: Watcher | None = None
        self._started = time.monotonic()
        self._described = False
        self._outcome: tuple[Report, Decision] | None = None

    @property
    def run(self) -> Run:
        """What every process of the run is to know."""
        return self._run

    def describe(self, node_ids: list[str]) -> None:
        """Write the first event: what is to run. Later calls say the same."""
        if self._described:
            return
        self._described = True
        try:
            event = run_started(
                self._run,
                node_ids=node_ids,
                ledger=self._saved.ledger(self._run.tree.version),
                num_shards=self._config.getoption("--num-shards"),
                shard_id=self._config.getoption("--shard-id"),
            )
        except RoomsError as error:
            self._refuse("targets", error)
        self._log.write(event)
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        tell_at_s = IMPORT_TOLD_AFTER_S

        def tell(what: str, seconds: float) -> None:
            nonlocal tell_at_s
            if reporter is not None and seconds >= tell_at_s:
                tell_at_s = seconds + IMPORT_TOLD_EVERY_S
                reporter.write_line(
                    f"kvfuzz: trying to import {what} ({seconds:.0f} s)"
                )

        try:
            check_imports(
                self._run.tree,
                targets=targets_of(event),
                target_folders=self._run.target_folders,
                on_wait=tell,
            )
        except TreeError as error:
            self._refuse("tree", error)
        if reporter is not None:
            self._watcher = Watcher(self._run.folder, out=_terminal(reporter))
            self._watcher.start()

    def _refuse(self, where: str, error: Exception) -> NoReturn:
        """End a run that cannot begin, and let its report say why."""
        self._log.write(Problem(where=where, message=str(error)))
        pytest.exit(f"kvfuzz: {error}", returncode=2)

    def finish(self) -> int:
        """Fold the events into the report; give the exit code, 2 without a report."""
        if self._watcher is not None:
            self._watcher.stop()
        try:
            self._log.write(RunFinished(seconds=time.monotonic() - self._started))
            self._log.close()
            report = store.finish(self._run.folder)
        except (store.ReportError, OSError) as error:
            self._tell(
                f"kvfuzz: the report of this run cannot be written: {error}. Make room "
                "there or set KVFUZZ_REPORTS to a folder that can be written; `python "
                f"-m reports show {self._run.id}` shows what was kept of it"
            )
            return 2
        decision = decide(report, strict=self._run.strict)
        self._outcome = (report, decision)
        return decision.exit

    def _tell(self, line: str) -> None:
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(line)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Without xdist, this process has collected what will run."""
        if session.items:
            self.describe([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Hand the run to an xdist worker."""
        node.workerinput["kvfuzz"] = self._run.to_json()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:  # noqa: ARG002 (pytest names the arguments)
        """With xdist, the first worker that has collected tells what will run."""
        self.describe(ids)

    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, str] | None:
        """No letters for shards, the watcher shows more; findings are no failures."""
        told = report.when == "call" or report.outcome != "passed"
        finding = _is_finding(report)
        if finding and self._config.option.verbose > 0:
            return "finding", "F", "FINDING"
        if told and self._config.option.verbose < 1:
            return "finding" if finding else report.outcome, "", ""
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure that is not a finding, so that the run cannot pass."""
        if report.failed and not _is_finding(report):
            self._record(report.nodeid, report.longreprtext)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Record a file that could not be collected."""
        if report.failed:
            self._record(report.nodeid, report.longreprtext)

    def _record(self, where: str, text: str) -> None:
        lines = [line for line in text.splitlines() if line.strip()]
        message = "\n".join(lines[-12:])[-2_000:]
        self._log.write(Problem(where=where, message=message))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Make the report; its verdict is the exit code."""
        session.exitstatus = self.finish()

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The last screen."""
        if self._outcome is None:
            return
        report, decision = self._outcome
        terminalreporter.ensure_newline()
        render(report, decision, Console(file=_terminal(terminalreporter)))


def _is_finding(report: pytest.TestReport | pytest.CollectReport) -> bool:
    # The last screen asks for the status of files that could not be collected as well.
    if isinstance(report, pytest.CollectReport):
        return False
    return FINDING in map(tuple, report.user_properties)


def _terminal(reporter: Any) -> TextIO:
    """The stream that pytest writes to, which its capturing leaves alone."""
    stream: TextIO = reporter._tw._file  # noqa: SLF001 (pytest gives no other way)
    return stream
