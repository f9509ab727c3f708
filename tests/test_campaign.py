"""How many cases a shard runs: its share of the profile's, more for rare boundaries."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import strategies as st

from fuzz.campaign import EXTENSIONS_MAX, Campaign, Run, Worker
from fuzz.profiles import Profile
from fuzz.rooms import Rooms
from invariants.model import Invariant, Judgement
from reports.events import Event, ShardFinished
from tests.toys import toy_tree

RARE = "rare boundary"
LAW = Invariant(
    id="TOY-RARE",
    target="toy",
    statement="Rare cases are met.",
    severity="crash",
    wired=None,
    contract=(RARE,),
)
PROFILE = Profile(name="few", cases=40, shards=2, labels_min=2, seed=0, shrink_cases=0)


class OneWorker:
    """What a campaign asks of a worker; from one case on, all show the label."""

    def __init__(self, run: Run, *, rare_from: int) -> None:
        self.run = run
        self.events: list[Event] = []
        self._rare_from = rare_from
        self._cases = 0

    def present(self, target: str) -> Rooms:
        return Rooms(
            name=target,
            case=int,
            observation=int,
            invariants=(LAW,),
            judge=lambda _case, _observation: self._judge(),
            cases=lambda **_bounds: st.integers(0, 2**60),
        )

    def judge(self, rooms: Rooms) -> Callable[[object], Judgement]:
        return lambda case: rooms.judge(case, None)

    def _judge(self) -> Judgement:
        self._cases += 1
        labels = {RARE} if self._cases >= self._rare_from else set[str]()
        return Judgement(
            judged=frozenset({LAW.id}), violations=(), labels=frozenset(labels)
        )

    def write(self, event: Event) -> None:
        self.events.append(event)

    def tell_culprits(self, where: str) -> None:
        """Nothing did harm."""


@pytest.mark.parametrize(
    ("rare_from", "cases"),
    [(1, 10), (10, 10), (11, 20), (25, 30), (1000, 10 * EXTENSIONS_MAX)],
)
def test_a_shard_goes_on_until_it_has_met_its_boundaries(
    tmp_path: Path, rare_from: int, cases: int
) -> None:
    run = Run(
        id="run", folder=tmp_path, profile=PROFILE, seed=1, tree=toy_tree(tmp_path)
    )
    worker: Any = OneWorker(run, rare_from=rare_from)
    campaign = Campaign(cast("Worker", worker), index=0, shards=2)
    campaign.search("toy", origin="contract", share=0.5)
    (finished,) = (e for e in worker.events if isinstance(e, ShardFinished))
    assert finished.cases == cases
    assert finished.labels.get(RARE, 0) == max(0, cases - rare_from + 1)
