"""The search finds each distinct fault, shrinks it by itself, spends its budget."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st

from fuzz.search import Fault, NotReproducible, SearchResult, search
from invariants.model import Judgement, Violation

NUMBERS = st.integers(0, 1_000_000)


@dataclass(frozen=True, kw_only=True)
class Pair:
    first: int
    second: int


PAIRS = st.builds(Pair, first=NUMBERS, second=NUMBERS)

Law = Callable[[Pair], bool]


def judge_by(**laws: Law) -> Callable[[Pair], Judgement]:
    def judge(case: Pair) -> Judgement:
        return Judgement(
            judged=frozenset(laws),
            violations=tuple(
                violation(name) for name, law in laws.items() if law(case)
            ),
            labels=frozenset({"even"} if case.first % 2 == 0 else ()),
        )

    return judge


def violation(invariant: str) -> Violation:
    return Violation(
        invariant=invariant,
        target="toy",
        origin="wired",
        site="f",
        message=f"{invariant} broken",
        evidence={},
    )


def found(result: SearchResult) -> dict[str, object]:
    return {fault.violation.invariant: fault.case for fault in result.faults}


THREE = judge_by(
    A=lambda case: case.first > 1_000,
    B=lambda case: case.second > 2_000,
    C=lambda case: case.first > 1_000 and case.second > 500_000,
)


def test_every_distinct_fault_is_found_and_shrunk_by_itself() -> None:
    result = search(cases=PAIRS, judge=THREE, seed=1, budget=1_000)
    assert found(result) == {
        "A": Pair(first=1_001, second=0),
        "B": Pair(first=0, second=2_001),
        "C": Pair(first=1_001, second=500_001),
    }
    assert all(fault.shrunk for fault in result.faults)


def test_the_budget_is_spent_though_faults_end_hypothesis_runs() -> None:
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    result = search(cases=PAIRS, judge=THREE, seed=1, budget=1_000, on_case=count)
    assert result.cases == calls == 1_000
    assert result.judged["A"] == 1_000
    assert 0 < result.labels["even"] < 1_000


def test_skipped_cases_are_counted_by_their_reason() -> None:
    def judge(case: Pair) -> Judgement:
        reason = "odd" if case.first % 2 else ""
        judged: frozenset[str] = frozenset() if reason else frozenset({"A"})
        return Judgement(
            judged=judged, violations=(), labels=frozenset(), skipped=reason
        )

    result = search(cases=PAIRS, judge=judge, seed=1, budget=200)
    assert 0 < result.skips["odd"] < 200
    assert result.skips["odd"] + result.judged["A"] == 200


def test_the_same_seed_gives_the_same_cases_and_another_seed_others() -> None:
    def cases_of(seed: int) -> list[Pair]:
        seen: list[Pair] = []

        def judge(case: Pair) -> Judgement:
            seen.append(case)
            return THREE(case)

        search(cases=PAIRS, judge=judge, seed=seed, budget=200)
        return seen

    assert cases_of(5) == cases_of(5)
    assert cases_of(5) != cases_of(6)


def test_a_silenced_fault_does_not_raise_but_its_cases_count() -> None:
    silenced = frozenset({violation("A").key.id, violation("C").key.id})
    result = search(cases=PAIRS, judge=THREE, seed=1, budget=500, silenced=silenced)
    assert set(found(result)) == {"B"}
    assert result.judged["A"] == 500


def test_a_fault_is_told_when_first_seen_and_when_shrunk() -> None:
    told: list[Fault] = []
    search(cases=PAIRS, judge=THREE, seed=1, budget=300, on_fault=told.append)
    for name in "ABC":
        states = [fault.shrunk for fault in told if fault.violation.invariant == name]
        assert states[0] is False
        assert states[-1] is True


def test_shrinking_stops_at_its_budget_with_a_case_that_fails() -> None:
    calls = 0
    deep = judge_by(A=lambda case: case.first > 900_000 and case.second > 900_000)

    def judge(case: Pair) -> Judgement:
        nonlocal calls
        calls += 1
        return deep(case)

    result = search(
        cases=PAIRS, judge=judge, seed=3, budget=5_000, shrink_cases=5, first_only=True
    )
    (fault,) = result.faults
    assert deep(fault.case).violations  # type: ignore[arg-type]
    # The search, five attempts, and the confirmation.
    assert calls <= result.cases + 5 + 1


def test_without_shrinking_the_first_fault_ends_the_search() -> None:
    result = search(
        cases=PAIRS, judge=THREE, seed=1, budget=1_000, shrink_cases=0, first_only=True
    )
    assert result.cases < 1_000
    assert not any(fault.shrunk for fault in result.faults)


def test_a_verdict_that_does_not_repeat_is_an_error_not_a_finding() -> None:
    seen: set[Pair] = set()

    def fickle(case: Pair) -> Judgement:
        first_time = case not in seen
        seen.add(case)
        return judge_by(A=lambda _: first_time)(case)

    with pytest.raises(NotReproducible, match="passes when judged again"):
        search(cases=PAIRS, judge=fickle, seed=1, budget=100)


def test_an_exception_of_the_judge_is_not_swallowed() -> None:
    def broken(case: Pair) -> Judgement:
        raise KeyError("the harness's own fault")

    with pytest.raises(KeyError, match="own fault"):
        search(cases=PAIRS, judge=broken, seed=1, budget=100)


def test_a_small_space_ends_the_search_early() -> None:
    cases = st.builds(Pair, first=st.integers(0, 1), second=st.just(0))
    result = search(cases=cases, judge=THREE, seed=1, budget=1_000)
    assert result.cases == 2
