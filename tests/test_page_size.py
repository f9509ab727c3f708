"""Page sizes on real releases.

What releases do wrong is known from public reports and from reading them; it must be
found with no number of theirs in the strategies, and be gone under our fixes.
"""

from pathlib import Path

import pytest

from invariants.model import Origin
from invariants.page_laws import INVARIANTS
from tests.elsewhere import Elsewhere, Releases
from tests.release_search import Searched, searched

UNIFY = "unify_kv_cache_spec_page_size"
PADDED = f"{UNIFY}: padded attention"
SPEC_PAGE = "AttentionSpec.page_size_bytes"
UNIFORM = "UniformTypeKVCacheSpecs.is_uniform_type"


def on(
    tree: Elsewhere,
    origin: Origin,
    count: int,
    *,
    fixed: bool = False,
    deployed: bool = True,
) -> Searched:
    return tree.call(
        searched,
        "page_size",
        origin,
        count,
        fixed=fixed,
        seed=7 if fixed else 0,
        deployed=deployed,
    )


@pytest.mark.subject
def test_faults_of_0_20_1_are_found_without_sizes_of_deployments(
    releases: Releases,
) -> None:
    tree = releases("0.20.1")
    contract = on(tree, "contract", 400, deployed=False).fault_keys()
    assert ("PAGE-UNIFY-ANSWER", UNIFY, "AssertionError") in contract
    wired = on(tree, "wired", 600, deployed=False).fault_keys()
    # A state that cannot be scaled, and memory that serves no request.
    assert ("PAGE-PLAN-ANSWER", UNIFY, "AssertionError") in wired
    assert ("PAGE-SERVES", "get_kv_cache_configs", "") in wired


@pytest.mark.subject
@pytest.mark.parametrize("times", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_what_0_33_0_does_right_is_silent_and_what_it_does_wrong_is_found(
    releases: Releases, times: int
) -> None:
    tree = releases("0.33.0")
    contract = on(tree, "contract", 500 * times).fault_keys()
    assert contract == {
        ("PAGE-UNIFY-ANSWER", PADDED, "AssertionError"),
        ("PAGE-WASTE", UNIFY, ""),
    }
    wired = on(tree, "wired", 700 * times).fault_keys()
    assert ("PAGE-PLAN-ANSWER", PADDED, "AssertionError") in wired
    assert wired <= {
        ("PAGE-PLAN-ANSWER", PADDED, "AssertionError"),
        ("PAGE-PLAN-ANSWER", SPEC_PAGE, "AssertionError"),
        ("PAGE-PLAN-ANSWER", UNIFORM, "StopIteration"),
        ("PAGE-PLAN-ANSWER", "_check_exact_partition", "AssertionError"),
        ("PAGE-PLACES", "get_kv_cache_configs", ""),
        ("PAGE-WASTE", "get_kv_cache_groups", ""),
    }


@pytest.mark.subject
@pytest.mark.parametrize("release", ["0.20.1", "0.33.0"])
@pytest.mark.parametrize(
    ("origin", "count"),
    [
        ("contract", 500),
        ("wired", 500),
        pytest.param("contract", 5000, marks=pytest.mark.slow),
        pytest.param("wired", 3000, marks=pytest.mark.slow),
    ],
)
def test_the_fixes_satisfy_every_law(
    releases: Releases, release: str, origin: Origin, count: int
) -> None:
    found = on(releases(release), origin, count, fixed=True)
    assert found.faults == {}
    assert found.cases >= count
    assert not found.unmet(INVARIANTS, origin=origin)


def test_strategies_hold_no_number_of_a_known_fault() -> None:
    from strategies import block_sizes, kv_cache_specs, page_size

    text = "".join(
        Path(module.__file__ or "").read_text(encoding="utf-8")
        for module in (block_sizes, kv_cache_specs, page_size)
    )
    for number in ("2228224", "2_228_224", "1088", "133120", "264192", "540672"):
        assert number not in text
