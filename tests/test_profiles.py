"""Profiles say what a run does whatever the environment says."""

import subprocess
import sys

import pytest

from fuzz.profiles import PROFILES, derived_seed, run_seed

DRAWS = """
from hypothesis import strategies as st
from fuzz.profiles import PROFILES, derived_seed, run_seed
from fuzz.search import search
from invariants.model import Judgement

seen = []
def judge(case):
    seen.append(case)
    return Judgement(judged=frozenset(), violations=(), labels=frozenset())

seed = run_seed(PROFILES["{profile}"], given=None)
search(cases=st.integers(0, 1 << 60), judge=judge, seed=derived_seed(seed, "p", 0),
       budget=50)
print(seen)
"""


def draws(profile: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CI", "true")
    code = DRAWS.format(profile=profile)
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout


def test_nightly_is_randomised_even_where_ci_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert draws("nightly", monkeypatch) != draws("nightly", monkeypatch)


def test_gate_draws_the_same_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert draws("gate", monkeypatch) == draws("gate", monkeypatch)


def test_only_the_gate_has_a_fixed_seed() -> None:
    fixed = {name for name, profile in PROFILES.items() if profile.seed is not None}
    assert fixed == {"gate"}


def test_a_given_seed_wins() -> None:
    assert run_seed(PROFILES["gate"], given=7) == 7
    assert run_seed(PROFILES["nightly"], given=7) == 7


def test_shards_of_one_run_have_seeds_of_their_own() -> None:
    seeds = {
        derived_seed(0, name, shard)
        for name in ("page_size/wired", "page_size/contract")
        for shard in range(16)
    }
    assert len(seeds) == 32


def test_derived_seeds_do_not_change_between_versions() -> None:
    assert derived_seed(0, "page_size/wired", 3) == derived_seed(
        0, "page_size/wired", "3"
    )
    assert derived_seed(1, "a", 2) == 1876767644146270359
