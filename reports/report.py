"""From events to the report: a pure fold that does not depend on their order.

What cannot be told (a shard that finished twice, machines that ran different trees)
becomes a problem of the document, never a guess.
"""

from collections import Counter
from collections.abc import Iterable

from reports.document import (
    FORMAT,
    FORMAT_VERSION,
    Absence,
    Machine,
    Report,
    Skip,
    Startup,
    Times,
    Trouble,
)
from reports.events import (
    Absent,
    Event,
    Problem,
    RunFinished,
    RunStarted,
    ShardFinished,
    Skipped,
    WorkerFinished,
    WorkerStarted,
)
from reports.findings import folded_controls, folded_findings, folded_replays
from reports.heard import Heard
from reports.rows import finished_shards, folded_properties, folded_rows


def fold(events: Iterable[Event]) -> Report:
    """The report of all these events, in whatever order and from however many files."""
    heard = Heard(events)
    shards, shard_troubles = finished_shards(heard)
    replays, replay_troubles = folded_replays(heard)
    findings = folded_findings(heard)
    properties = folded_properties(heard, shards)
    rows = folded_rows(heard, shards, properties, findings)
    shown = {(row.invariant, row.origin) for row in rows}
    troubles = [
        *(Trouble(where=p.where, message=p.message) for p in heard.of(Problem)),
        *heard.troubles(),
        *shard_troubles,
        *replay_troubles,
        *(
            Trouble(
                where=each.id,
                message=f"no row shows this finding: {each.invariant} ({each.origin}) "
                "is not in the catalogue of this run",
            )
            for each in findings
            if heard.starts and (each.invariant, each.origin) not in shown
        ),
    ]
    absences = {(each.target, each.reason) for each in heard.of(Absent)}
    skips: Counter[tuple[str, str]] = Counter()
    for each in heard.of(Skipped):
        skips[each.what, each.reason] += each.cases
    first = heard.starts[0] if heard.starts else None
    return Report(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        profile=first.profile if first else None,
        seed=first.seed if first else None,
        strict=any(start.strict for start in heard.starts),
        labels_min=max((start.labels_min for start in heard.starts), default=0),
        tree=first.tree if first else None,
        finished=_finished(heard),
        num_shards=max((start.num_shards for start in heard.starts), default=1),
        machines=tuple(_machine(start) for start in heard.starts),
        machines_missing=heard.machines_missing(),
        rows=rows,
        properties=properties,
        findings=findings,
        replays=replays,
        controls=folded_controls(heard),
        ledger=tuple(heard.ledger[each] for each in sorted(heard.ledger)),
        skips=tuple(
            Skip(what=what, reason=reason, count=count)
            for (what, reason), count in sorted(skips.items())
        ),
        absences=tuple(Absence(target=t, reason=r) for t, r in sorted(absences)),
        problems=tuple(
            Trouble(where=where, message=message)
            for where, message in sorted({(t.where, t.message) for t in troubles})
        ),
        times=_times(heard),
    )


def _finished(heard: Heard) -> bool:
    return 0 < len(heard.starts) <= len(heard.of(RunFinished))


def _machine(start: RunStarted) -> Machine:
    return Machine(
        run=start.run,
        shard_id=start.shard_id,
        command=start.command,
        target_folders=start.target_folders,
        python=start.python,
        torch=start.torch,
        triton=start.triton,
        hypothesis=start.hypothesis,
        platform=start.platform,
    )


def _times(heard: Heard) -> Times:
    shard_s = {each.shard: each.seconds for each in heard.of(ShardFinished)}
    ended = [each.seconds for each in heard.of(RunFinished)]
    isolation_s = {each.worker: each.isolation_s for each in heard.of(WorkerFinished)}
    startups = {(each.worker, each.startup_s) for each in heard.of(WorkerStarted)}
    return Times(
        started_unix_s=min((s.started_unix_s for s in heard.starts), default=None),
        seconds=max(ended) if _finished(heard) else None,
        startups=tuple(
            Startup(worker=w, startup_s=s, isolation_s=isolation_s.get(w, 0.0))
            for w, s in sorted(startups)
        ),
        shard_s=dict(sorted(shard_s.items())),
    )
