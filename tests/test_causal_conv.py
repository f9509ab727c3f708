"""The causal convolution under the memory checker: strategy, laws, real kernels."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fuzz import rooms
from fuzz.execution import Executor
from invariants.causal_conv import (
    ACCEPTED,
    COMPARED,
    DISCARDED,
    INVARIANTS,
    LAST_BLOCK,
    NO_TOKENS,
    OUTPUT,
    OWNED,
    PADDED,
    PAST_BYTES,
    PAST_CHUNK,
    PAST_ELEMENTS,
    REJECTED,
    SHORT,
    UNEVEN,
    WINDOW,
    Mismatch,
    Observation,
    judge,
)
from invariants.causal_conv_case import Case
from invariants.convolution import convolved, next_window
from invariants.memory.findings import Undecided
from invariants.model import Judgement, decode, encode
from reproducers import store
from strategies.causal_conv import cases
from tests.elsewhere import Releases
from tests.strategy_search import find_any, minimal

TARGET = "causal_conv"
WRONG = Mismatch(
    tensor="output", elements=3, row=0, at=1, channel=2, got="nan", expected="0.5"
)


@pytest.mark.parametrize(
    "label",
    [
        *(PAST_ELEMENTS, PAST_BYTES, LAST_BLOCK, PADDED, NO_TOKENS, SHORT, PAST_CHUNK),
        *(REJECTED, ACCEPTED, UNEVEN, DISCARDED, COMPARED),
    ],
)
def test_boundaries_are_reached(label: str) -> None:
    def reached(case: Case) -> bool:
        return label in judge(case, Observation()).labels

    find_any(cases(origin="contract"), reached)


@pytest.mark.parametrize("origin", ["wired", "contract"])
def test_a_case_shrinks_to_one_row(origin: Any) -> None:
    (row,) = minimal(cases(origin=origin)).rows
    assert row.tokens == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rows": ()}, "0 rows"),
        ({"pool_blocks": 2}, "blocks"),
        ({"page_rest": 2**26, "pool_blocks": 2**24}, "bytes"),
    ],
)
def test_a_case_that_no_step_makes_is_refused(
    change: dict[str, object], reason: str
) -> None:
    case = minimal(cases(origin="wired"))
    with pytest.raises(ValueError, match=reason):
        replace(case, **change)  # type: ignore[arg-type]


def test_a_row_of_a_wired_case_has_accepted_something() -> None:
    case = find_any(cases(origin="wired"), lambda case: case.form == "verify")
    none = replace(case.rows[0], accepted=0)
    with pytest.raises(ValueError, match="0 accepted tokens, not 1 to"):
        replace(case, rows=(none,))


def test_contents_are_judged_where_they_were_compared() -> None:
    case = replace(minimal(cases(origin="wired")), seed=3)
    assert judge(replace(case, seed=0), Observation()).judged == {
        law.id for law in INVARIANTS if law not in (OUTPUT, WINDOW)
    }
    assert judge(case, Observation()).judged == {law.id for law in INVARIANTS}
    both = (WRONG, replace(WRONG, tensor="window"))
    judgement = judge(case, Observation(mismatches=both))
    assert [each.invariant for each in judgement.violations] == [OUTPUT.id, WINDOW.id]


def test_what_is_undecided_passes_nothing() -> None:
    doubt = Undecided(kernel="kernel", reason="tt.new is unknown", place="k.py:1")
    judgement = judge(minimal(cases(origin="wired")), Observation(undecided=(doubt,)))
    assert judgement.judged == frozenset()


# --- the reference --------------------------------------------------------------------


def test_a_token_sees_those_before_it() -> None:
    result = convolved(
        history=torch.tensor([[1.0], [2.0]]),
        inputs=torch.tensor([[3.0], [4.0]]),
        weight=torch.tensor([[100.0, 10.0, 1.0]]),
        bias=torch.tensor([1000.0]),
        silu=False,
        dtype="float32",
    )
    assert result.output[:, 0].tolist() == [1123.0, 1234.0]
    assert 0 < float(result.allowed.max()) < 1e-3


def test_a_window_ends_in_the_last_inputs() -> None:
    window = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0]])
    inputs = torch.tensor([[2.0], [3.0], [4.0], [6.0], [7.0]])
    assert next_window(window=window, inputs=inputs, kept=4)[:, 0].tolist() == [
        *(3.0, 4.0, 6.0, 7.0),
        5.0,
    ]


# --- releases -------------------------------------------------------------------------


def judge_on(executor: Executor, case: Case) -> Judgement:
    return executor.judge(rooms.load(TARGET), case)


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize("release", ["0.33.0", "0.20.1"])
def test_a_discarded_row_reads_before_its_window(
    releases: Releases, release: str
) -> None:
    saved = store.read(store.STORE, "causal-conv-f7e7dd33")
    case = decode(encode(saved.case), Case)
    (violation,) = releases(release).call(judge_on, case).violations
    assert violation.invariant == OWNED.id
    one = tuple(replace(row, accepted=max(row.accepted, 1)) for row in case.rows)
    right = replace(case, rows=one, seed=3)
    judgement = releases(release).call(judge_on, right)
    assert judgement.violations == ()
    assert judgement.judged == {law.id for law in INVARIANTS}
