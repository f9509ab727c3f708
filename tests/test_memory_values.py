"""Value mode of the memory checker: floats computed, stored, and compared.

First dtype by dtype and operation by operation against references of its own, then real
kernels of two releases beside float64, each with a fault planted into its values.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests import value_attention, value_checks, value_delta_rule, value_launches
from tests import value_results as results
from tests.elsewhere import Elsewhere, Releases
from tests.memory_child import in_child
from tests.recorded import (
    ATTENTION,
    ATTENTION_CACHES,
    ATTENTION_KERNELS,
    attention_case,
)
from tests.value_launches import Outcome

WIDE = ("float64", "float32")
ALL = (*WIDE, "float16", "bfloat16")


# --- numbers --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("name", value_checks.OF_TWO)
def test_functions_of_two_numbers_are_rounded_once(name: str, dtype: str) -> None:
    assert in_child(value_checks.two_numbers, name, dtype) == 0


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("name", value_checks.OF_ONE)
def test_functions_of_one_number_are_near(name: str, dtype: str) -> None:
    assert in_child(value_checks.one_number, name, dtype) < 1.0


def test_fused_products_quotients_roots_and_bounds_are_exact() -> None:
    assert in_child(value_checks.exact_numbers) == 0


@pytest.mark.parametrize("dtype", value_checks.FORMATS)
def test_every_number_of_a_format_is_read(dtype: str) -> None:
    assert in_child(value_checks.all_numbers, dtype) == 0


@pytest.mark.parametrize(
    ("dtype", "source"),
    [
        (dtype, source)
        for dtype in value_checks.FORMATS
        for source in ("float32", "bfloat16", "float16")
        if source == "float32" or dtype.startswith("float8")
    ],
)
def test_numbers_are_rounded_to_the_nearest(dtype: str, source: str) -> None:
    assert in_child(value_checks.rounded, dtype, source) == 0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e5m2"])
def test_numbers_are_rounded_toward_zero_when_asked(dtype: str) -> None:
    assert in_child(value_checks.rounded, dtype, "float32", toward_zero=True) == 0


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("other", ALL)
def test_numbers_become_integers_and_back(dtype: str, other: str) -> None:
    assert in_child(value_checks.to_integers, dtype, other) == 0
    if other != "bfloat16":
        assert in_child(value_checks.from_integers, other, dtype) == 0


def test_bits_stay_the_same() -> None:
    assert in_child(value_checks.same_bits) == 0


# --- products, folds, places ----------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "how"),
    [
        ("bfloat16", "ieee"),
        ("float16", "ieee"),
        ("float32", "ieee"),
        ("float32", "tf32"),
        ("float8_e4m3fn", "ieee"),
        ("float8_e5m2", "ieee"),
    ],
)
def test_products_are_added_up_in_float32(dtype: str, how: str) -> None:
    assert in_child(results.product, dtype, how) < 1.0


def test_products_of_integers_are_exact() -> None:
    assert in_child(results.product, "int8") == 0.0


def test_reductions_and_scans() -> None:
    worst = in_child(results.folds)
    exact = ("largest", "smallest", "where largest", "where smallest")
    assert {name: worst.pop(name) for name in exact} == dict.fromkeys(exact, 0.0)
    assert max(worst.values()) < 1.0


@pytest.mark.parametrize("dtype", [*ALL, "float8_e4m3fn", "float8_e5m2"])
def test_lanes_are_put_where_they_belong(dtype: str) -> None:
    assert in_child(results.rearranged, dtype) == 0


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("spread", [1, 4, 16])
def test_atomics_add_up_in_order(dtype: str, spread: int) -> None:
    assert in_child(results.added, dtype, spread) == 0


# --- control --------------------------------------------------------------------------


def test_every_program_loops_and_branches_at_its_own_pace() -> None:
    assert in_child(results.own_pace) < 1e-6


def test_a_trip_reads_what_the_one_before_stored() -> None:
    assert in_child(results.in_place) == [8.125, 11.5]


def test_programs_run_in_parts_so_that_memory_stays_flat() -> None:
    worst, accesses = in_child(results.many_programs)
    assert worst < 1.0
    # A load and a store for each 256 of 600 programs.
    assert accesses == 6


# --- what is told ---------------------------------------------------------------------


def test_two_programs_that_store_different_floats_are_told() -> None:
    clash = in_child(results.stored, (1.0, 1.5))
    assert clash.kinds == ("stored twice",)
    assert "gets 1 of program 0 and 1.5 of program 1" in clash.findings[0].arithmetic
    assert in_child(results.stored, (0.0, -0.0)).kinds == ("stored twice",)
    for same in ((1.5, 1.5), (float("nan"), float("nan"))):
        assert in_child(results.stored, same).kinds == ()
        assert in_child(results.stored, same, "bfloat16").kinds == ()


def test_what_a_mask_leaves_open_shows_as_nan() -> None:
    whole = in_child(results.masked, filled=False, used=8)
    assert whole.numbers == [2.0] * 8
    short = in_child(results.masked, filled=False, used=7)
    assert short.numbers[:7] == [2.0] * 7
    assert short.numbers[7] != short.numbers[7]
    filled = in_child(results.masked, filled=True, used=7)
    assert filled.numbers == [*[2.0] * 7, 4.0]
    assert short.reasons == whole.reasons == filled.reasons == ()


def test_scratch_is_read_after_it_was_stored() -> None:
    fine = in_child(results.scratch, stored_first=True)
    assert (fine.kinds, fine.numbers) == ((), [2.0] * 8)
    assert in_child(results.scratch, stored_first=False).kinds == ("never written",)


def test_what_depends_on_nothing_known_is_undecided() -> None:
    assert in_child(results.branch_on_masked, 1).reasons == ()
    assert in_child(results.branch_on_masked, 0).reasons == (
        "a branch depends on what is not known",
    )
    assert in_child(results.number_of_masked, 8).reasons == ()
    assert in_child(results.number_of_masked, 7).reasons == (
        "an integer that is not known is stored",
    )


def test_what_is_not_computed_is_named() -> None:
    assert in_child(results.assembly).reasons == ("inline assembly is not computed",)
    assert in_child(results.rare_function).reasons == (
        "__nv_cyl_bessel_i0f is not computed",
    )


def test_address_mode_needs_no_torch() -> None:
    modules = "launches, execute, loops, folds"
    code = (
        f"from invariants.memory import {modules}; import sys; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- real kernels ---------------------------------------------------------------------

# A kernel, what it is called with, a piece of its source and what makes it wrong.
DIVIDED = (
    "key_tile = key_load if key_load.dtype.is_fp8() else key_load / tl.load(k_scale)"
)
KERNELS: dict[str, tuple[Callable[..., Outcome], tuple[Any, ...], str, str, str]] = {
    "cache write": (
        value_launches.cache_write,
        ("fp8", "bfloat16"),
        DIVIDED,
        "key_tile = key_load + 0 * tl.load(k_scale)",
        "key",
    ),
    "recurrent": (
        value_delta_rule.recurrent,
        (),
        "b_v *= b_beta",
        "b_v *= 1.0",
        "output",
    ),
    "packed decode": (
        value_delta_rule.packed_decode,
        (),
        "b_h *= exp(g_val)",
        "b_h *= 1.0",
        "state",
    ),
    "sigmoid gating": (
        value_delta_rule.sigmoid_gating,
        (),
        "b_q = b_q * scale",
        "b_q = b_q * 1.0",
        "output",
    ),
    "convolution": (
        value_launches.convolution,
        ("fn",),
        "acc = acc / (1 + tl.exp(-acc))",
        "acc = acc / (1 + tl.exp(acc))",
        "output",
    ),
    "convolution of a token": (
        value_launches.convolution,
        ("update",),
        "acc = acc / (1 + tl.exp(-acc))",
        "acc = acc * 1.0",
        "output",
    ),
    "attention": (
        value_attention.attention,
        (replace(ATTENTION, cache="int8_per_token_head", page="apart"),),
        "(P * v_token_head_scales[None, :]).to(V.dtype)",
        "P.to(V.dtype)",
        "output",
    ),
    "control": (
        value_attention.attention,
        (replace(ATTENTION, kernel="control_fixed", cache="fp8"),),
        "* (softmax_scale * key_dequant)",
        "* softmax_scale",
        "output",
    ),
}


@pytest.fixture(scope="module", params=["0.33.0", "0.20.1"])
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tree(releases: Releases, release: str) -> Elsewhere:
    return releases(release)


def assert_right(outcome: Outcome) -> None:
    assert outcome.launches
    assert outcome.findings == ()
    assert outcome.undecided == ()
    assert max(outcome.excess.values()) <= 1.0


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_equals_its_reference_and_a_planted_one_does_not(
    name: str, tree: Elsewhere
) -> None:
    run, given, right, wrong, shown = KERNELS[name]
    assert_right(tree.call(run, *given))
    planted = tree.call(run, *given, planted=(right, wrong))
    assert planted.launches
    assert planted.undecided == ()
    limit = 0.0 if run is value_attention.attention else 1.0
    assert planted.excess[shown] > limit
    assert_right(tree.call(run, *given))


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize("cache", ["int8", "fp8"])
def test_a_cache_with_a_scale_per_head(cache: str, tree: Elsewhere) -> None:
    assert_right(tree.call(value_launches.cache_write_per_head, cache))


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_cache_of_the_models_dtype(dtype: str, tree: Elsewhere) -> None:
    outcome = tree.call(value_launches.cache_write, "auto", dtype)
    assert_right(outcome)
    assert outcome.excess == {"key": 0.0, "value": 0.0}


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize("kernel", ATTENTION_KERNELS)
@pytest.mark.parametrize(("dtype", "cache"), ATTENTION_CACHES)
def test_attention_equals_dense_attention(
    kernel: Any, dtype: Any, cache: Any, tree: Elsewhere
) -> None:
    case = attention_case(kernel, dtype, cache)
    outcome = tree.call(value_attention.attention, case)
    assert_right(outcome)
    assert max(outcome.excess.values()) == 0.0
    split = {"unified_3d", "control_fixed"}
    assert len(outcome.launches) == 1 + (kernel in split)


@pytest.mark.subject
@pytest.mark.network
def test_a_fault_of_a_release_shows_in_its_values(
    tree: Elsewhere, release: str
) -> None:
    # 0.20.1 takes 0 for the maximum of a tile whose keys a window hides, and weights
    # of scores below -88 vanish beside it: rows become NaN. 0.33.0 keeps -inf.
    assert_right(tree.call(value_attention.after_a_masked_tile, 1.0))
    strong = tree.call(value_attention.after_a_masked_tile, 20.0)
    assert (strong.findings, strong.undecided) == ((), ())
    assert (strong.excess["output"] > 1.0) == (release == "0.20.1")
