"""Staged writes under the memory checker: strategy, laws, real kernel and owners."""

from dataclasses import replace

import pytest

from fuzz import rooms
from fuzz.execution import Executor
from invariants.memory.findings import Undecided
from invariants.model import Judgement, Origin, Raised, decode, encode
from invariants.staged_writes import (
    EXACT,
    INVARIANTS,
    MORE,
    OFFSET,
    PAST_BYTES,
    PAST_ELEMENTS,
    RAISES,
    REUSED,
    ROW_END,
    VALUES,
    Mismatch,
    Observation,
    judge,
)
from invariants.staged_writes_case import (
    DIMS,
    TILE,
    Batch,
    Case,
    Write,
    written,
)
from reproducers import store
from strategies.staged_writes import cases
from tests.elsewhere import Releases
from tests.strategy_search import find_any, minimal

TARGET = "staged_writes"
ONE = Write(tensor=0, row=1, start=2, length=3)


def batch(*writes: Write, finished: tuple[int, ...] = ()) -> Batch:
    return Batch(finished=finished, writes=writes, ending="applied")


def tensor(*batches: Batch, rows: int = 4) -> Case:
    return Case(
        format_version=1,
        origin="contract",
        form="tensor",
        dtype="int32",
        rows=rows,
        columns=(16,),
        batches=batches,
        pinned=False,
        first=1,
    )


def reached(case: Case) -> frozenset[str]:
    """With the rows of wired requests as releases give them: from the last one on."""
    if case.origin == "wired":
        rows = case.rows * (DIMS if case.form == "positions" else 1)
        top = rows - 1 if any(each.writes for each in case.batches) else -1
        return judge(case, Observation(top_rows=(top,))).labels
    tops = [-1] * len(case.columns)
    for each in case.batches:
        for write in each.writes:
            tops[write.tensor] = max(tops[write.tensor], write.row)
    return judge(case, Observation(top_rows=tuple(tops))).labels


# Which row a request gets is the release's choice.
NEEDED: dict[Origin, set[str]] = {
    origin: {label for law in INVARIANTS for label in law.labels_needed(origin) or ()}
    - {REUSED}
    for origin in ("wired", "contract")
}


@pytest.mark.parametrize("origin", ["wired", "contract"])
def test_boundaries_are_reached(origin: Origin) -> None:
    missing = set(NEEDED[origin])

    def all_seen(case: Case) -> bool:
        missing.difference_update(reached(case))
        return not missing

    find_any(cases(origin=origin), all_seen)


@pytest.mark.parametrize("origin", ["wired", "contract"])
def test_a_case_shrinks_to_one_element(origin: Origin) -> None:
    case = minimal(
        cases(origin=origin),
        lambda case: any(each.length for one in case.batches for each in one.writes),
    )
    (only,) = case.batches
    assert [each.length for each in only.writes] == [1]


def test_a_row_keeps_what_no_write_covers() -> None:
    assert written([0] * 6, 2, [7, 8]) == [0, 0, 7, 8, 0, 0]


def test_each_write_has_numbers_of_its_own() -> None:
    case = tensor(batch(ONE, replace(ONE, row=2)), batch(ONE))
    contents = [case.content(0, 0), case.content(0, 1), case.content(1, 0)]
    assert [len(each) for each in contents] == [3, 3, 3]
    assert len({number for each in contents for number in each}) == 9


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (replace(ONE, row=4), "no row 4"),
        (replace(ONE, tensor=1), "of tensor 1"),
        (replace(ONE, start=14), "columns to 17"),
        (replace(ONE, start=4, length=1), "overlap"),
    ],
)
def test_a_batch_that_no_caller_stages_is_refused(wrong: Write, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        tensor(batch(ONE, wrong))


def test_requests_are_added_once_each() -> None:
    case = find_any(cases(origin="wired"), lambda case: case.rows > 4)
    request = Write(tensor=0, row=1, start=0, length=1)
    with pytest.raises(ValueError, match="once each"):
        replace(case, batches=(batch(request, finished=(1,)),))
    with pytest.raises(ValueError, match="5 of 1 tokens"):
        replace(case, batches=(batch(replace(request, start=5)),))


def test_what_is_wrong_breaks_its_law() -> None:
    case = tensor(batch(ONE))
    assert judge(case, Observation()).judged == {law.id for law in INVARIANTS}
    wrong = Mismatch(batch=0, tensor="0", row=1, column=2, got="-7", expected="1")
    (found,) = judge(case, Observation(mismatch=wrong)).violations
    assert found.invariant == VALUES.id
    assert "row 1, column 2; expected 1" in found.message
    raised = Raised(type="ValueError", message="shape", site="f")
    assert judge(case, Observation(raised=raised)).judged == {RAISES.id}
    doubt = Undecided(kernel="kernel", reason="tt.new is unknown", place="k.py:1")
    assert judge(case, Observation(undecided=(doubt,))).judged == frozenset()


def test_rows_past_the_limits_are_told_apart() -> None:
    case = tensor(batch(ONE))
    rows = 2**31 // 16
    for top, label in ((rows - 1, PAST_BYTES), (rows, PAST_ELEMENTS)):
        assert label in judge(case, Observation(top_rows=(top,))).labels
    assert {OFFSET, ROW_END, MORE} & judge(case, Observation()).labels == {OFFSET}


# --- releases -------------------------------------------------------------------------


def judge_on(executor: Executor, case: Case) -> Judgement:
    return executor.judge(rooms.load(TARGET), case)


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize(("release", "holds"), [("0.33.0", True), ("0.20.1", False)])
def test_faults_of_a_release(releases: Releases, release: str, *, holds: bool) -> None:
    subject = releases(release)
    for id_, law in (
        ("staged-writes-6b2569e0", EXACT),
        ("staged-writes-e2a764a8", EXACT),
        ("staged-writes-c9cd12b8", RAISES),
    ):
        case = decode(encode(store.read(store.STORE, id_).case), Case)
        judgement = subject.call(judge_on, case)
        assert law.id in judgement.judged
        assert (judgement.violations == ()) is holds
    rows = tensor(
        batch(ONE, replace(ONE, start=5), replace(ONE, row=3, start=0)),
        batch(replace(ONE, start=3)),
    )
    long = replace(ONE, start=0, length=TILE + 1)
    for case in (
        rows,
        replace(rows, form="tensors"),
        replace(rows, dtype="float32"),
        replace(tensor(batch()), columns=(2 * TILE,), batches=(batch(long),)),
    ):
        judgement = subject.call(judge_on, case)
        assert VALUES.id in judgement.judged
        assert judgement.violations == ()
