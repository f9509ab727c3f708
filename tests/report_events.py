"""Events of runs that never happened, for the tests of the reports room.

`a_run` writes what a whole run of two targets would; a test names what differs in it.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from reports.events import (
    CatalogueEntry,
    ControlFinished,
    Event,
    EventLog,
    Found,
    LedgerRecord,
    Origin,
    Outcome,
    Replayed,
    RunFinished,
    RunStarted,
    ShardFinished,
    TreeRecord,
    WorkerStarted,
)

CATALOGUE = (
    CatalogueEntry(
        id="PAGE-ONE-SIZE",
        target="page_size",
        statement="After unification all layers of a model have one page size.",
        severity="crash",
        wired=("mamba-beside-attention", "drafter"),
        contract=("mamba-beside-attention",),
    ),
    CatalogueEntry(
        id="PAGE-PURE",
        target="page_size",
        statement="Unification leaves its input as it was.",
        severity="corruption",
        wired=None,
        contract=(),
    ),
    CatalogueEntry(
        id="TABLE-WINDOW",
        target="mamba_block_table",
        statement="Each request gets the 1 + k entries of its own window.",
        severity="corruption",
        wired=("last-column",),
        contract=("last-column",),
    ),
)
PROPERTIES = (
    "mamba_block_table/contract",
    "mamba_block_table/wired",
    "page_size/contract",
    "page_size/wired",
)
SHARDS = tuple(f"{name}/{index}" for name in PROPERTIES for index in range(2))
TREE = TreeRecord(
    spec="0.20.1", version="0.20.1", digest="5a1e" * 4, patches=(), notes=()
)
LABELS = {"mamba-beside-attention": 30, "drafter": 12, "last-column": 25}
FAULT = "page-size-1a2b3c4d"
CASE = '{"format_version":1,"layers":[{"kind":"mamba","page":2228224}]}'

LARGE_CASE = json.dumps(
    {
        "format_version": 1,
        "layers": [
            {"name": f"model.layers.{i}", "kind": "mamba", "shapes": [[3, 2048]] * 3}
            for i in range(60)
        ],
        "tokens": list(range(100, 200)),
    }
)


def started(
    *,
    run: str = "20260101T000000Z-aaaa",
    profile: str = "quick",
    seed: int = 7,
    strict: bool = False,
    labels_min: int = 5,
    num_shards: int = 1,
    shard_id: int = 0,
    tree: TreeRecord = TREE,
    catalogue: tuple[CatalogueEntry, ...] = CATALOGUE,
    properties: tuple[str, ...] = PROPERTIES,
    shards: tuple[str, ...] = SHARDS,
    replays: tuple[str, ...] = (),
    controls: tuple[str, ...] = ("canary", "page_size"),
    ledger: tuple[LedgerRecord, ...] = (),
    command: str = "pytest fuzz/ -n 2",
    target_folders: tuple[str, ...] = (),
) -> RunStarted:
    """The first event of a run."""
    return RunStarted(
        format_version=1,
        run=run,
        profile=profile,
        seed=seed,
        strict=strict,
        labels_min=labels_min,
        num_shards=num_shards,
        shard_id=shard_id,
        tree=tree,
        torch="2.13.0",
        triton="3.7.1",
        hypothesis="6.170.0",
        python="3.11.9",
        platform="cpu",
        command=command,
        target_folders=target_folders,
        catalogue=catalogue,
        properties=properties,
        shards=shards,
        replays=replays,
        controls=controls,
        ledger=ledger,
        started_unix_s=1_767_225_600.0,
    )


def shard_finished(
    name: str,
    *,
    cases: int = 100,
    judged: dict[str, int] | None = None,
    labels: dict[str, int] | None = None,
    seconds: float = 3.5,
) -> ShardFinished:
    """Totals of a shard in which every invariant of its target was judged."""
    target = name.partition("/")[0]
    everything = {entry.id: cases for entry in CATALOGUE if entry.target == target}
    return ShardFinished(
        shard=name,
        cases=cases,
        judged=everything if judged is None else judged,
        labels=LABELS if labels is None else labels,
        seconds=seconds,
    )


def found(
    id_: str = FAULT,
    *,
    source: str = "page_size/wired/0",
    invariant: str = "PAGE-ONE-SIZE",
    target: str = "page_size",
    origin: Origin = "wired",
    message: str = "page 4,456,448 bytes beside 2,228,224 bytes",
    case: str = CASE,
    shrunk: bool = True,
    saved: str | None = None,
    fix: str = "verified",
    exception: str = "AssertionError",
    before_characters: int = 0,
) -> Found:
    """A finding, saved once it is shrunk."""
    path = f"reproducers/cases/{id_}" if shrunk else ""
    return Found(
        source=source,
        id=id_,
        invariant=invariant,
        target=target,
        origin=origin,
        site="unify_kv_cache_spec_page_size",
        exception=exception,
        message=message,
        evidence={"page_bytes": 4_456_448},
        case=case,
        shrunk=shrunk,
        saved=path if saved is None else saved,
        fix=fix if shrunk else "",
        before_characters=before_characters,
    )


def replayed(
    outcome: Outcome,
    id_: str = FAULT,
    *,
    invariant: str = "PAGE-ONE-SIZE",
    target: str = "page_size",
    origin: Origin = "wired",
    message: str = "page 4,456,448 bytes beside 2,228,224 bytes",
) -> Replayed:
    """A saved fault was run."""
    return Replayed(
        id=id_,
        target=target,
        invariant=invariant,
        origin=origin,
        outcome=outcome,
        message=message,
    )


def in_ledger(
    id_: str = FAULT, *, expected: str = "affected", link: str = "https://example.org/1"
) -> LedgerRecord:
    """An entry of the ledger as it speaks of the tree under test."""
    assert expected in {"affected", "fixed", "unknown"}
    return LedgerRecord(
        id=id_,
        link=link,
        summary="pages differ beside a drafter",
        expected=expected,  # type: ignore[arg-type]
    )


def control(name: str, *, found: bool = True, message: str = "") -> ControlFinished:
    """A control was looked for."""
    return ControlFinished(name=name, found=found, cases=17, message=message)


def a_run(
    *more: Event,
    start: RunStarted | None = None,
    without_shards: Sequence[str] = (),
    finished: bool = True,
) -> list[Event]:
    """A run in which all that was planned ran, and what else is given."""
    first = started() if start is None else start
    told = {event.shard for event in more if isinstance(event, ShardFinished)}
    controlled = {event.name for event in more if isinstance(event, ControlFinished)}
    events: list[Event] = [first, WorkerStarted(worker="gw0-11", startup_s=9.5)]
    events += [
        shard_finished(name)
        for name in first.shards
        if name not in told and name not in without_shards
    ]
    events += [control(name) for name in first.controls if name not in controlled]
    events += more
    if finished:
        events.append(RunFinished(seconds=61.0))
    return events


def write(folder: Path, events: list[Event], *, files: int = 1) -> Path:
    """Spread events over the files of a run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    logs = [EventLog(folder / f"events-gw{number}.jsonl") for number in range(files)]
    for number, event in enumerate(events):
        logs[number % files].write(event)
    for log in logs:
        log.close()
    return folder


def machine(shard_id: int, *, num_shards: int = 2, seed: int = 7) -> list[Event]:
    """What one of several machines writes."""
    names = [name for name in SHARDS if int(name[-1]) % num_shards == shard_id]
    return a_run(
        start=started(
            run=f"run-{shard_id}",
            num_shards=num_shards,
            shard_id=shard_id,
            seed=seed,
            shards=tuple(names),
        )
    )
