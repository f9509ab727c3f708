"""Runs a saved case again: on the tree as it is, and with its fix applied.

An outcome is only given with proof: FIXED needs the real code to have run and the
fault's own law to have been checked.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.edits import Edit
from fuzz.execution import Executor, split_site
from fuzz.rooms import Rooms, RoomsError, load, target_module
from invariants.model import CaseError, FaultKey, Judgement, Violation
from reports.events import Outcome
from reproducers.case_file import Saved
from reproducers.fix import Fix
from reproducers.fixing import NoFix, fitting_fix
from reproducers.outcome import Arm, judged_arm
from reproducers.store import STORE, read

EXIT_STATUS: dict[Outcome, int] = {
    "REPRODUCED": 1,
    "FIXED": 0,
    "ERRORED": 2,
    "NOT_APPLICABLE": 0,
}


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What a saved case did on a tree.

    Attributes:
        message: The cause in one line.
        fixed: The run with the fix applied; None where the fault did not show.
        fix: What that says of the fix, as `verify_fix` does.
        shown: The saved fault as this tree showed it, None where it did not.
        others: Violations of other laws that the same case showed, a line each.
        strays: All violations that are not the saved fault, as values.
    """

    id: str
    outcome: Outcome
    message: str
    fixed: Arm | None
    others: tuple[str, ...]
    fix: str = ""
    shown: Violation | None = None
    strays: tuple[Violation, ...] = ()

    @property
    def exit_status(self) -> int:
        """0, 1 or 2; a fault that is gone where another shows is no clean 0."""
        status = EXIT_STATUS[self.outcome]
        return max(status, 1) if self.others else status


def errored(id_: str, message: str) -> Replay:
    """A replay that could not tell."""
    return Replay(id=id_, outcome="ERRORED", message=message, fixed=None, others=())


def replay(id_: str, executor: Executor, *, store: Path = STORE) -> Replay:
    """Replay a saved fault on the executor's tree, both arms.

    Anything that keeps it from telling becomes the outcome ERRORED, so that one bad
    case does not hide the others.

    Args:
        id_: Its ID.
        executor: With the tree activated.
        store: Folder of saved cases.
    """
    try:
        saved = read(store, id_)
        rooms = load(saved.target)
        case = saved.typed_case(rooms.case)
    except (CaseError, RoomsError) as error:
        return errored(id_, str(error))
    if saved.invariant not in {law.id for law in rooms.invariants}:
        return errored(
            id_,
            f"target {saved.target} has no invariant {saved.invariant} any more: "
            "remove the case, or give the law its name back",
        )
    try:
        return _replayed(saved, rooms, case, executor, store)
    except Exception as error:  # noqa: BLE001 - what escapes is the harness's own fault
        return errored(id_, f"{type(error).__name__}: {error}")


def _replayed(
    saved: Saved, rooms: Rooms, case: Any, executor: Executor, store: Path
) -> Replay:
    reason = target_module(saved.target).absent()
    if reason is not None:
        return Replay(
            id=saved.id,
            outcome="NOT_APPLICABLE",
            message=reason,
            fixed=None,
            others=(),
        )
    _, known_id = split_site(saved.site)
    judgement = executor.judge(
        rooms, case, silenced=frozenset({known_id}), cure=fix_edits
    )
    broken = judged_arm(judgement, saved.key)
    instead = {v.key.id for v in judgement.violations if v.invariant == saved.invariant}
    message = broken.message
    outcome: Outcome = "ERRORED"
    fixed, fix = None, ""
    if broken.status == "fails":
        outcome = "REPRODUCED"
        fixed, fix = _with_fix(
            executor, rooms, case, saved.key, before=lambda: judgement
        )
    elif broken.status == "holds":
        outcome = "FIXED"
    elif broken.status in ("absent", "unproven"):
        # The tree has no such code, or ends the case before its law applies.
        outcome = "NOT_APPLICABLE"
    elif broken.status == "differs" and all(_is_saved(store, id_) for id_ in instead):
        # A tree in which the same law breaks elsewhere: those faults have their own
        # cases, and this one's code was not reached.
        outcome = "NOT_APPLICABLE"
        message = f"on this tree the case shows {', '.join(sorted(instead))} instead"
    return Replay(
        id=saved.id,
        outcome=outcome,
        message=message,
        fixed=fixed,
        others=broken.others,
        fix=fix,
        shown=next((v for v in judgement.violations if v.key == saved.key), None),
        strays=tuple(v for v in judgement.violations if v.key != saved.key),
    )


def _is_saved(store: Path, id_: str) -> bool:
    try:
        read(store, id_)
    except CaseError:
        return False
    return True


def fixes_of(target: str) -> tuple[Fix, ...]:
    """The fixes of a target; none where nobody has written its file."""
    name = f"reproducers.fixes.{target}"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return ()
    fixes: tuple[Fix, ...] = module.FIXES
    return fixes


def fix_edits(rooms: Rooms, key: FaultKey) -> tuple[Edit, ...]:
    """The edits of a fault's fix, none where none fits the loaded tree."""
    try:
        return fitting_fix(fixes_of(rooms.name), key.site).edits
    except NoFix:
        return ()


def verify_fix(
    executor: Executor, rooms: Rooms, case: Any, violation: Violation
) -> str:
    """Whether the fixed implementation passes on a case that broke.

    The case must be clean with the fix applied, apart from faults of sites that the
    fix does not touch and that the case shows without it too.

    Args:
        executor: With the tree activated.
        rooms: The violation's target.
        case: Its case.
        violation: What the case showed.

    Returns:
        ``verified``; ``none`` where nobody has written a fix; else ``does not hold``,
        ``does not fit this tree`` or ``cannot be told``, a colon and why.
    """
    _, fix = _with_fix(
        executor,
        rooms,
        case,
        violation.key,
        before=lambda: executor.judge(rooms, case),
    )
    return fix


def _with_fix(
    executor: Executor,
    rooms: Rooms,
    case: Any,
    key: FaultKey,
    *,
    before: Callable[[], Judgement],
) -> tuple[Arm, str]:
    """The run with the fix applied, and what `verify_fix` says of it.

    ``before`` judges the case without the fix, where that is needed.
    """
    try:
        fix = fitting_fix(fixes_of(rooms.name), key.site)
    except NoFix as error:
        if not error.written:
            return Arm(status="unfit", message=str(error)), "none"
        todo = f"adapt the edit in reproducers/fixes/{rooms.name}.py to this tree"
        why = f"{error}; {todo}"
        return Arm(status="unfit", message=why), f"does not fit this tree: {why}"
    judgement = executor.judge(rooms, case, edits=fix.edits)
    arm = judged_arm(judgement, key)
    message = arm.message
    if arm.status == "unproven":
        message = _beyond_its_law(judgement, key)
    named = Arm(status=arm.status, message=f"{message} ({fix.name})", others=arm.others)
    harm = f"does not hold: with the fix ({fix.name}) "
    if arm.status in ("fails", "differs"):
        return named, harm + message
    if arm.others:
        known = {each.key for each in before().violations}
        for each in judgement.violations:
            if each.key not in known or each.site in fix.sites:
                return named, f"{harm}{each.invariant} is broken: {each.message}"
    if arm.status != "holds":
        return named, f"cannot be told: with the fix ({fix.name}) {message}"
    return named, "verified"


def _beyond_its_law(judgement: Judgement, key: FaultKey) -> str:
    """What a fix did with a case to which the broken law does not apply any more."""
    broken = {violation.invariant for violation in judgement.violations}
    held = ", ".join(sorted(judgement.judged - broken)) or "none"
    return (
        f"the tree refuses this case, or leaves the path on which {key.invariant} is "
        f"checked; laws that were checked and held: {held}"
    )
