"""Page sizes on real releases.

What releases do wrong is known from public reports and from reading them; it must be
found with no number of theirs in the strategies, and be gone under our fixes.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from invariants.page_laws import INVARIANTS

ROOT = Path(__file__).parents[1]
UNIFY = "unify_kv_cache_spec_page_size"


@functools.cache
def on_release(release: str, origin: str, count: int, *flags: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.page_size_trees", release, origin]
    ended = subprocess.run(
        [*command, str(count), *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["absent"] is None
    return found


def keys(found: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (fault["invariant"], fault["site"], fault["exception"])
        for fault in found["faults"].values()
    }


@pytest.mark.subject
def test_the_state_that_cannot_be_scaled_is_found_in_0_20_1() -> None:
    contract = on_release("0.20.1", "contract", 1500, "--plain")
    assert ("PAGE-UNIFY-ANSWER", UNIFY, "AssertionError") in keys(contract)
    wired = on_release("0.20.1", "wired", 1500, "--plain")
    assert ("PAGE-PLAN-ANSWER", UNIFY, "AssertionError") in keys(wired)


@pytest.mark.subject
def test_0_20_1_accepts_memory_that_serves_no_request() -> None:
    wired = on_release("0.20.1", "wired", 1500, "--plain")
    assert ("PAGE-SERVES", "get_kv_cache_configs", "") in keys(wired)


@pytest.mark.subject
def test_what_0_33_0_does_right_is_silent_and_what_it_does_wrong_is_found() -> None:
    spec_page = "AttentionSpec.page_size_bytes"
    padded = f"{UNIFY}: padded attention"
    contract = keys(on_release("0.33.0", "contract", 1500))
    assert contract == {
        ("PAGE-UNIFY-ANSWER", padded, "AssertionError"),
        ("PAGE-WASTE", UNIFY, ""),
    }
    wired = keys(on_release("0.33.0", "wired", 2500))
    assert ("PAGE-PLAN-ANSWER", padded, "AssertionError") in wired
    assert wired <= {
        ("PAGE-PLAN-ANSWER", padded, "AssertionError"),
        ("PAGE-PLAN-ANSWER", spec_page, "AssertionError"),
        (
            "PAGE-PLAN-ANSWER",
            "UniformTypeKVCacheSpecs.is_uniform_type",
            "StopIteration",
        ),
        ("PAGE-PLAN-ANSWER", "_check_exact_partition", "AssertionError"),
        ("PAGE-PLACES", "get_kv_cache_configs", ""),
        ("PAGE-WASTE", "get_kv_cache_groups", ""),
    }


@pytest.mark.subject
@pytest.mark.parametrize("release", ["0.20.1", "0.33.0"])
@pytest.mark.parametrize(("origin", "count"), [("contract", 2500), ("wired", 1500)])
def test_the_fixes_satisfy_every_law(release: str, origin: str, count: int) -> None:
    found = on_release(release, origin, count, "--fixed", "--seed", "7")
    assert found["faults"] == {}
    assert found["cases"] >= count
    unmet = [
        (law.id, label)
        for law in INVARIANTS
        for label in (law.contract if origin == "contract" else law.wired) or ()
        if not found["labels"].get(label)
    ]
    assert not unmet


def test_strategies_hold_no_number_of_a_known_fault() -> None:
    from strategies import block_sizes, kv_cache_specs, page_size

    text = "".join(
        Path(module.__file__ or "").read_text(encoding="utf-8")
        for module in (block_sizes, kv_cache_specs, page_size)
    )
    for number in ("2228224", "2_228_224", "1088", "133120", "264192", "540672"):
        assert number not in text
