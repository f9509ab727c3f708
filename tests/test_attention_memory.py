"""Attention kernels under the memory checker: strategy, laws, real kernels, script."""

from dataclasses import replace
from pathlib import Path

import pytest

from fuzz import rooms
from fuzz.execution import Executor
from invariants.attention_memory import (
    COMPARED,
    EXACT,
    FEW_ROWS,
    INVARIANTS,
    OWNED,
    PADDED,
    RAISES,
    SCRATCH,
    SINKS,
    STORES,
    VALUES,
    Observation,
    judge,
)
from invariants.memory.findings import Finding, Kind, Undecided
from invariants.model import (
    ORIGINS,
    Invariant,
    Judgement,
    Origin,
    Raised,
    decode,
    encode,
)
from invariants.verify_attention import (
    LAST_BLOCK,
    PAST_BYTES,
    PAST_ELEMENTS,
    PAST_HEADS,
    PAST_SCALES,
    SHARED,
    LaunchObservation,
    Mismatch,
)
from invariants.verify_case import Case, geometry
from reproducers import store
from strategies.attention_memory import cases
from tests.elsewhere import Releases
from tests.strategy_search import find_any, minimal

TARGET = "attention_memory"
FOUND = Finding(
    kind="wrapped",
    kernel="kernel",
    file="vllm/kernel.py",
    line=7,
    expression="tl.load(key + at)",
    tensor="key",
    write=False,
    program=(1, 2, 0),
    lane=(3,),
    value=2**31,
    wrapped=-(2**31),
    limit=2**31 - 1,
    lanes=5,
    arithmetic="2 x 1073741824 = 2147483648 > 2147483647",
)
RAN = LaunchObservation(block_stride=16, head_stride=4, element_bytes=2)


def reached(case: Case) -> frozenset[str]:
    place = geometry(case)
    seen = LaunchObservation(
        block_stride=place.block_stride,
        head_stride=place.head_stride,
        scale_stride=place.scale_strides[0] if case.scaled else 0,
        scale_head_stride=place.scale_strides[2] if case.scaled else 0,
        element_bytes=place.element_bytes,
    )
    return judge(case, Observation(launch=seen)).labels


@pytest.mark.parametrize(
    "label",
    [
        *(PAST_ELEMENTS, PAST_BYTES, PAST_SCALES, PAST_HEADS, LAST_BLOCK, SHARED),
        *(COMPARED, SINKS, PADDED, FEW_ROWS),
    ],
)
def test_boundaries_are_reached(label: str) -> None:
    find_any(cases(origin="contract"), lambda case: label in reached(case))


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize(
    "stored", ["bfloat16", "float16", "fp8", "int8_per_token_head"]
)
def test_every_type_is_compared(origin: Origin, stored: str) -> None:
    wanted = {stored, COMPARED}
    find_any(cases(origin=origin), lambda case: wanted <= reached(case))


def test_outputs_are_judged_where_they_were_compared() -> None:
    case = replace(minimal(cases(origin="wired")), seed=3)
    assert VALUES.id not in judge(replace(case, seed=0), Observation(launch=RAN)).judged
    assert VALUES.id in judge(case, Observation(launch=RAN)).judged
    wrong = Mismatch(
        outside=2,
        elements=8,
        token=0,
        head=0,
        dim=1,
        got="nan",
        expected="1",
        allowed="0.1",
    )
    ran = replace(RAN, mismatch=wrong)
    (violation,) = judge(case, Observation(launch=ran)).violations
    assert (violation.invariant, violation.target) == (VALUES.id, TARGET)
    # Seven heads of a group leave rows of a tile over, which two programs store.
    uneven = replace(case, shape=replace(case.shape, queries_per_kv=7))
    assert VALUES.id not in judge(uneven, Observation(launch=RAN)).judged


@pytest.mark.parametrize("origin", ["wired", "contract"])
def test_a_case_shrinks_to_one_key(origin: str) -> None:
    case = minimal(cases(origin=origin))  # type: ignore[arg-type]
    assert case.layout.num_tokens == (1,)
    assert case.query_lens == (1,)


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        ("wrapped", EXACT),
        ("outside the view", OWNED),
        ("page not owned", OWNED),
        ("never written", SCRATCH),
        ("stored twice", STORES),
        ("read-only", STORES),
    ],
)
def test_each_kind_breaks_its_law(kind: Kind, law: Invariant) -> None:
    case = minimal(cases(origin="wired"))
    found = (replace(FOUND, kind=kind), replace(FOUND, kind=kind, line=9))
    judgement = judge(case, Observation(launch=RAN, findings=found))
    assert judgement.judged == {each.id for each in INVARIANTS if each is not VALUES}
    (violation,) = judgement.violations
    assert violation.invariant == law.id
    assert violation.site == "kernel: key"
    assert violation.evidence["value"] == 2**31


def test_what_a_wrapper_raises_is_told() -> None:
    raised = Raised(type="IndexError", message="no row 3", site="unified_attention")
    case = minimal(cases(origin="wired"))
    judgement = judge(case, Observation(launch=LaunchObservation(raised=raised)))
    (violation,) = judgement.violations
    assert (violation.invariant, violation.site) == (RAISES.id, "unified_attention")
    assert judgement.judged == {RAISES.id}


def test_what_is_undecided_passes_nothing() -> None:
    case = minimal(cases(origin="wired"))
    doubt = Undecided(kernel="kernel", reason="tt.new is unknown", place="k.py:1")
    judgement = judge(case, Observation(launch=RAN, undecided=(doubt,)))
    assert judgement.judged == frozenset()
    assert judgement.skipped == "undecided: kernel: tt.new is unknown (k.py:1)"
    both = judge(case, Observation(launch=RAN, findings=(FOUND,), undecided=(doubt,)))
    assert [each.invariant for each in both.violations] == [EXACT.id]


# --- releases -------------------------------------------------------------------------


def judge_on(executor: Executor, case: Case) -> Judgement:
    return executor.judge(rooms.load(TARGET), case)


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize(("release", "wraps"), [("0.33.0", True), ("0.20.1", False)])
def test_scale_offsets_of_heads(
    releases: Releases, release: str, *, wraps: bool
) -> None:
    saved = store.read(store.STORE, "attention-memory-4f895db6")
    case = decode(encode(saved.case), Case)
    # The tree of 0.20.1 has no such layout; by hand it has.
    contract = replace(case, origin="contract")
    judgement = releases(release).call(judge_on, contract)
    assert [each.site for each in judgement.violations] == (
        [
            "kernel_unified_attention: k_scale_cache_ptr",
            "kernel_unified_attention: v_scale_cache_ptr",
        ]
        if wraps
        else []
    )


def test_the_script_shows_it_by_what_stands_in() -> None:
    text = Path(store.STORE, "attention-memory-4f895db6", "repro.py").read_text("utf-8")
    assert "VERIFY-ADDRESS" in text
    assert "signal 11" in text
    assert "invariants.memory" not in text
    # Scratch is ordinary memory, whose neighbours exist: no process dies of it.
    for id_ in ("attention-memory-e36220b0", "attention-memory-7a3a7c55"):
        text = Path(store.STORE, id_, "repro.py").read_text("utf-8")
        assert "signal 11" not in text
        assert "from fuzz.targets.attention_memory import" in text


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize(("release", "reads"), [("0.33.0", False), ("0.20.1", True)])
def test_scratch_of_padding(releases: Releases, release: str, *, reads: bool) -> None:
    saved = store.read(store.STORE, "attention-memory-e36220b0")
    case = decode(encode(saved.case), Case)
    subject = releases(release)
    judgement = subject.call(judge_on, case)
    alone = subject.call(judge_on, replace(case, padding_tokens=0))
    assert {each.invariant for each in judgement.violations} == (
        {SCRATCH.id} if reads else set()
    )
    assert alone.violations == ()
