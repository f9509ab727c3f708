"""Writes of keys and values under the memory checker: strategy, laws, real kernels."""

from dataclasses import replace

import pytest

from fuzz import rooms
from fuzz.execution import Executor
from fuzz.targets._escaped import tree_raised
from invariants.kv_write import (
    INVARIANTS,
    KEEPS,
    LAST_BLOCK,
    PADDED,
    PAST_BYTES,
    PAST_ELEMENTS,
    PAST_HEADS,
    PAST_SCALES,
    PAST_SLOTS,
    VALUES,
    Mismatch,
    Observation,
    compared_label,
    judge,
)
from invariants.kv_write_case import KERNELS, Case, geometry
from invariants.memory.findings import Undecided
from invariants.model import Judgement, decode, encode
from reproducers import store
from strategies.kv_write import cases
from tests.elsewhere import Releases
from tests.strategy_search import find_any, minimal

TARGET = "kv_write"
WRONG = Mismatch(
    kind="rows",
    tensor="key",
    elements=3,
    slot=16,
    head=0,
    dim=1,
    got="nan",
    expected="0.5",
)


def reached(case: Case) -> frozenset[str]:
    place = geometry(case)
    scales = place.scale_strides if case.form == "per_token_head" else (0, 0, 0)
    seen = Observation(
        block_stride=place.block_stride,
        scale_stride=scales[0],
        head_stride=max(place.head_stride, scales[2]),
        element_bytes=place.element_bytes,
    )
    return judge(case, seen).labels


@pytest.mark.parametrize(
    "label",
    [
        *(PAST_ELEMENTS, PAST_BYTES, PAST_SCALES, PAST_HEADS, PAST_SLOTS),
        *(LAST_BLOCK, PADDED, "heads_first", "diffkv", *map(compared_label, KERNELS)),
    ],
)
def test_boundaries_are_reached(label: str) -> None:
    find_any(cases(origin="contract"), lambda case: label in reached(case))


@pytest.mark.parametrize("origin", ["wired", "contract"])
def test_a_case_shrinks_to_one_token(origin: str) -> None:
    case = minimal(cases(origin=origin))  # type: ignore[arg-type]
    assert len(case.slots) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"slots": (16, 16)}, "one slot"),
        ({"slots": (0,)}, "null block"),
        ({"slots": (-1,)}, "0 of them written"),
        ({"pool_blocks": 2, "slots": (32,)}, "blocks 2 to 2 of 2"),
        ({"value_size": 32}, "diffkv"),
    ],
)
def test_a_case_that_no_step_makes_is_refused(
    change: dict[str, object], reason: str
) -> None:
    case = find_any(
        cases(origin="wired"),
        lambda case: case.block_size == 16 and case.form == "flash",
    )
    with pytest.raises(ValueError, match=reason):
        replace(case, **change)  # type: ignore[arg-type]


def test_contents_are_judged_where_they_were_compared() -> None:
    case = replace(minimal(cases(origin="wired")), seed=3)
    assert judge(replace(case, seed=0), Observation()).judged == {
        law.id for law in INVARIANTS if law not in (VALUES, KEEPS)
    }
    assert judge(case, Observation()).judged == {law.id for law in INVARIANTS}
    (wrong,) = judge(case, Observation(mismatches=(WRONG,), stray=True)).violations
    assert (wrong.invariant, wrong.site.partition(": ")[2]) == (VALUES.id, "rows")
    (stray,) = judge(case, Observation(stray=True)).violations
    assert stray.invariant == KEEPS.id


def test_what_is_undecided_passes_nothing() -> None:
    doubt = Undecided(kernel="kernel", reason="tt.new is unknown", place="k.py:1")
    judgement = judge(minimal(cases(origin="wired")), Observation(undecided=(doubt,)))
    assert judgement.judged == frozenset()
    assert judgement.skipped == "undecided: kernel: tt.new is unknown (k.py:1)"


def call_ours(name: str) -> None:
    """A function of the tree that calls one of another package, which fails."""
    code = "def failing():\n    raise MemoryError\n"
    inner: dict[str, object] = {"__name__": name}
    exec(code, inner)  # noqa: S102 - a frame of that module
    outer = {"__name__": "vllm.ops", "failing": inner["failing"]}
    exec("def wrapper():\n    failing()\n", outer)  # noqa: S102
    outer["wrapper"]()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "ours"), [("invariants.memory.regions", True), ("triton.compiler", False)]
)
def test_what_fails_in_the_checker_is_no_fault_of_the_tree(
    name: str, *, ours: bool
) -> None:
    with pytest.raises(MemoryError) as caught:
        call_ours(name)
    if ours:
        with pytest.raises(MemoryError):
            tree_raised(caught.value)
    else:
        assert tree_raised(caught.value).site == "wrapper"


# --- releases -------------------------------------------------------------------------


def judge_on(executor: Executor, case: Case) -> Judgement:
    return executor.judge(rooms.load(TARGET), case)


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize(("release", "holds"), [("0.33.0", True), ("0.20.1", False)])
@pytest.mark.parametrize(
    "id_",
    ["kv-write-006b0364", "kv-write-7afc0306"],
    ids=["int8 is cut off", "heads are taken for neighbours"],
)
def test_faults_of_a_release(
    releases: Releases, id_: str, release: str, *, holds: bool
) -> None:
    case = decode(encode(store.read(store.STORE, id_).case), Case)
    judgement = releases(release).call(judge_on, case)
    assert VALUES.id in judgement.judged
    assert (judgement.violations == ()) is holds


@pytest.mark.subject
@pytest.mark.network
def test_a_pool_of_terabytes_costs_no_memory(releases: Releases) -> None:
    case = find_any(
        cases(origin="wired"),
        lambda case: (
            case.order == "planes"
            and case.form == "per_token_head"
            and geometry(case).size_bytes > 2**35
        ),
    )
    for seed in (0, 3):
        judgement = releases("0.33.0").call(judge_on, replace(case, seed=seed))
        assert judgement.violations == ()
        assert judgement.judged


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize(("release", "wrong"), [("0.24.0", True), ("0.33.0", False)])
def test_scales_of_padded_pages(
    releases: Releases, release: str, *, wrong: bool
) -> None:
    # vllm-project/vllm#49716: views of scales step over pages as if none was padded.
    case = find_any(
        cases(origin="wired"),
        lambda case: (case.form, case.order) == ("per_token_head", "tokens"),
    )
    padded = replace(case, padding=64, layers=1, seed=0)
    judgement = releases(release).call(judge_on, padded)
    found = {each.site for each in judgement.violations}
    kernel = "_reshape_cache_per_token_head"
    assert found == (
        {f"{kernel}: k_scale_cache_ptr", f"{kernel}: v_scale_cache_ptr"}
        if wrong
        else set()
    )
