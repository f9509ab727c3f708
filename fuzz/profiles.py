"""How much a run does: named profiles, loaded whatever the environment says.

Hypothesis itself would load a derandomised profile where `CI` is set, and a nightly
run would draw the same inputs every night; seeds and settings here are always explicit.
"""

import hashlib
import secrets
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The size of a run.

    Attributes:
        cases: Cases of the fastest property, over all its shards. The others' shares
            are fractions of it, such that each property takes about as long: 10 s of
            one core for 1,200 of them.
        shards: Into how many independent searches a property is split; independent
            of the number of workers, so that the cases are too.
        labels_min: How often each needed coverage label must be seen.
        seed: Fixed seed, None for a new one each run.
        shrink_cases: Cases that shrinking one round's faults may run.
        minutes: Wall-clock budget, only for profiles that repeat until it ends.
    """

    name: str
    cases: int
    shards: int
    labels_min: int
    seed: int | None
    shrink_cases: int
    minutes: float | None = None


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            name="quick",
            cases=1_200,
            shards=2,
            labels_min=1,
            seed=None,
            shrink_cases=600,
        ),
        Profile(
            name="gate",
            cases=6_000,
            shards=4,
            labels_min=2,
            seed=0,
            shrink_cases=1_000,
        ),
        Profile(
            name="nightly",
            cases=120_000,
            shards=16,
            labels_min=10,
            seed=None,
            shrink_cases=4_000,
        ),
        Profile(
            name="soak",
            cases=20_000,
            shards=16,
            labels_min=10,
            seed=None,
            shrink_cases=4_000,
            minutes=60.0,
        ),
    )
}


def run_seed(profile: Profile, *, given: int | None) -> int:
    """The seed of a run: the one given, the profile's, or a new one."""
    if given is not None:
        return given
    return secrets.randbits(32) if profile.seed is None else profile.seed


def derived_seed(seed: int, *parts: str | int) -> int:
    """Seed of one part of a run, the same on every machine and Python."""
    text = "\x1f".join(map(str, (seed, *parts)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
