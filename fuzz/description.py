"""The first event of a run: what will run, on what, with what.

The catalogue of invariants and the planned shards come first, so that a report can tell
what never ran, whatever happens afterwards.
"""

import importlib.metadata
import platform
import re
import shlex
import sys
import time

from fuzz import rooms
from fuzz.campaign import Run
from fuzz.runtime import Runtime
from invariants.model import Invariant
from reports.events import CatalogueEntry, LedgerRecord, RunStarted, TreeRecord

SHARD_ID = re.compile(r"test_(\w+)\.py::test_(wired|contract)\[shard(\d+)\]$")
CONTROL_ID = re.compile(r"test_controls\.py::test_control\[(\w+)\]$")
SAVED_ID = re.compile(r"test_saved\.py::test_saved\[([\w-]+)\]$")


def run_started(
    run: Run,
    *,
    node_ids: list[str],
    ledger: tuple[LedgerRecord, ...],
    num_shards: int,
    shard_id: int,
) -> RunStarted:
    """Describe a run from the ids of the tests that pytest is about to run."""
    shards = [match.groups() for match in map(SHARD_ID.search, node_ids) if match]
    properties = {f"{target}/{origin}" for target, origin, _ in shards}
    return RunStarted(
        format_version=1,
        run=run.id,
        profile=run.profile.name,
        seed=run.seed,
        strict=run.strict,
        labels_min=run.profile.labels_min,
        num_shards=num_shards,
        shard_id=shard_id,
        tree=TreeRecord(
            spec=run.tree.spec,
            version=run.tree.version,
            digest=run.tree.digest,
            patches=run.tree.patches,
            notes=run.tree.notes,
        ),
        torch=_version("torch"),
        triton=_version("triton"),
        hypothesis=_version("hypothesis"),
        python=platform.python_version(),
        platform=Runtime().platform,
        command=shlex.join(["pytest", *sys.argv[1:]]),
        target_folders=tuple(str(each.resolve()) for each in run.target_folders),
        catalogue=catalogue(),
        properties=tuple(sorted(properties)),
        shards=tuple(sorted("/".join(parts) for parts in shards)),
        replays=_matches(SAVED_ID, node_ids),
        controls=_matches(CONTROL_ID, node_ids),
        ledger=ledger,
        started_unix_s=time.time(),
    )


def targets_of(event: RunStarted) -> tuple[str, ...]:
    """Targets that a run imports: of its shards, its controls and its replays."""
    named = {shard.partition("/")[0] for shard in event.shards}
    named.update(event.controls)
    # A fault's ID is its target's name, with dashes, and a hash.
    named.update(id_.rpartition("-")[0].replace("-", "_") for id_ in event.replays)
    return tuple(name for name in rooms.discover() if name in named)


def catalogue() -> tuple[CatalogueEntry, ...]:
    """Every invariant of every target, in order of target and id."""
    invariants: list[Invariant] = []
    for target in rooms.discover():
        invariants += rooms.load(target).invariants
    return tuple(
        CatalogueEntry(
            id=invariant.id,
            target=invariant.target,
            statement=invariant.statement,
            severity=invariant.severity,
            wired=invariant.wired,
            contract=invariant.contract,
        )
        for invariant in invariants
    )


def _matches(pattern: re.Pattern[str], node_ids: list[str]) -> tuple[str, ...]:
    return tuple(sorted(m.group(1) for m in map(pattern.search, node_ids) if m))


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
