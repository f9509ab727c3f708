"""The rows of a report: what each property's shards did, each invariant's verdict."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence

from reports.document import (
    Finding,
    PropertyTotals,
    Row,
    Trouble,
    Verdict,
    property_name,
)
from reports.events import (
    ORIGINS,
    Absent,
    CatalogueEntry,
    Origin,
    Progress,
    ShardFinished,
)
from reports.heard import Heard


def finished_shards(heard: Heard) -> tuple[dict[str, ShardFinished], list[Trouble]]:
    """Totals of each shard that finished, by name; one that did so twice is trouble."""
    finished: dict[str, ShardFinished] = {}
    count: Counter[str] = Counter()
    for shard in heard.of(ShardFinished):
        finished.setdefault(shard.shard, shard)
        count[shard.shard] += 1
    troubles = [
        Trouble(
            where=shard,
            message=f"finished {times} times, and only one of them is counted: was one "
            "run given twice?",
        )
        for shard, times in sorted(count.items())
        if times > 1
    ]
    troubles += [
        Trouble(where=name, message="is not named target/wired/... or target/contract")
        for name in sorted({*_spoken_of(heard)})
        if _parts(name) is None
    ]
    known = {entry.id for start in heard.starts for entry in start.catalogue}
    planned = heard.shards_planned()
    for name, shard in sorted(finished.items()):
        strange = sorted(shard.judged.keys() - known)
        if heard.starts and name not in planned:
            troubles.append(
                Trouble(where=name, message="ran, and no machine was to run it")
            )
        if heard.starts and strange:
            message = f"judged {', '.join(strange)}, which the catalogue does not have"
            troubles.append(Trouble(where=name, message=message))
    return finished, troubles


def folded_properties(
    heard: Heard, finished: Mapping[str, ShardFinished]
) -> tuple[PropertyTotals, ...]:
    """What the shards of each selected property did together, wired ones first."""
    told: Counter[str] = Counter()
    for progress in heard.of(Progress):
        if progress.shard not in finished:
            told[progress.shard] += progress.cases
    shards: dict[tuple[str, Origin], set[str]] = defaultdict(set)
    for name in _spoken_of(heard):
        parts = _parts(name)
        if parts is not None:
            shards[parts].update({name} if name.count("/") > 1 else ())
    totals = []
    for target, origin in sorted(shards, key=lambda p: (p[0], ORIGINS.index(p[1]))):
        names = shards[target, origin]
        done = [finished[name] for name in names if name in finished]
        labels: Counter[str] = Counter()
        for shard_finished in done:
            labels.update(shard_finished.labels)
        totals.append(
            PropertyTotals(
                target=target,
                origin=origin,
                cases=sum(each.cases for each in done)
                + sum(told[name] for name in names),
                labels=dict(sorted(labels.items())),
                shards=len(names),
                unfinished=tuple(sorted(names - finished.keys())),
            )
        )
    return tuple(totals)


def _spoken_of(heard: Heard) -> set[str]:
    """Names of all properties and shards that were planned or ran."""
    names = {name for start in heard.starts for name in start.properties}
    names |= heard.shards_planned()
    names |= {each.shard for each in heard.of(ShardFinished)}
    return names | {each.shard for each in heard.of(Progress)}


def _parts(name: str) -> tuple[str, Origin] | None:
    """Target and origin in the name of a property or shard; None in no such name."""
    target, _, rest = name.partition("/")
    spoken = rest.partition("/")[0]
    for origin in ORIGINS:
        if target and spoken == origin:
            return target, origin
    return None


def folded_rows(
    heard: Heard,
    finished: Mapping[str, ShardFinished],
    properties: Sequence[PropertyTotals],
    findings: Sequence[Finding],
) -> tuple[Row, ...]:
    """One row for each invariant and origin of the catalogue, in that order."""
    judged: Counter[tuple[str, Origin]] = Counter()
    for name, shard in finished.items():
        parts = _parts(name)
        if parts is not None:
            for invariant, cases in shard.judged.items():
                judged[invariant, parts[1]] += cases
    totals = {(each.target, each.origin): each for each in properties}
    catalogue = {entry.id: entry for start in heard.starts for entry in start.catalogue}
    return tuple(
        _row(
            heard,
            entry,
            origin,
            needed,
            totals=totals.get((entry.target, origin)),
            cases=judged[entry.id, origin],
            findings=[
                each
                for each in findings
                if (each.invariant, each.origin) == (entry.id, origin)
            ],
        )
        for entry in sorted(catalogue.values(), key=lambda e: (e.target, e.id))
        for origin in ORIGINS
        for needed in [entry.wired if origin == "wired" else entry.contract]
        if needed is not None
    )


def _row(
    heard: Heard,
    entry: CatalogueEntry,
    origin: Origin,
    needed: Collection[str],
    *,
    totals: PropertyTotals | None,
    cases: int,
    findings: Sequence[Finding],
) -> Row:
    seen = totals.labels if totals else {}
    labels = {label: seen.get(label, 0) for label in sorted(needed)}
    labels_min = max(start.labels_min for start in heard.starts)
    missing = tuple(label for label, count in labels.items() if count < labels_min)
    name = property_name(entry.target, origin)
    absent = any(each.target == entry.target for each in heard.of(Absent))
    verdict: Verdict
    if any(each.standing != "known" for each in findings):
        verdict = "violated"
    elif not any(name in start.properties for start in heard.starts):
        verdict = "not run"
    elif absent and (totals is None or totals.cases == 0):
        verdict = "absent"
    elif heard.machines_missing() or (totals and totals.unfinished):
        verdict = "incomplete"
    elif cases == 0 or missing:
        verdict = "vacuous"
    else:
        verdict = "known" if findings else "held"
    return Row(
        invariant=entry.id,
        target=entry.target,
        origin=origin,
        statement=entry.statement,
        severity=entry.severity,
        cases=cases,
        labels=labels,
        labels_missing=missing,
        findings=tuple(each.id for each in findings),
        verdict=verdict,
    )
