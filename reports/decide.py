"""The exit code of a run or a gate, with every reason for it.

1 means that something is certainly wrong, 2 that the run could not tell. When both
apply 1 wins, for a new finding stays true whatever else is missing, and the reasons for
2 are listed as well. 0 means that nothing of either kind was seen.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from reports.document import Finding, Report, Row, property_name
from reports.text import counted


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why the exit code is not 0.

    Attributes:
        kind: ``finding`` and ``promote`` mean 1, ``untold`` means 2.
        id: Of the fault it speaks of, "" when it speaks of none.
    """

    kind: Literal["finding", "promote", "untold"]
    id: str
    text: str

    @property
    def exit(self) -> Literal[1, 2]:
        """The exit code this reason alone would give."""
        return 2 if self.kind == "untold" else 1


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """An exit code, why it is that, and what a reader should know besides."""

    exit: Literal[0, 1, 2]
    reasons: tuple[Reason, ...]
    notes: tuple[str, ...]


def decide(report: Report, *, strict: bool, whole: bool = False) -> Decision:
    """Judge a report by the exit table of the README.

    Findings under contract origin, saved ones that reproduce included, are notes unless
    ``strict``. A finding that the ledger calls fixed on this tree counts as new.

    Args:
        report: Any report, an unfinished one too.
        strict: Whether findings under contract origin break as wired ones do.
        whole: Whether every part must be there, as a gate wants: each target in the
            tree, each row run, all machines' shards, a control, each ledger entry of
            this tree replayed. A
            person who selects one property, or one of several machines, does not.
    """
    reasons = (
        *_breaks(report, strict=strict),
        *_promotions(report),
        *_unfinished(report),
        *_unproven(report),
        *(_parts_missing(report) if whole else ()),
    )
    return decided(reasons, tuple(_notes(report, strict=strict, whole=whole)))


def decided(reasons: tuple[Reason, ...], notes: tuple[str, ...]) -> Decision:
    """The decision that these reasons make; 1 wins over 2."""
    exits = {reason.exit for reason in reasons}
    return Decision(exit=min(exits, default=0), reasons=reasons, notes=notes)


def breaks(finding: Finding, *, strict: bool) -> bool:
    """Whether a finding by itself means exit 1."""
    return finding.standing != "known" and (strict or finding.origin == "wired")


def _untold(text: str, *, id_: str = "") -> Reason:
    return Reason(kind="untold", id=id_, text=text)


def _breaks(report: Report, *, strict: bool) -> Iterator[Reason]:
    for finding in report.findings:
        if breaks(finding, strict=strict):
            yield Reason(kind="finding", id=finding.id, text=_named(finding))


def _named(finding: Finding) -> str:
    news = (
        f"fails again, recorded as fixed on this tree ({finding.link})"
        if finding.standing == "regressed"
        else "new finding"
    )
    return f"{news}: {finding.id}, {finding.invariant} ({finding.origin})"


def _promotions(report: Report) -> Iterator[Reason]:
    alive = {finding.id for finding in report.findings}
    for replay in report.replays:
        fixed = replay.outcome == "FIXED" and replay.expected == "affected"
        if fixed and replay.id not in alive:
            yield Reason(
                kind="promote",
                id=replay.id,
                text=f"{replay.id} no longer fails on this tree, and the ledger says "
                "that it does: promote it (record this release as fixed)",
            )


def _unfinished(report: Report) -> Iterator[Reason]:
    for problem in report.problems:
        yield _untold(f"problem in {problem.where}: {_gist(problem.message)}")
    for totals in report.properties:
        absent = any(each.target == totals.target for each in report.absences)
        if totals.unfinished and not (absent and totals.cases == 0):
            yield _untold(
                f"{len(totals.unfinished)} of {totals.shards} shards of "
                f"{property_name(totals.target, totals.origin)} never finished: "
                f"{', '.join(totals.unfinished)}"
            )
    if report.machines and not report.finished:
        yield _untold("the run did not end by itself: no run-finished event")
    # A fault whose code the tree lacks was looked for, and nothing of it ran.
    nothing = {"NOT_RUN", "NOT_APPLICABLE"}
    ran = report.cases or any(each.outcome not in nothing for each in report.replays)
    if not ran:
        yield _untold("nothing ran: no case of any property, no saved fault")


def _gist(message: str) -> str:
    """The line of a message that tells most: pytest's last error line, or the last."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return (errors or lines)[-1]


def _unproven(report: Report) -> Iterator[Reason]:
    for row in report.rows:
        if _is_vacuous(row, report):
            lack = _lack(row, report)
            yield _untold(f"vacuous: {row.invariant} ({row.origin}) {lack}")
    for control in report.controls:
        if control.outcome in {"not found", "not run"}:
            told = f": {control.message}" if control.message else ""
            yield _untold(f"control {control.outcome}: {control.name}{told}")
    for replay in report.replays:
        if replay.outcome == "ERRORED":
            yield _untold(
                f"saved fault {replay.id} could not be replayed: {replay.message}",
                id_=replay.id,
            )
        elif replay.outcome == "NOT_RUN":
            yield _untold(f"saved fault {replay.id} was not replayed", id_=replay.id)
        elif replay.outcome == "NOT_APPLICABLE" and replay.expected == "affected":
            yield _untold(
                f"the ledger says that {replay.id} fails on this tree, which has no "
                f"such code path: correct its entry ({replay.message})",
                id_=replay.id,
            )


def _is_vacuous(row: Row, report: Report) -> bool:
    """A pass of this row would mean nothing; said of a row with findings too.

    Not asked of a row that an unfinished shard or machine may still fill.
    """
    if row.verdict != "violated":
        return row.verdict == "vacuous"
    selected = any(
        (each.target, each.origin) == (row.target, row.origin) and not each.unfinished
        for each in report.properties
    )
    lacking = row.cases == 0 or bool(row.labels_missing)
    return selected and lacking and not report.machines_missing


def _lack(row: Row, report: Report) -> str:
    if row.cases == 0:
        return "was judged in no case"
    seen = ", ".join(
        f"{label} ({row.labels[label]} of {report.labels_min})"
        for label in row.labels_missing
    )
    return f"never met its boundary often enough: {seen}"


def _parts_missing(report: Report) -> Iterator[Reason]:
    if report.machines_missing:
        ids = ", ".join(map(str, report.machines_missing))
        yield _untold(
            f"{len(report.machines_missing)} of {report.num_shards} machines' runs are "
            f"missing (--shard-id {ids}): merge them first"
        )
    unrun: dict[str, int] = {}
    for row in report.rows:
        if row.verdict == "not run":
            name = property_name(row.target, row.origin)
            unrun[name] = unrun.get(name, 0) + 1
    for name, rows in unrun.items():
        yield _untold(f"not run: {name} ({counted(rows, 'row')}) was not selected")
    for absence in report.absences:
        # A change that renames what is tested must not pass for want of a test.
        yield _untold(
            f"absent in this tree: {absence.target}: {absence.reason}; find its new "
            "place in the target, or leave the target out of the run"
        )
    if report.machines and not report.controls:
        yield _untold("no control was looked for: nothing shows that faults are found")
    told = {each.id for each in report.replays} | {each.id for each in report.findings}
    for record in report.ledger:
        if record.expected == "affected" and record.id not in told:
            yield _untold(
                f"ledger entry {record.id} was not replayed: whether it still fails is "
                "not known",
                id_=record.id,
            )


def _notes(report: Report, *, strict: bool, whole: bool) -> Iterator[str]:
    for finding in report.findings:
        if finding.standing != "known" and not breaks(finding, strict=strict):
            yield f"reported, breaks only with --strict: {_named(finding)}"
    if not whole:
        for absence in report.absences:
            yield f"absent in this tree: {absence.target}: {absence.reason}"
    for replay in report.replays:
        if replay.expected == "unknown" and replay.outcome in {"REPRODUCED", "FIXED"}:
            fate = "fails" if replay.outcome == "REPRODUCED" else "does not fail"
            yield f"{replay.id} {fate} here, and the ledger does not speak of this tree"
    alive = {each.id for each in report.findings}
    for replay in report.replays:
        if replay.outcome == "FIXED" and replay.id in alive:
            yield f"{replay.id}: its saved case passes, and the search found it again"
    yield from _replaced(report)
    gone = [each.id for each in report.replays if each.outcome == "NOT_APPLICABLE"]
    if gone:
        yield f"saved faults whose code path is not in this tree: {', '.join(gone)}"
    if report.machines_missing and not whole:
        yield (
            f"{len(report.machines)} of {report.num_shards} machines: coverage is "
            "judged when all are merged (python -m reports merge)"
        )


def _replaced(report: Report) -> Iterator[str]:
    """The saved cases that the run rewrote, for they may be under version control."""
    for finding in report.findings:
        if 0 < len(finding.case) < finding.before_characters:
            yield (
                f"{finding.saved}: a smaller case of the same fault took the saved "
                f"one's place, {len(finding.case):,} characters instead of "
                f"{finding.before_characters:,}"
            )
