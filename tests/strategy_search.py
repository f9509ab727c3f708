"""Asking a strategy what it reaches and how it shrinks, as Hypothesis tests its own."""

from collections.abc import Callable
from random import Random
from typing import TypeVar

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st

T = TypeVar("T")

# One fixed source of randomness: what is reached must be reached in every run.
_SEED = 0


def find_any(
    strategy: st.SearchStrategy[T],
    predicate: Callable[[T], bool] = lambda _value: True,
    *,
    max_examples: int = 2000,
) -> T:
    """Some value that satisfies the predicate, not shrunk.

    Raises:
        hypothesis.errors.NoSuchExample: When none of ``max_examples`` values does.
    """
    return find(
        strategy,
        predicate,
        settings=_search(max_examples, (Phase.generate,)),
        random=Random(_SEED),
    )


def minimal(
    strategy: st.SearchStrategy[T],
    predicate: Callable[[T], bool] = lambda _value: True,
    *,
    max_examples: int = 2000,
) -> T:
    """The simplest value, as far as shrinking goes, that satisfies the predicate.

    Raises:
        hypothesis.errors.NoSuchExample: When none of ``max_examples`` values does.
    """
    return find(
        strategy,
        predicate,
        settings=_search(max_examples, (Phase.generate, Phase.shrink)),
        random=Random(_SEED),
    )


def _search(max_examples: int, phases: tuple[Phase, ...]) -> settings:
    return settings(
        max_examples=max_examples,
        phases=phases,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
