"""Gathered block tables under the memory checker: cases, laws, releases."""

from dataclasses import replace

import pytest

from fuzz import rooms
from fuzz.execution import Executor
from invariants.gather_block_tables import (
    ACCESS,
    APPENDED,
    BELOW,
    FULL,
    INVARIANTS,
    LAST_COLUMN,
    LEFT,
    NARROW_FIRST,
    PADDED,
    PADDING,
    PERMUTED,
    RAISES,
    ROWS,
    SHRUNK,
    STORES,
    TAIL,
    TILES,
    WIDE_FIRST,
    WIDTHS,
    Case,
    Observation,
    expected_row,
    judge,
)
from invariants.memory.findings import Finding
from invariants.model import Invariant, Judgement, Raised, decode, encode
from invariants.table_case import Group, Request, Tables
from reproducers import store
from strategies.gather_block_tables import cases
from tests.elsewhere import Releases
from tests.strategy_search import find_any, minimal

TARGET = "gather_block_tables"
STALE = 77
# Blocks 7 and 5 of the first request, 6 of the second; a third row pads the batch.
PLAIN = Case(
    format_version=1,
    origin="contract",
    tables=Tables(
        groups=(Group(block_size=4, kernel_block_size=4),),
        requests=(
            Request(computed=4, query=1, first=4),
            Request(computed=0, query=2, first=0),
        ),
        pool_blocks=8,
        longest=12,
        rows=4,
    ),
    states=(3, 1),
    padded=1,
)
RIGHT = ((7, 5, STALE), (6, STALE, 0), (0, 0, 0), (STALE, STALE, STALE))
TWICE = Finding(
    kind="stored twice",
    kernel="kernel",
    file="vllm/kernel.py",
    line=7,
    expression="tl.store(row + at, ids)",
    tensor="row",
    write=True,
    program=(1, 0, 0),
    lane=(3,),
    value=5,
    wrapped=5,
    limit=12,
    lanes=1,
    arithmetic="element 5 gets 1 of program 0 and 2 of program 1",
)


def seen(*rows: tuple[int, ...]) -> Observation:
    return Observation(stale=STALE, gathered=(rows,))


def test_right_tables_break_nothing() -> None:
    judgement = judge(PLAIN, seen(*RIGHT))
    assert judgement.judged == {law.id for law in INVARIANTS}
    assert judgement.violations == ()


@pytest.mark.parametrize(
    ("row", "got", "law"),
    [
        (0, (7, 0, STALE), ROWS),
        (1, (7, STALE, STALE), ROWS),
        (1, (6, 5, STALE), TAIL),
        (2, (0, 0, STALE), PADDING),
        (2, (1, 0, 0), PADDING),
        (3, (STALE, 7, STALE), TAIL),
    ],
)
def test_a_wrong_row_breaks_its_law(
    row: int, got: tuple[int, ...], law: Invariant
) -> None:
    rows: list[tuple[int, ...]] = [*RIGHT]
    rows[row] = got
    (found,) = judge(PLAIN, seen(*rows)).violations
    assert found.invariant == law.id
    assert f"row {row} " in found.message


def test_accesses_and_exceptions_break_laws_of_their_own() -> None:
    (found,) = judge(PLAIN, Observation(findings=(TWICE,))).violations
    assert found.invariant == STORES.id
    outside = replace(TWICE, kind="outside the view")
    (found,) = judge(PLAIN, Observation(findings=(outside,))).violations
    assert found.invariant == ACCESS.id
    raised = Raised(type="RuntimeError", message="row capacity", site="append")
    (found,) = judge(PLAIN, Observation(raised=raised)).violations
    assert found.invariant == RAISES.id


def test_blocks_wholly_below_the_window_are_null_where_a_release_says_so() -> None:
    group = Group(block_size=4, kernel_block_size=4, reach=3)
    row = (9, 8, 7, 6)
    for computed, below in ((3, 0), (6, 0), (7, 1), (10, 1), (11, 2)):
        request = Request(computed=computed, query=1, first=0)
        expected = (0,) * below + row[below:]
        assert expected_row(group, request, row, masks=True) == expected
        assert expected_row(group, request, row, masks=False) == row


def widths(case: Case) -> Observation:
    """Tables as narrow as the longest request allows."""
    tables = case.tables
    return Observation(
        findings=(TWICE,),
        gathered=tuple(
            ((0,) * tables.count(tables.longest, group),) for group in tables.groups
        ),
    )


@pytest.mark.parametrize(
    "label",
    [
        *(WIDTHS, WIDE_FIRST, NARROW_FIRST, PADDED, FULL, PERMUTED, LEFT, SHRUNK),
        *(APPENDED, BELOW, TILES, LAST_COLUMN),
    ],
)
def test_boundaries_are_reached(label: str) -> None:
    find_any(
        cases(origin="contract"),
        lambda case: label in judge(case, widths(case)).labels,
    )


@pytest.mark.parametrize("origin", ["wired", "contract"])
def test_a_case_shrinks_to_one_block(origin: str) -> None:
    case = minimal(cases(origin=origin))  # type: ignore[arg-type]
    assert case.tables.blocks == 1
    assert case.padded == 0


def test_more_rows_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match="2 requests and 3 rows more, of 4"):
        replace(PLAIN, padded=3)
    with pytest.raises(ValueError, match="2 requests have states"):
        replace(PLAIN, states=(1, 4))


# --- releases -------------------------------------------------------------------------


def judge_all(executor: Executor, drawn: list[Case]) -> list[Judgement]:
    return [executor.judge(rooms.load(TARGET), case) for case in drawn]


IDS = ("gather-block-tables-a633ce72", "gather-block-tables-e261b03f")


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize(("release", "holds"), [("0.33.0", True), ("0.20.1", False)])
def test_padding_is_as_wide_as_its_own_group(
    releases: Releases, release: str, *, holds: bool
) -> None:
    drawn = [decode(encode(store.read(store.STORE, id_).case), Case) for id_ in IDS]
    unpadded = replace(drawn[0], padded=0)
    wider, narrower, right = releases(release).call(judge_all, [*drawn, unpadded])
    assert right.judged == {law.id for law in INVARIANTS}
    assert right.violations == ()
    found = [each.invariant for each in (*wider.violations, *narrower.violations)]
    assert found == ([] if holds else [ACCESS.id, PADDING.id])
