"""Findings, replays and controls of a run, from what was heard of them.

A fault that was found often is shown by its smallest case, a shrunk one before others;
one that only a killed worker saw, and nobody shrank, is kept as it was first seen.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from reports.document import Control, ControlOutcome, Finding, Replay, Standing, Trouble
from reports.events import (
    Absent,
    ControlFinished,
    Found,
    LedgerRecord,
    Replayed,
    RunStarted,
)
from reports.heard import Heard

# When machines disagree about a saved fault, the first of these is shown.
_OUTCOMES = ("REPRODUCED", "ERRORED", "FIXED", "NOT_APPLICABLE")


def folded_findings(heard: Heard) -> tuple[Finding, ...]:
    """One finding for each fault that was found or whose saved case reproduced."""
    found: dict[str, list[Found]] = defaultdict(list)
    for event in heard.of(Found):
        found[event.id].append(event)
    reproduced: dict[str, list[Replayed]] = defaultdict(list)
    for replayed in heard.of(Replayed):
        if replayed.outcome == "REPRODUCED":
            reproduced[replayed.id].append(replayed)
    return tuple(
        _finding(heard, found.get(id_, []), reproduced.get(id_, []))
        for id_ in sorted(found.keys() | reproduced.keys())
    )


def _finding(
    heard: Heard, found: Sequence[Found], reproduced: Sequence[Replayed]
) -> Finding:
    sources = {event.source for event in found} | ({"replay"} if reproduced else set())
    if not found:
        return _replayed_finding(heard, reproduced[0], sources)
    best = min(found, key=_smallness)
    saved = best.saved or min((e.saved for e in found if e.saved), default="")
    record = heard.ledger.get(best.id)
    return Finding(
        id=best.id,
        invariant=best.invariant,
        target=best.target,
        origin=best.origin,
        site=best.site,
        exception=best.exception,
        cause=" ".join(best.message.split()),
        evidence=dict(sorted(best.evidence.items())),
        case=best.case,
        shrunk=best.shrunk,
        fix=best.fix,
        saved=saved,
        before_characters=_before(found),
        command=(
            _replay_command(best.id)
            if saved or reproduced
            else _run_command(heard, best.source)
        ),
        standing=_standing(record),
        link=record.link if record else "",
        sources=tuple(sorted(sources)),
    )


def _before(found: Sequence[Found]) -> int:
    """Length of the case that was saved before the run; 0 when the run saved the first.

    Shards may have saved ever smaller ones, each over that of another.
    """
    lengths = [each.before_characters for each in found if each.saved]
    return max(lengths) if lengths and min(lengths) > 0 else 0


def _replayed_finding(heard: Heard, replayed: Replayed, sources: set[str]) -> Finding:
    """A saved fault of which only its outcome was heard."""
    record = heard.ledger.get(replayed.id)
    return Finding(
        id=replayed.id,
        invariant=replayed.invariant,
        target=replayed.target,
        origin=replayed.origin,
        site="",
        exception="",
        cause=" ".join(replayed.message.split()),
        evidence={},
        case="",
        shrunk=True,
        fix="",
        saved="",
        before_characters=0,
        command=_replay_command(replayed.id),
        standing=_standing(record),
        link=record.link if record else "",
        sources=tuple(sorted(sources)),
    )


def _smallness(event: Found) -> tuple[bool, int, str, bytes]:
    return (not event.shrunk, len(event.case), event.case, msgspec.json.encode(event))


def _standing(record: LedgerRecord | None) -> Standing:
    if record is None:
        return "new"
    return "regressed" if record.expected == "fixed" else "known"


def _replay_command(id_: str) -> str:
    return f"python -m reproducers replay {id_}"


def _run_command(heard: Heard, shard: str) -> str:
    """What runs the cases of this shard again: its machine's command, with the seed."""
    planners: list[RunStarted] = [s for s in heard.starts if shard in s.shards]
    for start in planners or heard.starts:
        repeated = "--seed" in start.command
        return start.command if repeated else f"{start.command} --seed {start.seed}"
    return ""


def folded_replays(heard: Heard) -> tuple[tuple[Replay, ...], list[Trouble]]:
    """One row for each saved fault that was replayed or was to be."""
    replayed: dict[str, list[Replayed]] = defaultdict(list)
    for event in heard.of(Replayed):
        replayed[event.id].append(event)
    troubles = [
        Trouble(
            where=id_,
            message="its replays disagree on the same tree: "
            + ", ".join(sorted({event.outcome for event in same})),
        )
        for id_, same in sorted(replayed.items())
        if len({event.outcome for event in same}) > 1
    ]
    planned = {id_ for start in heard.starts for id_ in start.replays}
    return tuple(
        _replay(heard, id_, replayed.get(id_, []))
        for id_ in sorted(planned | replayed.keys())
    ), troubles


def _replay(heard: Heard, id_: str, events: Sequence[Replayed]) -> Replay:
    record = heard.ledger.get(id_)
    expected = record.expected if record else ""
    if not events:
        return Replay(
            id=id_,
            target="",
            invariant="",
            origin="",
            outcome="NOT_RUN",
            message="",
            expected=expected,
        )
    event = min(events, key=lambda e: _OUTCOMES.index(e.outcome))
    return Replay(
        id=id_,
        target=event.target,
        invariant=event.invariant,
        origin=event.origin,
        outcome=event.outcome,
        message=" ".join(event.message.split()),
        expected=expected,
    )


def folded_controls(heard: Heard) -> tuple[Control, ...]:
    """One row for each control; found means found by everybody who looked."""
    finished: dict[str, list[ControlFinished]] = defaultdict(list)
    for event in heard.of(ControlFinished):
        finished[event.name].append(event)
    planned = {name for start in heard.starts for name in start.controls}
    absent = {each.target for each in heard.of(Absent)}
    controls = []
    for name in sorted(planned | finished.keys()):
        events = finished.get(name)
        if events is None:
            outcome: ControlOutcome = "absent" if name in absent else "not run"
            controls.append(Control(name=name, outcome=outcome, cases=0, message=""))
            continue
        worst = min(events, key=lambda e: (e.found, -e.cases, e.message))
        controls.append(
            Control(
                name=name,
                outcome="found" if worst.found else "not found",
                cases=worst.cases,
                message=" ".join(worst.message.split()),
            )
        )
    return tuple(controls)
