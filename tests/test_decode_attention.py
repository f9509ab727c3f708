"""Decode attention in the memory checker: strategy, laws, reference, kernels."""

from dataclasses import replace

import pytest

from fuzz import rooms
from fuzz.execution import Executor
from invariants.decode_attention import (
    ALONE,
    CAPPED,
    COMPARED,
    EXACT,
    INVARIANTS,
    LAST_BLOCK,
    LSE,
    OWNED,
    PADDED,
    PAST_BYTES,
    PAST_ELEMENTS,
    PAST_SCRATCH,
    SCRATCH,
    SEVERAL,
    SHARED,
    SHORT,
    STORES,
    TILE_EDGE,
    VALUES,
    WIDE_GROUP,
    Mismatch,
    Observation,
    judge,
)
from invariants.decode_case import Case, geometry
from invariants.memory.findings import Finding, Kind, Undecided
from invariants.model import Invariant, Judgement, Origin, decode, encode
from reproducers import store
from strategies.decode_attention import cases
from tests.elsewhere import Releases
from tests.strategy_search import find_any, minimal

TARGET = "decode_attention"
FOUND = Finding(
    kind="wrapped",
    kernel="stage1",
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
WRONG = Mismatch(
    kind="output",
    outside=3,
    row=0,
    head=1,
    dim=2,
    got="nan",
    expected="0.5",
    allowed="0.01",
)


def reached(case: Case) -> frozenset[str]:
    place = geometry(case)
    splits = case.splits or 4
    row = case.heads * splits * (case.value_size + 1) + case.scratch_padding
    seen = Observation(
        splits=splits,
        block_stride=place.block_stride,
        element_bytes=place.element_bytes,
        scratch_stride=row,
    )
    return judge(case, seen).labels


@pytest.mark.parametrize(
    ("origin", "label"),
    [
        *(("wired", each) for each in (PAST_ELEMENTS, PAST_BYTES, PADDED, SHARED)),
        *(("wired", each) for each in (ALONE, SEVERAL, SHORT, TILE_EDGE, COMPARED)),
        *(("contract", each) for each in (PAST_ELEMENTS, PAST_SCRATCH, LAST_BLOCK)),
        *(("contract", each) for each in (CAPPED, WIDE_GROUP, "sliced", "fp8")),
    ],
)
def test_boundaries_are_reached(origin: Origin, label: str) -> None:
    find_any(cases(origin=origin), lambda case: label in reached(case))


@pytest.mark.parametrize("origin", ["wired", "contract"])
def test_a_case_shrinks_to_one_token(origin: Origin) -> None:
    case = minimal(cases(origin=origin))
    assert case.layout.num_tokens == (1,)
    assert case.rows == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"query_len": 9}, "9 query tokens"),
        ({"heads": 3, "kv_heads": 2}, "3 query heads for 2"),
        ({"kv_heads": 2}, "2 heads of one latent"),
        ({"splits": 4}, "4 splits"),
        ({"max_seq_len": 0}, "sequences up to 0"),
        ({"logit_cap": 1.0}, "no backend"),
        ({"flat": True, "layers": 2}, "flat"),
    ],
)
def test_a_case_that_nobody_makes_is_refused(
    change: dict[str, object], reason: str
) -> None:
    case = minimal(cases(origin="wired"))
    with pytest.raises(ValueError, match=reason):
        replace(case, **change)  # type: ignore[arg-type]


def test_a_row_sees_the_tokens_before_its_own() -> None:
    several = find_any(
        cases(origin="wired"),
        lambda case: case.query_len == 4 and len(case.layout.num_tokens) == 1,
    )
    (tokens,) = several.layout.num_tokens
    causal = replace(several, causal=True)
    assert causal.row_tokens == (tokens - 3, tokens - 2, tokens - 1, tokens)
    assert replace(several, causal=False).row_tokens == (tokens,) * 4


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
    case = replace(minimal(cases(origin="wired")), seed=3)
    judgement = judge(case, Observation(findings=(replace(FOUND, kind=kind),)))
    assert judgement.judged == {
        each.id for each in INVARIANTS if each not in (VALUES, LSE)
    }
    (violation,) = judgement.violations
    assert (violation.invariant, violation.site) == (law.id, "stage1: key")


def test_what_a_lost_store_leaves_unwritten_is_no_fault_of_its_own() -> None:
    case = minimal(cases(origin="wired"))
    lost = replace(FOUND, write=True)
    unwritten = replace(FOUND, kind="never written", kernel="stage2")
    judgement = judge(case, Observation(findings=(lost, unwritten)))
    assert [each.invariant for each in judgement.violations] == [EXACT.id]


def test_outputs_are_judged_where_they_were_compared() -> None:
    case = replace(minimal(cases(origin="wired")), seed=3)
    assert judge(case, Observation()).judged == {law.id for law in INVARIANTS}
    assert VALUES.id not in judge(replace(case, seed=0), Observation()).judged
    lse = replace(WRONG, kind="lse")
    (output,) = judge(case, Observation(mismatches=(WRONG, lse))).violations
    assert output.invariant == VALUES.id
    (sum_,) = judge(case, Observation(mismatches=(lse,))).violations
    assert (sum_.invariant, sum_.site.partition(": ")[2]) == (LSE.id, "lse")


def test_what_is_undecided_passes_nothing() -> None:
    doubt = Undecided(kernel="kernel", reason="tt.new is unknown", place="k.py:1")
    judgement = judge(minimal(cases(origin="wired")), Observation(undecided=(doubt,)))
    assert judgement.judged == frozenset()
    assert judgement.skipped == "undecided: kernel: tt.new is unknown (k.py:1)"


# --- releases -------------------------------------------------------------------------


def judge_all(executor: Executor, judged: list[Case]) -> list[Judgement]:
    room = rooms.load(TARGET)
    return [executor.judge(room, each) for each in judged]


def saved(id_: str) -> Case:
    return decode(encode(store.read(store.STORE, f"decode-attention-{id_}").case), Case)


def hand_made() -> list[Case]:
    """Correct launches at an edge each: their value mode must agree everywhere."""
    grouped = find_any(
        cases(origin="wired"),
        lambda case: (
            case.group == 16
            and case.query_len == 1
            and case.layers == 1
            and not case.padding
            and len(case.layout.num_tokens) == 1
            and case.layout.pool_blocks < 2**12
        ),
    )
    alone = find_any(
        cases(origin="contract"),
        lambda case: (
            case.group == 1
            and case.order == "tokens"
            and case.layers == 1
            and not case.padding
            and PAST_ELEMENTS not in reached(case)
            and PAST_BYTES in reached(case)
        ),
    )
    return [replace(each, seed=3) for each in (grouped, alone)]


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize(("release", "fixed"), [("0.33.0", True), ("0.20.1", False)])
def test_faults_of_a_release(releases: Releases, release: str, *, fixed: bool) -> None:
    ids = {
        "29a5d11b": EXACT.id,
        "89ac8964": "DECODE-RAISES",
        "33c47e6e": EXACT.id,
    }
    judged = [*map(saved, ids), saved("762e6a21"), *hand_made()]
    *known, wide, grouped, alone = releases(release).call(judge_all, judged)
    broken = [{each.invariant for each in judgement.violations} for judgement in known]
    assert broken == [set() if fixed else {law} for law in ids.values()]
    # In every release a tile of heads reaches into the next group.
    assert [each.invariant for each in wide.violations] == [VALUES.id]
    for judgement in (grouped, alone):
        assert judgement.violations == ()
        assert {VALUES.id, LSE.id} <= judgement.judged
