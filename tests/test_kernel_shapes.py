"""Head counts and sizes: what is reached, how it shrinks, what is refused."""

import pytest

from invariants.kernel_shapes import KernelShape
from strategies.kernel_shapes import kernel_shapes
from tests.strategy_search import find_any, minimal


def test_shapes_that_leave_a_tile_unused_are_reached() -> None:
    assert find_any(kernel_shapes(), lambda s: s.queries_per_kv == 6)
    assert find_any(kernel_shapes(), lambda s: s.queries_per_kv > 16)
    assert find_any(kernel_shapes(), lambda s: s.head_size & (s.head_size - 1) != 0)


def test_the_simplest_shape_is_one_small_head() -> None:
    assert minimal(kernel_shapes()) == KernelShape(
        kv_heads=1, queries_per_kv=1, head_size=16
    )


def test_bounds_hold() -> None:
    largest = minimal(
        kernel_shapes(max_kv_heads=4, max_queries_per_kv=8, max_head_size=128),
        lambda s: s.kv_heads == 4 and s.queries_per_kv == 8 and s.head_size == 128,
    )
    assert largest.heads == 32


def test_bounds_without_a_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="head sizes from 33 to 40"):
        kernel_shapes(min_head_size=33, max_head_size=40)
