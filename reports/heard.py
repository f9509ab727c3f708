"""The events of a run by kind, each kind in one fixed order.

Sorting by content makes everything built on it independent of the order in which files
and lines were read.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

import msgspec

from reports.document import Trouble
from reports.events import Event, LedgerRecord, RunStarted

E = TypeVar("E")


class Heard:
    """What was heard from all processes of a run.

    Attributes:
        starts: One per machine, by ``shard_id``.
        ledger: The findings known to be open, by id.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        by_kind: dict[type, list[Event]] = defaultdict(list)
        for event in events:
            by_kind[type(event)].append(event)
        self._by_kind = {
            kind: sorted(each, key=msgspec.json.encode)
            for kind, each in by_kind.items()
        }
        self.starts: Sequence[RunStarted] = sorted(
            self.of(RunStarted), key=lambda start: (start.shard_id, start.run)
        )
        self.ledger: dict[str, LedgerRecord] = {
            record.id: record for start in self.starts for record in start.ledger
        }

    def of(self, kind: type[E]) -> list[E]:
        """All events of one kind, in the order of their encoding."""
        return [each for each in self._by_kind.get(kind, []) if isinstance(each, kind)]

    def shards_planned(self) -> set[str]:
        """Names of the shards that the machines heard of were to run."""
        return {shard for start in self.starts for shard in start.shards}

    def machines_missing(self) -> tuple[int, ...]:
        """Each ``--shard-id`` that no machine heard of has."""
        machines = max((start.num_shards for start in self.starts), default=0)
        present = {start.shard_id for start in self.starts}
        return tuple(each for each in range(machines) if each not in present)

    def troubles(self) -> list[Trouble]:
        """What keeps these events from being those of one run."""
        if not self.starts:
            message = (
                "no run-started event, so what was to run is not known: nothing was "
                "selected, the controller died before it, or its file is missing"
            )
            return [Trouble(where="runs", message=message)]
        return [
            Trouble(where="runs", message=each) for each in disagreements(self.starts)
        ]


def disagreements(starts: Sequence[RunStarted]) -> tuple[str, ...]:
    """Why these machines' runs are not parts of one run; empty when they are."""
    reasons = []
    for what, values in (
        ("profiles", {start.profile for start in starts}),
        ("seeds", {str(start.seed) for start in starts}),
        ("trees", {f"{s.tree.version} (digest {s.tree.digest})" for s in starts}),
        ("--num-shards", {str(start.num_shards) for start in starts}),
        ("label thresholds", {str(start.labels_min) for start in starts}),
    ):
        if len(values) > 1:
            shown = ", ".join(sorted(values))
            reasons.append(f"machines ran different {what}: {shown}")
    for what, contents in (
        ("catalogues of invariants", {_content(start.catalogue) for start in starts}),
        ("ledgers", {_content(start.ledger) for start in starts}),
        ("selections of properties", {_content(start.properties) for start in starts}),
    ):
        if len(contents) > 1:
            reasons.append(
                f"machines ran different {what}: give all of them one revision of this "
                "project and one command"
            )
    for shard_id, count in sorted(Counter(start.shard_id for start in starts).items()):
        if count > 1:
            runs = ", ".join(sorted(s.run for s in starts if s.shard_id == shard_id))
            reasons.append(f"--shard-id {shard_id} ran {count} times: {runs}")
    planned = Counter(shard for start in starts for shard in start.shards)
    twice = sorted(shard for shard, count in planned.items() if count > 1)
    if twice:
        reasons.append(f"shards planned on two machines: {', '.join(twice)}")
    return tuple(reasons)


def _content(values: Iterable[object]) -> tuple[bytes, ...]:
    """A set of values as something that can be compared."""
    return tuple(sorted(msgspec.json.encode(each) for each in values))
