"""KV-cache specs: what the strategies reach, how they shrink, what they keep."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

import strategies
from invariants.model import decode, encode
from invariants.page_size import Case
from invariants.specs import KINDS, Kind, LayerSpec, content_bytes, flaw, page_bytes
from strategies.block_sizes import DEPLOYED_BLOCK_SIZES
from strategies.kv_cache_specs import block_sizes, kv_cache_mixes, kv_cache_specs
from strategies.page_size import cases
from tests.strategy_search import find_any, minimal

sampled = settings(
    max_examples=300,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


@sampled
@given(kv_cache_mixes())
def test_specs_are_consistent(layers: tuple[LayerSpec, ...]) -> None:
    assert 1 <= len(layers) <= 6
    for spec in layers:
        assert flaw(spec) is None
        assert page_bytes(spec) >= content_bytes(spec)


@pytest.mark.parametrize("origin", ["contract", "wired"])
def test_cases_survive_their_json(origin: str) -> None:
    @sampled
    @given(cases(origin=origin))  # type: ignore[arg-type]
    def each(case: Case) -> None:
        assert decode(encode(case), Case) == case

    each()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_alone(kind: Kind) -> None:
    spec = minimal(kv_cache_specs(kinds=(kind,)))
    assert spec.kind == kind
    assert spec.block_size == 1
    assert spec.page_size_padded is None


def test_bounds_are_kept_and_checked() -> None:
    assert minimal(kv_cache_specs()).kind == "full"
    few = kv_cache_specs(kinds=("full",), max_kv_heads=1)

    @sampled
    @given(few)
    def each(spec: LayerSpec) -> None:
        assert spec.attention is not None
        assert spec.attention.num_kv_heads == 1

    each()
    with pytest.raises(ValueError, match="max_kv_heads >= 1, got"):
        kv_cache_specs(max_kv_heads=0)
    with pytest.raises(ValueError, match="max_layers >= 4, got 3"):
        cases(origin="wired", max_layers=3)


def test_block_sizes_of_deployments_are_listed_once() -> None:
    folder = Path(strategies.__file__ or "").parent
    lists = [
        each.name
        for each in sorted(folder.glob("*.py"))
        if sum(str(s) in each.read_text("utf-8") for s in DEPLOYED_BLOCK_SIZES) > 3
    ]
    assert lists == ["block_sizes.py"]


def test_block_sizes_of_deployments_can_be_left_out() -> None:
    find_any(block_sizes(), lambda size: size in DEPLOYED_BLOCK_SIZES)

    @sampled
    @given(block_sizes(deployed=False, multiple=16))
    def each(size: int) -> None:
        assert size not in DEPLOYED_BLOCK_SIZES
        assert size % 16 == 0

    each()


def _pages(layers: tuple[LayerSpec, ...]) -> list[int]:
    return [page_bytes(spec) for spec in layers]


def _state_below_a_multiple(layers: tuple[LayerSpec, ...]) -> bool:
    largest = max(_pages(layers))
    return any(
        spec.kind == "mamba"
        and page_bytes(spec) < largest
        and largest % page_bytes(spec) == 0
        for spec in layers
    )


def test_pages_that_divide_and_pages_that_do_not_are_drawn() -> None:
    find_any(kv_cache_mixes(), _state_below_a_multiple)
    find_any(
        kv_cache_mixes(kinds=("full", "sliding_window")),
        lambda layers: max(_pages(layers)) % min(_pages(layers)) != 0,
    )
    find_any(kv_cache_mixes(min_layers=2), lambda layers: len(set(_pages(layers))) == 1)


def test_a_state_below_a_larger_page_shrinks_to_few_layers() -> None:
    layers = minimal(kv_cache_mixes(), _state_below_a_multiple)
    # The state and one larger page; from some draws a third layer stays.
    assert len(layers) <= 3
    assert len(encode(layers)) < 650


def test_padding_can_be_left_out() -> None:
    @sampled
    @given(kv_cache_mixes(padded=False))
    def each(layers: tuple[LayerSpec, ...]) -> None:
        assert all(page_bytes(spec) == content_bytes(spec) for spec in layers)

    each()


def test_configurations_reach_what_planning_depends_on() -> None:
    wired = cases(origin="wired")

    def config_of(case: Case):  # type: ignore[no-untyped-def]  # noqa: ANN202
        assert case.config is not None
        return case.config

    find_any(wired, lambda case: config_of(case).drafter is None)
    find_any(wired, lambda case: config_of(case).deployment.pipeline_stages == 2)
    find_any(wired, lambda case: not config_of(case).deployment.hybrid_manager)
    find_any(wired, lambda case: "mamba" not in config_of(case).target.layers)
    find_any(wired, lambda case: config_of(case).deployment.skip_layer is not None)
    find_any(
        wired,
        lambda case: (
            config_of(case).deployment.skip_sliding_window
            and config_of(case).drafter is not None
        ),
    )
    smallest = minimal(wired)
    assert smallest.config is not None
    assert smallest.config.drafter is None
    assert smallest.config.target.layers == ("mamba", "full")
