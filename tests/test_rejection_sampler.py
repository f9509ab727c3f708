"""Rejection sampling: strategy, the rule in float64, laws, real kernels."""

from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch

from fuzz import rooms
from fuzz.execution import Executor
from invariants.memory.findings import Finding, Undecided
from invariants.model import ORIGINS, Judgement, Origin, decode, encode
from invariants.rejection_case import PLACEHOLDER, Case, Runner
from invariants.rejection_rows import Step, first_wrong
from invariants.rejection_sampler import (
    ALL_GREEDY,
    ALL_RANDOM,
    BLOCK_EDGE,
    CERTAIN,
    EMPTY,
    MIXED,
    PAST_BYTES,
    PAST_ELEMENTS,
    TOGETHER,
    Mismatch,
    Observation,
    Stray,
    What,
    judge,
)
from reproducers import store
from strategies.rejection_sampler import cases
from tests.elsewhere import Releases
from tests.strategy_search import find_any, minimal

TARGET = "rejection_sampler"
RUNNERS: tuple[Runner, ...] = ("v1", "v2")


def reached(case: Case) -> frozenset[str]:
    return judge(case, Observation()).labels


@pytest.mark.parametrize(
    ("origin", "label"),
    [
        *(("wired", label) for label in (PAST_ELEMENTS, PAST_BYTES, BLOCK_EDGE)),
        *(("wired", label) for label in (EMPTY, ALL_GREEDY, ALL_RANDOM, MIXED)),
        *(("contract", label) for label in (PAST_ELEMENTS, PAST_BYTES, TOGETHER)),
        *(("contract", label) for label in ("placeholder", "undrafted", "broken")),
        ("contract", CERTAIN),
    ],
)
def test_boundaries_are_reached(origin: Origin, label: str) -> None:
    find_any(cases(origin=origin), lambda case: label in reached(case))


@pytest.mark.parametrize("runner", RUNNERS)
def test_far_rows_of_both_runners_are_reached(runner: Runner) -> None:
    def far(case: Case) -> bool:
        return case.runner == runner and PAST_ELEMENTS in reached(case)

    case = minimal(cases(origin="wired"), far)
    if runner == "v2":
        # What the kernels multiply: a state's number, and the row of all its steps.
        assert (case.states - 1) * case.steps * case.vocab >= 2**31


@pytest.mark.parametrize("origin", ["wired", "contract"])
def test_a_case_shrinks_to_one_draft(origin: Origin) -> None:
    case = minimal(cases(origin=origin))
    assert (case.counts, case.vocab) == ((1,), 2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"counts": (0,)}, "up to 0 drafts"),
        ({"greedy": ()}, "0 of them greedy"),
        ({"row_stride": 2, "vocab": 3}, "rows of 3 logits, 2 apart"),
        ({"states": 2}, "V1 has no states"),
        ({"kinds": ("broken",)}, "no wired cases of broken"),
        ({"runner": "v2", "kinds": ("undrafted",)}, "drafts of V2"),
    ],
)
def test_a_case_that_no_runner_makes_is_refused(
    change: dict[str, object], reason: str
) -> None:
    case = find_any(
        cases(origin="wired"), lambda case: case.runner == "v1" and case.states == 1
    )
    with pytest.raises(ValueError, match=reason):
        replace(case, **change)  # type: ignore[arg-type]


# --- the rule -------------------------------------------------------------------------

LOGITS = torch.tensor([0.0, 2.0, 1.0], dtype=torch.float64)
UNIFORM = torch.full((3,), 1 / 3, dtype=torch.float64)
BONUS = torch.tensor([False, False, True])


def wrong_in(row: list[int], *drafts: Step, greedy: bool = False) -> What | None:
    found = first_wrong(row, drafts, BONUS, request=0, greedy=greedy, together=False)
    return None if found is None else found.what


def sure(token: int, uniform: float) -> Step:
    """A draft of a drafter that tells nothing: accepted as often as the target is."""
    return Step(token=token, logits=LOGITS, uniform=uniform)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ([1, 1, 2], None),
        ([1, 2, -1], "accepted"),
        ([0, -1, -1], "accepted"),
        ([1, 1, 1], "bonus"),
        ([1, 1, -1], "bonus"),
    ],
)
def test_accepted_drafts(row: list[int], what: What | None) -> None:
    assert wrong_in(row, sure(1, 0.1), sure(1, 0.6)) == what


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ([1, 0, -1], None),
        ([1, 2, -1], None),
        ([1, 1, 2], "recovered"),
        ([1, 3, -1], "recovered"),
        ([1, -1, -1], "recovered"),
        ([1, 0, 2], "rest"),
    ],
)
def test_a_rejected_draft(row: list[int], what: What | None) -> None:
    assert wrong_in(row, sure(1, 0.1), sure(1, 0.7)) == what


@pytest.mark.parametrize(
    ("row", "what"),
    [([1, 1, -1], None), ([1, 0, -1], "recovered"), ([0, -1, -1], "accepted")],
)
def test_a_greedy_request(row: list[int], what: What | None) -> None:
    drafts = (sure(1, 0.9), sure(PLACEHOLDER, 0.0))
    assert wrong_in(row, *drafts, greedy=True) == what


def test_a_tie_may_fall_either_way() -> None:
    even = Step(token=1, logits=LOGITS, uniform=float(LOGITS.softmax(-1)[1]))
    assert even.accepted(greedy=False) is None
    assert wrong_in([1, 2, -1], even) is None
    assert wrong_in([0, -1, -1], even) is None


def test_a_recovered_token_is_the_one_that_the_noise_takes() -> None:
    noise = torch.tensor([1.0, 1.0, 9.0], dtype=torch.float64)
    drafted = Step(token=0, logits=LOGITS, drafter=UNIFORM, noise=noise, uniform=0.9)
    # Of the residual, tokens 1 only: both others are likelier for the drafter.
    assert drafted.recoverable(greedy=False).tolist() == [False, True, False]
    alone = replace(drafted, drafter=None)
    assert alone.recoverable(greedy=False).tolist() == [False, False, True]


def test_nothing_is_left_of_the_same_distribution() -> None:
    same = Step(token=0, logits=LOGITS, drafter=LOGITS.softmax(-1), uniform=0.5)
    assert same.accepted(greedy=False)
    assert bool(same.recoverable(greedy=False).all())


def test_laws_by_place() -> None:
    case = find_any(
        cases(origin="wired"),
        lambda case: case.runner == "v1" and not any(case.greedy) and not case.far,
    )
    mismatch = Mismatch(
        what="rest", greedy=False, request=0, position=1, got=3, expected="nothing"
    )
    (wrong,) = judge(case, Observation(mismatches=(mismatch,))).violations
    assert (wrong.invariant, wrong.site) == ("REJECTION-RANDOM", "v1: rest")
    stray = Stray(where="recovered", token=8192, count=1)
    seen = Observation(mismatches=(mismatch,), strays=(stray,), expanded="[1]")
    assert {each.invariant for each in judge(case, seen).violations} == {
        "REJECTION-VOCABULARY",
        "REJECTION-EXPANDED",
    }
    assert "REJECTION-GREEDY" not in judge(case, Observation()).judged


def test_scratch_beside_a_wrong_access_is_its_consequence() -> None:
    case = minimal(cases(origin="wired"))
    missing = Finding(
        kind="never written",
        kernel="second",
        tensor="scratch_ptr",
        write=False,
        file="k.py",
        line=2,
        expression="",
        program=(0, 0, 0),
        lane=(),
        value=0,
        wrapped=0,
        limit=1,
        lanes=1,
        arithmetic="",
    )
    wrapped = replace(missing, kind="wrapped", kernel="first", tensor="logits_ptr")
    (alone,) = judge(case, Observation(findings=(missing,))).violations
    assert alone.invariant == "REJECTION-SCRATCH"
    (cause,) = judge(case, Observation(findings=(missing, wrapped))).violations
    assert (cause.invariant, cause.site) == ("REJECTION-EXACT", "first: logits_ptr")


def test_what_is_undecided_passes_nothing() -> None:
    doubt = Undecided(kernel="kernel", reason="tt.new is unknown", place="k.py:1")
    judgement = judge(minimal(cases(origin="wired")), Observation(undecided=(doubt,)))
    assert judgement.judged == frozenset()


# --- releases -------------------------------------------------------------------------


def judge_on(executor: Executor, case: Case) -> Judgement:
    return executor.judge(rooms.load(TARGET), case)


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize(("release", "holds"), [("0.33.0", True), ("0.20.1", False)])
def test_placeholders_are_rejected_since(
    releases: Releases, release: str, *, holds: bool
) -> None:
    for id_ in ("rejection-sampler-e91fa6f0", "rejection-sampler-d2bb3471"):
        case = decode(encode(store.read(store.STORE, id_).case), Case)
        judgement = releases(release).call(judge_on, case)
        assert judgement.judged
        assert (judgement.violations == ()) is holds


@pytest.mark.subject
@pytest.mark.network
def test_tokens_times_the_vocabulary_beyond_32_bits(releases: Releases) -> None:
    case = decode(
        encode(store.read(store.STORE, "rejection-sampler-f2233af1").case), Case
    )
    judgement = releases("0.33.0").call(judge_on, case)
    assert {each.invariant for each in judgement.violations} == {"REJECTION-EXACT"}
    below = replace(case, counts=(*case.counts[:-1], 0))
    assert releases("0.33.0").call(judge_on, below).violations == ()


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize("release", ["0.33.0", "0.20.1"])
def test_steps_of_a_release(releases: Releases, release: str) -> None:
    for origin, runner in product(ORIGINS, RUNNERS):
        case = find_any(cases(origin=origin), partial(_plain, runner=runner))
        judgement = releases(release).call(judge_on, case)
        assert judgement.violations == ()
        assert judgement.judged


def _plain(case: Case, *, runner: Runner) -> bool:
    """Whether 0.20.1 has such a step as well."""
    return (
        case.runner == runner
        and case.drafted == (runner == "v2")
        and len(case.counts) > 1
        and not case.block
        and not case.far
        and not {"placeholder", "broken"} & set(case.kinds)
    )
