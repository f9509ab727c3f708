"""The laws on page sizes: right answers break none, each wrong one breaks its own."""

from dataclasses import replace
from typing import Any

import pytest

from invariants.hybrid_config import Deployment, Drafter, HybridConfig, TargetModel
from invariants.model import Raised, decode, encode
from invariants.page_laws import INVARIANTS
from invariants.page_plan import Place, Plan, Worker
from invariants.page_size import Case, Observation, Unified, UnifyCalls, judge
from invariants.specs import (
    AttentionShape,
    Kind,
    LayerSpec,
    MambaState,
    SeenLayer,
    content_bytes,
    flaw,
    page_bytes,
)

UNIFY = "unify_kv_cache_spec_page_size"
PAD_ALL: tuple[Kind, ...] = ("mamba", "full", "sliding_window", "chunked_local")

ATTENTION = AttentionShape(
    num_kv_heads=2, head_size=64, head_size_v=64, dtype="bfloat16"
)
FULL = LayerSpec(kind="full", block_size=16, attention=ATTENTION)
WINDOW = LayerSpec(
    kind="sliding_window", block_size=16, attention=replace(ATTENTION, window=128)
)
STATE = LayerSpec(
    kind="mamba",
    block_size=16,
    mamba=MambaState(
        shapes=((3, 64), (2, 16, 16)),
        dtypes=("bfloat16", "float32"),
        cache_mode="none",
        num_speculative_blocks=0,
    ),
    page_size_padded=4096,
)


def layer(name: str, spec: LayerSpec, page: int | None = None) -> SeenLayer:
    page = page_bytes(spec) if page is None else page
    return SeenLayer(name=name, page_bytes=page, spec=spec)


# Arithmetic


def test_content_of_each_kind() -> None:
    assert content_bytes(FULL) == 16 * 2 * (64 + 64) * 2
    scaled = replace(ATTENTION, dtype="uint8", scales="per_token_head")
    assert content_bytes(replace(FULL, attention=scaled)) == 16 * 2 * (128 + 8)
    assert content_bytes(STATE) == 3 * 64 * 2 + 2 * 16 * 16 * 4
    mla = AttentionShape(num_kv_heads=1, head_size=576, head_size_v=0, dtype="bfloat16")
    spec = LayerSpec(kind="mla", block_size=64, attention=mla)
    assert content_bytes(spec) == 64 * 576 * 2
    rounded = replace(spec, attention=replace(mla, alignment=4096))
    assert page_bytes(rounded) == 18 * 4096


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (replace(FULL, mamba=STATE.mamba), "not both"),
        (replace(WINDOW, attention=ATTENTION), "with window None"),
        (replace(FULL, page_size_padded=100), "padded to 100 bytes"),
        (replace(FULL, kind="mla"), "head_size_v"),
    ],
)
def test_a_case_refuses_inconsistent_specs(spec: LayerSpec, text: str) -> None:
    assert flaw(spec) is not None
    with pytest.raises(ValueError, match=text):
        Case(format_version=1, origin="contract", layers=(spec,))


# Laws of unification


def unify_broken(
    given: tuple[SeenLayer, ...],
    result: tuple[SeenLayer, ...],
    **changes: Any,
) -> set[str]:
    first = Unified(raised=None, layers=result)
    reordered = Unified(raised=None, layers=tuple(reversed(result)))
    calls = UnifyCalls(
        given=given, kept=given, first=first, again=first, reordered=reordered
    )
    return broken_unify(replace(calls, **changes))


def broken_unify(calls: UnifyCalls) -> set[str]:
    specs = tuple(seen.spec for seen in calls.given)
    case = Case(format_version=1, origin="contract", layers=specs)
    seen = Observation(may_pad=PAD_ALL, must_pad=PAD_ALL, unify=calls)
    assert decode(encode(seen), Observation) == seen
    return {violation.invariant for violation in judge(case, seen).violations}


def sites(calls: UnifyCalls) -> set[str]:
    specs = tuple(seen.spec for seen in calls.given)
    case = Case(format_version=1, origin="contract", layers=specs)
    seen = Observation(may_pad=PAD_ALL, must_pad=PAD_ALL, unify=calls)
    return {violation.site for violation in judge(case, seen).violations}


GIVEN = (layer("a", STATE), layer("b", replace(FULL, block_size=32)))
WIDE_STATE = replace(STATE, page_size_padded=16384)
GOOD = (layer("a", WIDE_STATE), GIVEN[1])


def test_a_right_answer_breaks_nothing() -> None:
    assert unify_broken(GIVEN, GOOD) == set()


@pytest.mark.parametrize(
    ("result", "law"),
    [
        (GIVEN, "PAGE-UNIFY-ONE-SIZE"),
        (tuple(reversed(GOOD)), "PAGE-UNIFY-LAYERS"),
        (GOOD[:1], "PAGE-UNIFY-LAYERS"),
        ((layer("a", WIDE_STATE, 512), GIVEN[1]), "PAGE-CONTENT"),
        ((layer("a", replace(WIDE_STATE, block_size=32)), GIVEN[1]), "PAGE-FIELDS"),
        (
            (GOOD[0], layer("b", replace(WINDOW, block_size=32))),
            "PAGE-FIELDS",
        ),
        (
            (GOOD[0], layer("b", FULL, 16384)),
            "PAGE-WASTE",
        ),
    ],
)
def test_each_wrong_result_breaks_its_law(
    result: tuple[SeenLayer, ...], law: str
) -> None:
    assert law in unify_broken(GIVEN, result)


def test_what_a_spec_says_beyond_its_shape_stays() -> None:
    told = (("extra_retained_tokens", "3"), ("kv_quant_mode", "1"))
    given = (GIVEN[0], replace(GIVEN[1], fields=told))
    assert unify_broken(given, (GOOD[0], given[1])) == set()
    for changed in (told[:1], told[1:], (told[0], ("kv_quant_mode", "0"))):
        final = replace(GIVEN[1], fields=changed)
        assert unify_broken(given, (GOOD[0], final)) == {"PAGE-FIELDS"}
    # Planning tells a drafter's window anew, and nothing else.
    layers = (LAYERS[0], replace(LAYERS[1], fields=told))
    for changed, laws in ((told[1:], set()), (told[:1], {"PAGE-FIELDS"})):
        final = replace(LAYERS[1], fields=changed)
        plan = replace(PLAN, layers=layers, groups=((LAYERS[0],), (final,)))
        assert broken(plan) == laws


def test_calls_that_disagree_break_their_laws() -> None:
    other = Unified(raised=None, layers=GIVEN)
    assert unify_broken(GIVEN, GOOD, kept=GOOD) == {"PAGE-UNIFY-INPUT"}
    assert unify_broken(GIVEN, GOOD, again=other) == {"PAGE-UNIFY-AGAIN"}
    assert unify_broken(GIVEN, GOOD, reordered=other) == {"PAGE-UNIFY-ORDER"}


def test_errors_are_right_only_as_documented() -> None:
    refusal = Unified(raised=Raised(type="NotImplementedError", message="", site=UNIFY))
    crash = Unified(raised=Raised(type="AssertionError", message="", site=UNIFY))
    calls = UnifyCalls(
        given=GIVEN, kept=GIVEN, first=refusal, again=None, reordered=refusal
    )
    assert broken_unify(calls) == {"PAGE-UNIFY-REFUSAL"}
    assert broken_unify(replace(calls, first=crash)) == {"PAGE-UNIFY-ANSWER"}
    mla = AttentionShape(num_kv_heads=1, head_size=3, head_size_v=0, dtype="bfloat16")
    odd = layer("b", LayerSpec(kind="mla", block_size=16, attention=mla))
    needed = replace(calls, given=(GIVEN[0], odd), kept=(GIVEN[0], odd))
    assert broken_unify(needed) == set()
    padded = layer("b", replace(FULL, block_size=1, page_size_padded=2048))
    small = replace(calls, given=(GIVEN[0], padded), kept=(GIVEN[0], padded))
    assert sites(replace(small, first=crash)) == {f"{UNIFY}: padded attention"}
    assert sites(replace(calls, first=crash)) == {UNIFY}


def test_padding_without_a_reader_breaks_the_law_of_strides() -> None:
    mla = AttentionShape(num_kv_heads=1, head_size=96, head_size_v=0, dtype="bfloat16")
    spec = LayerSpec(kind="mla", block_size=16, attention=mla)
    given = (layer("a", spec), layer("b", FULL))
    result = (layer("a", replace(spec, page_size_padded=8192)), layer("b", FULL))
    assert "PAGE-STRIDE" in unify_broken(given, result)


# Laws of plans

TARGET = TargetModel(
    layers=("mamba", "full"),
    num_kv_heads=2,
    head_size=64,
    dtype="bfloat16",
    cache_dtype="auto",
    window=128,
    state_dtype="float32",
    state_heads=2,
    state_key_heads=1,
    state_head_size=16,
    state_size=16,
    conv_kernel=4,
)
DEPLOYMENT = Deployment(
    tensor_parallel=1,
    pipeline_stages=1,
    num_speculative_tokens=0,
    mamba_cache_mode="none",
    block_size=16,
    skip_sliding_window=False,
    skip_layer=None,
    max_model_len=33,
    max_num_batched_tokens=64,
    hybrid_manager=True,
    block_outermost=False,
    spare_blocks=1,
    spare_bytes=0,
)
CONFIG = HybridConfig(target=TARGET, drafter=None, deployment=DEPLOYMENT)
# Without prefix caching its block is the whole request.
ALIGNED_STATE = replace(STATE, block_size=33, page_size_padded=8192)
LAYERS = (layer("a", ALIGNED_STATE), layer("b", FULL))


def place(name: str, offset: int = 0, stride: int = 8192, size: int = 32768) -> Place:
    return Place(
        layer=name,
        allocation=0,
        allocation_bytes=size,
        offset=offset,
        stride=stride,
    )


WORKER = Worker(
    layers=("a", "b"),
    memory_bytes=32768 + 100,
    num_blocks=4,
    places=(place("a"), place("b")),
)
PLAN = Plan(
    stage="done",
    raised=None,
    layers=LAYERS,
    groups=((LAYERS[0],), (LAYERS[1],)),
    stages=(("a", "b"),),
    memory_bytes=(WORKER.memory_bytes,),
    workers=(WORKER,),
)


def broken(plan: Plan, config: HybridConfig = CONFIG) -> set[str]:
    case = Case(format_version=1, origin="wired", config=config)
    assert decode(encode(case), Case) == case
    seen = Observation(may_pad=PAD_ALL, must_pad=PAD_ALL, plan=plan)
    assert decode(encode(seen), Observation) == seen
    return {violation.invariant for violation in judge(case, seen).violations}


def test_a_right_plan_breaks_nothing() -> None:
    assert broken(PLAN) == set()


@pytest.mark.parametrize(
    ("worker", "law"),
    [
        (replace(WORKER, num_blocks=3), "PAGE-BLOCKS"),
        (replace(WORKER, memory_bytes=32768 - 1), "PAGE-MEMORY"),
        (replace(WORKER, places=(place("a"),)), "PAGE-PLACES"),
        (replace(WORKER, places=(place("a"), place("b", 8192))), "PAGE-PLACES"),
        (replace(WORKER, places=(place("a"), place("b", stride=4096))), "PAGE-PLACES"),
        (
            replace(
                WORKER,
                places=(place("a", size=65536), place("b", 4096, size=65536)),
            ),
            "PAGE-OVERLAP",
        ),
        (
            replace(
                WORKER,
                places=(
                    place("a", size=65536),
                    place("b", stride=12288, size=65536),
                ),
            ),
            "PAGE-OVERLAP",
        ),
    ],
)
def test_each_wrong_worker_breaks_its_law(worker: Worker, law: str) -> None:
    assert law in broken(replace(PLAN, workers=(worker,)))


def test_layers_of_one_group_share_no_block() -> None:
    two = (layer("b", FULL), layer("c", FULL))
    apart = (place("b", 0, 16384, 65536), place("c", 8192, 16384, 65536))
    target = replace(TARGET, layers=("full", "full"))
    config = replace(CONFIG, target=target)
    worker = replace(
        WORKER, layers=("b", "c"), places=apart, memory_bytes=65536, num_blocks=4
    )
    plan = replace(
        PLAN, layers=two, groups=(two,), stages=(("b", "c"),), workers=(worker,)
    )
    assert broken(plan, config) == set()
    over = replace(worker, places=(apart[0], replace(apart[1], offset=0)))
    assert broken(replace(plan, workers=(over,)), config) == {"PAGE-OVERLAP"}


@pytest.mark.parametrize(
    ("groups", "law"),
    [
        (((LAYERS[0],),), "PAGE-PARTITION"),
        (((LAYERS[0],), (LAYERS[1],), (LAYERS[1],)), "PAGE-PARTITION"),
        (((LAYERS[0], LAYERS[1]),), "PAGE-FAMILY"),
        (((layer("a", ALIGNED_STATE, 1024),), (LAYERS[1],)), "PAGE-CONTENT"),
    ],
)
def test_each_wrong_grouping_breaks_its_law(
    groups: tuple[tuple[SeenLayer, ...], ...], law: str
) -> None:
    assert law in broken(replace(PLAN, groups=groups))


def test_a_plan_that_serves_no_request_breaks_its_law() -> None:
    served = replace(DEPLOYMENT, max_model_len=16 * 3 + 1)
    state = layer("a", replace(ALIGNED_STATE, block_size=served.max_model_len))
    layers = (state, LAYERS[1])
    plan = replace(PLAN, layers=layers, groups=((state,), (LAYERS[1],)))
    assert broken(plan, replace(CONFIG, deployment=served)) == {"PAGE-SERVES"}


def test_layers_that_are_not_the_configured_ones_break_their_law() -> None:
    wide = replace(TARGET, num_kv_heads=4)
    assert broken(PLAN, replace(CONFIG, target=wide)) == {"PAGE-BUILT"}
    deep = replace(TARGET, state_heads=4, state_key_heads=2)
    assert broken(PLAN, replace(CONFIG, target=deep)) == {"PAGE-BUILT"}
    half = replace(TARGET, state_dtype="auto")
    assert broken(PLAN, replace(CONFIG, target=half)) == {"PAGE-BUILT"}
    for served in (
        replace(DEPLOYMENT, mamba_cache_mode="align"),
        replace(DEPLOYMENT, max_model_len=32),
    ):
        assert broken(PLAN, replace(CONFIG, deployment=served)) == {"PAGE-BUILT"}


@pytest.mark.parametrize(
    ("kind", "stage", "memory", "expected"),
    [
        ("AssertionError", "groups", (), {"PAGE-PLAN-ANSWER"}),
        ("KeyError", "configs", (1,), {"PAGE-PLAN-ANSWER"}),
        ("ValueError", "configs", (3 * 8192,), set()),
        ("ValueError", "configs", (100 * 8192,), {"PAGE-PLAN-REFUSAL"}),
        ("ValueError", "groups", (), {"PAGE-PLAN-REFUSAL"}),
        ("NotImplementedError", "groups", (), {"PAGE-PLAN-REFUSAL"}),
    ],
)
def test_plans_refuse_only_as_documented(
    kind: str, stage: Any, memory: tuple[int, ...], expected: set[str]
) -> None:
    plan = replace(
        PLAN,
        stage=stage,
        raised=Raised(type=kind, message="", site="get_kv_cache_configs"),
        memory_bytes=memory,
        stages=(("a", "b"),) if memory else (),
        workers=(),
    )
    assert broken(plan) == expected


def refused(kind: str, stage: Any, *layers: SeenLayer, site: str = "") -> Plan:
    return Plan(
        stage=stage, raised=Raised(type=kind, message="", site=site), layers=layers
    )


def test_windows_that_can_be_full_attention_are_not_refused() -> None:
    target = replace(TARGET, layers=("full", "sliding_window"))
    merged = replace(
        CONFIG,
        target=target,
        deployment=replace(DEPLOYMENT, hybrid_manager=False),
    )
    full, window = layer("a", FULL), layer("b", WINDOW)
    needless = {"PAGE-PLAN-REFUSAL"}
    assert broken(refused("ValueError", "groups", full, window), merged) == needless
    wider = replace(WINDOW, attention=replace(ATTENTION, window=64))
    longer = replace(WINDOW, block_size=32)
    for others in (
        (layer("c", wider),),
        (layer("c", longer),),
        (layer("c", replace(WINDOW, page_size_padded=16384)),),
        (layer("c", STATE),),
    ):
        plan = refused("ValueError", "groups", full, window, *others)
        assert "PAGE-PLAN-REFUSAL" not in broken(plan, merged)
    only = refused("ValueError", "groups", window, layer("c", wider))
    assert "PAGE-PLAN-REFUSAL" not in broken(only, merged)


def test_a_block_size_is_refused_for_a_state_only() -> None:
    plain = replace(CONFIG, target=replace(TARGET, layers=("full",)))
    odd = replace(plain, deployment=replace(DEPLOYMENT, block_size=8))
    skips = HybridConfig(
        target=replace(plain.target, cache_dtype="fp8"),
        drafter=None,
        deployment=replace(DEPLOYMENT, skip_layer=0),
    )
    check = {"site": "VllmConfig.validate_block_size"}
    for plan in (
        refused("ValueError", "align"),
        refused("AssertionError", "align", **check),
    ):
        assert broken(plan, plain) == {"PAGE-PLAN-REFUSAL"}
        assert broken(plan, odd) == broken(plan, skips) == broken(plan) == set()


def test_memory_for_one_request_is_not_refused() -> None:
    served = replace(DEPLOYMENT, max_model_len=2**20, max_num_batched_tokens=16)

    def laws(spec: LayerSpec, blocks: int) -> set[str]:
        config = replace(
            CONFIG,
            target=replace(TARGET, layers=(spec.kind,)),  # type: ignore[arg-type]
            deployment=served,
        )
        one = layer("a", spec)
        plan = replace(
            PLAN,
            stage="configs",
            raised=Raised(type="ValueError", message="", site=""),
            layers=(one,),
            groups=((one,),),
            stages=(("a",),),
            memory_bytes=(blocks * one.page_bytes,),
            workers=(),
        )
        return broken(plan, config) & {"PAGE-PLAN-REFUSAL"}

    # 65,536 blocks and the null block; a window of 128 tokens, 4 steps, one more.
    assert laws(FULL, 65536) == laws(WINDOW, 13) == set()
    assert laws(FULL, 65537) == laws(WINDOW, 14) == {"PAGE-PLAN-REFUSAL"}


def test_a_case_refuses_models_that_cannot_be() -> None:
    drafter = Drafter(
        layers=("full",), num_kv_heads=3, head_size=64, window=1, cache_dtype="target"
    )
    served = replace(DEPLOYMENT, tensor_parallel=2, num_speculative_tokens=1)
    config = replace(CONFIG, drafter=drafter, deployment=served)
    with pytest.raises(ValueError, match="one must divide the other"):
        Case(format_version=1, origin="wired", config=config)
    with pytest.raises(ValueError, match="drafted by a drafter"):
        Case(
            format_version=1,
            origin="wired",
            config=replace(CONFIG, deployment=replace(served, tensor_parallel=1)),
        )


def test_every_law_has_a_name_of_its_own() -> None:
    ids = [law.id for law in INVARIANTS]
    assert len(set(ids)) == len(ids)
    assert all(law.contract is not None or law.wired is not None for law in INVARIANTS)
