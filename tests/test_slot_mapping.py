"""Slot mapping under the memory checker: cases, the reference, laws, releases."""

from dataclasses import replace

import pytest

from fuzz import rooms
from fuzz.execution import Executor
from invariants.memory.findings import Finding, Undecided
from invariants.model import Judgement, Raised, decode, encode
from invariants.slot_mapping import (
    ACCESS,
    DUMMIES,
    EXCHANGED,
    INVARIANTS,
    LEFT,
    LONGEST,
    PADDING,
    PAST_SLOTS,
    RAISES,
    RANKS,
    SPLIT,
    STATELESS,
    STORES,
    TILE_EDGE,
    TILES,
    TURNS,
    VALUES,
    WHOLE,
    Case,
    Observation,
    expected_slots,
    judge,
)
from invariants.table_case import Group, Request, Tables, condensed, slot
from reproducers import store
from strategies.slot_mapping import cases
from tests.elsewhere import Releases
from tests.strategy_search import find_any, minimal

TARGET = "slot_mapping"
# Two requests of three blocks of four tokens each: ids 11, 9, 7 and 10, 8, 6.
PLAIN = Case(
    format_version=1,
    origin="contract",
    runner="v1",
    tables=Tables(
        groups=(Group(block_size=4, kernel_block_size=4),),
        requests=(
            Request(computed=9, query=2, first=9),
            Request(computed=7, query=3, first=7),
        ),
        pool_blocks=12,
        longest=16,
        rows=3,
    ),
    prefill_ranks=1,
    swaps=(),
    states=(),
    dummies=(),
    padded=0,
    spare=2,
)
RIGHT = (29, 30, 35, 24, 25)
SEEN = Observation(slots=((*RIGHT, -1, -1),))
OUTSIDE = Finding(
    kind="outside the view",
    kernel="kernel",
    file="vllm/kernel.py",
    line=7,
    expression="tl.load(table + at)",
    tensor="table",
    write=False,
    program=(1, 0, 0),
    lane=(3,),
    value=12,
    wrapped=12,
    limit=12,
    lanes=1,
    arithmetic="element 12 of 12",
)


def broken(case: Case, seen: Observation) -> list[str]:
    return [each.invariant for each in judge(case, seen).violations]


def test_tokens_have_the_slots_of_their_positions() -> None:
    assert expected_slots(PLAIN) == (RIGHT,)
    assert judge(PLAIN, SEEN).judged == {law.id for law in INVARIANTS}
    assert broken(PLAIN, SEEN) == []


@pytest.mark.parametrize(
    ("slots", "law"),
    [
        ((29, 30, 35, 24, 26, -1, -1), VALUES),
        ((29, 30, 35, 24, -1, -1, -1), VALUES),
        ((*RIGHT, -1, 25), PADDING),
    ],
)
def test_a_wrong_place_breaks_its_law(slots: tuple[int, ...], law: object) -> None:
    (found,) = judge(PLAIN, Observation(slots=(slots,))).violations
    assert found.invariant == law.id  # type: ignore[attr-defined]


def test_a_known_fault_hides_no_other_one() -> None:
    def site(case: Case, first: int) -> str:
        seen = Observation(slots=((first, *RIGHT[1:], -1, -1),))
        (found,) = judge(case, seen).violations
        return found.site.partition(": ")[2]

    group = Group(block_size=8, kernel_block_size=4)
    turns = replace(PLAIN.tables, groups=(group,), ranks=2, interleave=8)
    shared = replace(PLAIN, tables=turns)
    assert site(PLAIN, RIGHT[0] - 2**32) == "32 bits"
    assert site(PLAIN, RIGHT[0] - 1) == ""
    assert site(shared, 1) == "long turns"


def test_a_group_without_slots_names_none() -> None:
    group = Group(block_size=4, kernel_block_size=4, slots=False)
    case = replace(PLAIN, tables=replace(PLAIN.tables, groups=(group,)))
    assert broken(case, Observation(slots=((-1,) * 7,))) == []
    assert broken(case, SEEN) == [VALUES.id]
    assert broken(case, Observation(slots=(None,))) == []


def test_ranks_fill_their_blocks_with_their_own_tokens() -> None:
    group = Group(block_size=4, kernel_block_size=4)
    shared = replace(
        PLAIN.tables, groups=(group,), ranks=2, rank=1, interleave=2, longest=32
    )
    row = (5, 3)
    found = [slot(shared, group, row, position) for position in range(16)]
    assert found == [-1, -1, 20, 21, -1, -1, 22, 23, -1, -1, 12, 13, -1, -1, 14, 15]
    whole = replace(group, sharded=False)
    assert slot(shared, whole, row, 5) == 13


def test_the_last_request_takes_the_first_free_row() -> None:
    request = Request(computed=0, query=1, first=1)
    gone = replace(request, leaves=True)
    tables = replace(
        PLAIN.tables, requests=(gone, request, gone, request, request), rows=5
    )
    assert condensed(tables) == (4, 1, 3)
    case = replace(PLAIN, tables=tables, swaps=((0, 1), (1, 2)))
    assert case.batch == (1, 3, 4)


def test_accesses_and_exceptions_break_laws_of_their_own() -> None:
    (found,) = judge(PLAIN, Observation(findings=(OUTSIDE,))).violations
    assert (found.invariant, found.site) == (ACCESS.id, "kernel: table")
    twice = replace(OUTSIDE, kind="stored twice")
    assert broken(PLAIN, Observation(findings=(twice,))) == [STORES.id]
    raised = Raised(type="RuntimeError", message="row capacity", site="append_row")
    assert broken(PLAIN, Observation(raised=raised)) == [RAISES.id]
    doubt = Undecided(kernel="kernel", reason="tt.new is unknown", place="k.py:1")
    judgement = judge(PLAIN, Observation(undecided=(doubt,)))
    assert judgement.judged == frozenset()
    assert judgement.skipped == "undecided: kernel: tt.new is unknown (k.py:1)"


@pytest.mark.parametrize(
    "label",
    [
        *(PAST_SLOTS, TILES, TILE_EDGE, LONGEST, LEFT, EXCHANGED, RANKS, TURNS),
        *(SPLIT, DUMMIES, STATELESS, WHOLE),
    ],
)
def test_boundaries_are_reached(label: str) -> None:
    find_any(
        cases(origin="contract"),
        lambda case: label in judge(case, Observation(findings=(OUTSIDE,))).labels,
    )


@pytest.mark.parametrize("origin", ["wired", "contract"])
def test_a_case_shrinks_to_one_token(origin: str) -> None:
    case = minimal(cases(origin=origin))  # type: ignore[arg-type]
    assert case.queries == (1,)
    assert case.tables.requests[0].computed == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"states": (0, 1)}, "neither state rows"),
        ({"swaps": ((0, 2),)}, "name rows beyond 2"),
        ({"prefill_ranks": 2}, "2 of 1 ranks"),
        ({"runner": "v2"}, "2 requests have states"),
        ({"runner": "v2", "states": (0, 0)}, "2 requests have states"),
    ],
)
def test_a_step_that_no_runner_makes_is_refused(
    change: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(PLAIN, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pool_blocks": 6}, "6 blocks of a pool of 6"),
        ({"longest": 10}, "more than 10"),
        ({"rows": 1}, "2 requests for 1 rows"),
        ({"ranks": 2, "interleave": 3}, "turns of 3 tokens"),
        ({"rank": 1}, "rank 1 of 1"),
    ],
)
def test_tables_that_nobody_fills_are_refused(
    change: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(PLAIN.tables, **change)  # type: ignore[arg-type]


# --- releases -------------------------------------------------------------------------


def judge_all(executor: Executor, drawn: list[Case]) -> list[Judgement]:
    return [executor.judge(rooms.load(TARGET), case) for case in drawn]


def saved(id_: str) -> Case:
    return decode(encode(store.read(store.STORE, id_).case), Case)


WRAPPED, SPLIT_TURNS = "slot-mapping-6f380f17", "slot-mapping-e2496a5a"


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize(
    ("release", "turns_judged"), [("0.33.0", False), ("0.20.1", True)]
)
def test_what_releases_show(
    releases: Releases, release: str, *, turns_judged: bool
) -> None:
    near = saved(WRAPPED)
    near = replace(near, tables=replace(near.tables, pool_blocks=64))
    wrapped, right, turns = releases(release).call(
        judge_all, [saved(WRAPPED), near, saved(SPLIT_TURNS)]
    )
    assert [each.invariant for each in wrapped.violations] == [VALUES.id]
    assert right.violations == ()
    assert right.judged == {law.id for law in INVARIANTS}
    # 0.33.0 has tables of the manager's blocks only.
    assert bool(turns.judged) is turns_judged
    assert [each.invariant for each in turns.violations] == [VALUES.id] * turns_judged
