"""V2's sampling states under the memory checker: strategy, reference, laws."""

from dataclasses import replace

import numpy as np
import pytest

from fuzz import rooms
from fuzz.execution import Executor
from invariants.memory.findings import Undecided
from invariants.model import Judgement, Origin, Raised, decode, encode
from invariants.penalised_logits import counts_of, expected_row
from invariants.penalties import (
    COUNTS,
    EXACT,
    INVARIANTS,
    LOGITS,
    RAISES,
    REUSED,
    Mismatch,
    Observation,
    judge,
)
from invariants.penalties_case import Case, Part, Request
from reproducers import store
from strategies.penalties import PLAIN, cases
from tests.elsewhere import Elsewhere
from tests.strategy_search import find_any, minimal

TARGET = "penalties"


def case_of(*requests: Request, part: Part = "all", vocabulary: int = 33) -> Case:
    return Case(
        format_version=1,
        origin="wired" if part == "all" else "contract",
        part=part,
        vocabulary=vocabulary,
        slots=4,
        longest=64,
        ended=(),
        requests=requests,
        order=tuple(range(len(requests))),
        row_stride=vocabulary,
        seed=0,
    )


def changed_row(
    case: Case, row: int = 0
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """A row of ones after the case's parameters."""
    return expected_row(case, row, np.ones(case.vocabulary)).logits


def reached(case: Case) -> frozenset[str]:
    """With slots as a release gives them: from the last one on."""
    slots = tuple(case.slots - 1 - at for at in range(len(case.requests)))
    return judge(case, Observation(slots=slots, reused=bool(case.ended))).labels


NEEDED: dict[Origin, set[str]] = {
    origin: {label for law in INVARIANTS for label in law.labels_needed(origin) or ()}
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
def test_a_case_shrinks_to_one_plain_request(origin: Origin) -> None:
    case = minimal(cases(origin=origin))
    assert (case.requests, case.ended) == ((PLAIN,), ())


# --- the reference --------------------------------------------------------------------


def test_penalties_are_those_of_prompt_and_output() -> None:
    one = replace(
        PLAIN,
        prompt=2,
        resumed=2,
        drafts=1,
        repetition=2.0,
        frequency=0.5,
        presence=1.0,
    )
    case = case_of(one)
    prompt, output = case.tokens(0)[:2], case.tokens(0)[2:4]
    before = changed_row(case)
    for token in range(case.vocabulary):
        expected = 0.5 if token in prompt + output else 1.0
        expected -= 0.5 * output.count(token) + (1.0 if token in output else 0.0)
        assert before[token] == expected
    draft = case.tokens(0)[4]
    after = changed_row(case, 1)
    assert after[draft] < before[draft]
    assert counts_of(case, 0, drafts=1)[draft] == output.count(draft) + 1


def test_negative_logits_are_multiplied() -> None:
    one = replace(PLAIN, repetition=2.0)
    token = case_of(one).tokens(0)[0]
    made = expected_row(case_of(one), 0, -np.ones(33)).logits
    assert made[token] == -2.0


def test_stop_tokens_come_after_min_tokens() -> None:
    one = replace(PLAIN, sampled=2, drafts=2, min_tokens=3, stops=(5,))
    made = [changed_row(case_of(one), row)[5] for row in range(3)]
    assert made == [-np.inf, 1.0, 1.0]


def test_bias_and_allowed_tokens() -> None:
    one = replace(PLAIN, bias=((4, 2.0), (6, 1.0)), allowed=(4, 5))
    made = changed_row(case_of(one))
    assert (made[4], made[5], made[6]) == (3.0, 1.0, -np.inf)


def test_bad_words_begin_in_the_output() -> None:
    plain = replace(PLAIN, prompt=3, sampled=1, drafts=2)
    tokens = case_of(plain, vocabulary=8200).tokens(0)
    last = 2
    words = {
        (last,): 0,
        (tokens[3], last): 0,
        (tokens[2], tokens[3], last): -1,
        (tokens[3], tokens[4], last): 1,
    }
    for word, row in words.items():
        case = case_of(replace(plain, bad_words=(word,)), vocabulary=8200)
        banned = [bool(np.isinf(changed_row(case, at)[last])) for at in range(3)]
        assert any(banned) == (row >= 0)
        if row >= 0:
            assert banned[row]


def test_temperature_and_min_p() -> None:
    raw = np.array([2.0, 1.0, 0.0])
    one = replace(PLAIN, temperature=0.5, min_p=0.25)
    case = case_of(one, vocabulary=3)
    made = expected_row(case, 0, raw)
    assert made.logits.tolist() == [4.0, -np.inf, -np.inf]
    greedy = case_of(replace(one, temperature=0.0), vocabulary=3)
    assert expected_row(greedy, 0, raw).logits.tolist() == raw.tolist()
    near = np.array([0.0, np.log(0.25), -9.0])
    plain = case_of(replace(one, temperature=1.0), vocabulary=3)
    assert expected_row(plain, 0, near).either.tolist() == [False, True, False]


# --- laws -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"order": (1,)}, "no order"),
        ({"slots": 1, "ended": (PLAIN, PLAIN)}, "in 1 slots"),
        ({"row_stride": 40}, "40 apart"),
        ({"longest": 2, "requests": (replace(PLAIN, sampled=2),)}, "longer than 2"),
        ({"requests": (replace(PLAIN, stops=(33,)),)}, "token 33 of 33"),
        ({"requests": (replace(PLAIN, bad_words=((),)),)}, "without tokens"),
        ({"origin": "contract"}, "contract cases of all"),
    ],
)
def test_a_step_that_nobody_makes_is_refused(
    change: dict[str, object], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(case_of(PLAIN), **change)  # type: ignore[arg-type]


def test_what_is_wrong_breaks_its_law() -> None:
    case = case_of(PLAIN)
    assert judge(case, Observation()).judged == {law.id for law in INVARIANTS}
    wrong = Mismatch(
        kind="logits", where=0, token=1, got="1.0", expected="-inf", rule="kernel"
    )
    (found,) = judge(case, Observation(mismatch=wrong)).violations
    assert (found.invariant, found.site) == (LOGITS.id, "kernel")
    counted = replace(wrong, kind="counts")
    judgement = judge(case, Observation(mismatch=counted))
    assert [each.invariant for each in judgement.violations] == [COUNTS.id]
    assert LOGITS.id not in judgement.judged
    raised = Raised(type="ValueError", message="shape", site="f")
    assert judge(case, Observation(raised=raised)).judged == {RAISES.id}
    doubt = Undecided(kernel="kernel", reason="tt.new is unknown", place="k.py:1")
    assert judge(case, Observation(undecided=(doubt,))).judged == frozenset()
    assert REUSED in judge(case, Observation(reused=True)).labels


# --- releases -------------------------------------------------------------------------


def judge_on(executor: Executor, case: Case) -> Judgement:
    return executor.judge(rooms.load(TARGET), case)


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize(("release", "holds"), [("0.33.0", True), ("0.20.1", False)])
def test_faults_of_a_release(release: str, *, holds: bool) -> None:
    with Elsewhere(release) as subject:
        for id_, law in (
            ("penalties-7972524b", LOGITS),
            ("penalties-087947b0", LOGITS),
            ("penalties-f6f88139", EXACT),
            ("penalties-dbaf1b60", EXACT),
        ):
            case = decode(encode(store.read(store.STORE, id_).case), Case)
            judgement = subject.call(judge_on, case)
            assert law.id in judgement.judged
            assert (judgement.violations == ()) is holds
        one = replace(PLAIN, sampled=1, repetition=2.0, bias=((1, 1.0),), min_p=0.5)
        judgement = subject.call(judge_on, case_of(one, replace(one, drafts=2)))
        assert judgement.judged == {law.id for law in INVARIANTS}
        assert judgement.violations == ()
