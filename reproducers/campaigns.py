"""The saved faults as a fuzzing run needs them: the ledger, replay, and saving."""

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from fuzz.campaign import Run, Saved, Worker
from fuzz.controller import LedgerUnusable
from fuzz.edits import Edit
from fuzz.rooms import Rooms, load
from fuzz.runtime import Runtime
from fuzz.search import Fault
from invariants.model import CaseError, FaultKey
from reports.events import LedgerRecord, Problem, Replayed
from reproducers import store
from reproducers.case_file import FoundOn
from reproducers.display import shown_path
from reproducers.flatten import ScriptError
from reproducers.ledger import KNOWN, Ledger, LedgerError
from reproducers.replay import fix_edits, replay, verify_fix


@dataclass(frozen=True, kw_only=True)
class SavedFaultStore:
    """The store and the ledger of this checkout, or those that the environment names.

    ``KVFUZZ_CASES`` moves the store, ``KVFUZZ_LEDGER`` the ledger.
    """

    cases: Path
    known: Path

    @staticmethod
    def from_environment() -> "SavedFaultStore":
        """The places that the environment names, else this package's own."""
        return SavedFaultStore(
            cases=Path(os.environ.get("KVFUZZ_CASES") or store.STORE),
            known=Path(os.environ.get("KVFUZZ_LEDGER") or KNOWN),
        )

    def ids(self) -> tuple[str, ...]:
        """Ids of all entries, those that replay will refuse included."""
        return tuple(sorted(entry.id for entry in store.entries(self.cases)))

    def ledger(self, version: str) -> tuple[LedgerRecord, ...]:
        """The ledger as it speaks of a release.

        Raises:
            LedgerUnusable: When it cannot be read.
        """
        try:
            entries = Ledger.load(self.known).entries
        except LedgerError as error:
            raise LedgerUnusable(str(error)) from error
        return tuple(
            LedgerRecord(
                id=entry.id,
                link=entry.link,
                summary=entry.summary,
                expected=entry.expected(version),
            )
            for entry in entries
        )

    def save(self, worker: Worker, rooms: Rooms, fault: Fault) -> Saved:
        """Try the fault's fix; save its reproducer unless a smaller one is there.

        What keeps it from being saved is told, and voids the run; the finding stays.
        """
        violation = fault.violation
        fix = verify_fix(worker.executor, rooms, fault.case, violation)
        laws = {invariant.id: invariant for invariant in rooms.invariants}
        try:
            kept = store.save(
                store=self.cases,
                invariant=laws[violation.invariant],
                violation=violation,
                case=fault.case,
                found_on=_found_on(worker.run),
                fix=fix,
            )
        except (CaseError, ScriptError, OSError) as error:
            where = f"saving {violation.key.id}"
            worker.write(Problem(where=where, message=str(error)))
            return Saved(path="", fix=fix, before_characters=0)
        return Saved(
            path=shown_path(kept.folder),
            fix=fix,
            before_characters=kept.before_characters,
        )

    def cure(self, worker: Worker, rooms: Rooms, key: FaultKey) -> tuple[Edit, ...]:
        """Edits that cure a saved fault on the worker's tree, none where none do.

        Its own case must have shown the fault, and passed with them, on that tree.
        """
        done = replay(key.id, worker.executor, store=self.cases)
        return fix_edits(rooms, key) if done.fix == "verified" else ()

    def replay(self, worker: Worker, fault_id: str) -> Replayed:
        """Run a saved fault on the worker's tree, both arms.

        The fault is told as found on its saved case, so that no report shows a larger
        one. Other faults that the case shows are told, and saved under their own ids.
        """
        done = replay(fault_id, worker.executor, store=self.cases)
        message = done.message
        if done.fixed is not None:
            message += f"; fixed arm: {done.fixed.status}"
        try:
            saved = store.read(self.cases, fault_id)
        except CaseError:
            return Replayed(
                id=fault_id,
                target="",
                invariant="",
                origin="contract",
                outcome="ERRORED",
                message=message,
            )
        if done.shown is not None or done.strays:
            rooms = load(saved.target)
            case = saved.typed_case(rooms.case)
            if done.shown is not None:
                fault = Fault(case=case, violation=done.shown, shrunk=True)
                place = Saved(
                    path=shown_path(self.cases / fault_id),
                    fix=done.fix,
                    before_characters=saved.size[0],
                )
                worker.found("replay", rooms, fault, saved=place)
            for violation in done.strays:
                if violation.key.id not in worker.run.silenced:
                    fault = Fault(case=case, violation=violation, shrunk=True)
                    worker.found("replay", rooms, fault)
        # Another fault in this one's place was told as such, which is all there is.
        replaced = done.outcome == "ERRORED" and bool(done.strays)
        return Replayed(
            id=fault_id,
            target=saved.target,
            invariant=saved.invariant,
            origin=saved.origin,
            outcome="NOT_APPLICABLE" if replaced else done.outcome,
            message=message,
        )


def _found_on(run: Run) -> FoundOn:
    return FoundOn(
        spec=run.tree.spec,
        version=run.tree.version,
        digest=run.tree.digest,
        patches=run.tree.patches,
        platform=Runtime().platform,
        torch=version("torch"),
        triton=version("triton"),
        python=platform.python_version(),
        hypothesis=version("hypothesis"),
        seed=run.seed,
    )
