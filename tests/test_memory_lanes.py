"""Lanes kept as summands of few sizes are the lanes that they stand for."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from invariants.memory import arrays, integers
from invariants.memory.lanes import Lanes, merged, of_array, reshaped, taken, unknown
from invariants.memory.ttir import Operation, parse_type

SHAPE = (2, 4)
ROWS = 3
MULTIPLY = Operation(name="arith.muli", results=(), operands=(), text="", types=())
ADD = Operation(name="arith.addi", results=(), operands=(), text="", types=())


@st.composite
def part(draw: st.DrawFn) -> Lanes:
    """A value that varies along some of its axes."""
    size = tuple(draw(st.sampled_from((1, n))) for n in (ROWS, *SHAPE))
    elements = st.integers(-(2**31), 2**31 - 1) | st.integers(-4, 4)
    count = int(np.prod(size))
    numbers = draw(st.lists(elements, min_size=count, max_size=count))
    return of_array(np.asarray(numbers, dtype=np.int64).reshape(size), 32, SHAPE)


def all_of(value: Lanes) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.broadcast_to(value.dense(), (ROWS, *value.shape))


@settings(max_examples=200, deadline=None, database=None)
@given(st.lists(part(), min_size=2, max_size=4), part())
def test_sums_and_products(parts: list[Lanes], factor: Lanes) -> None:
    total, expected = parts[0], all_of(parts[0]).astype(object)
    for each in parts[1:]:
        total = integers.add(ADD, total, each)
        expected = expected + all_of(each).astype(object)
    product = integers.multiply(MULTIPLY, total, factor)
    expected_product = expected * all_of(factor).astype(object)
    for value, numbers in ((total, expected), (product, expected_product)):
        actual = all_of(value)
        held = (numbers + 2**31) % 2**32 - 2**31
        assert (actual == held).all()
        assert value.low <= actual.min()
        assert actual.max() <= value.high
        if value.exact is None:
            # Beyond 62 bits, numbers count as hashes.
            assert ((numbers == held) | (abs(numbers) >= 2**62)).all()
        differs = np.broadcast_to(value.differs(), actual.shape)
        assert ((numbers != held) == differs)[abs(numbers) < 2**62].all()


@settings(max_examples=50, deadline=None, database=None)
@given(part(), part())
def test_rearrangements(one: Lanes, two: Lanes) -> None:
    value = integers.add(ADD, one, two)
    lanes = all_of(value)
    assert (all_of(reshaped(value, (4, 2))) == lanes.reshape(ROWS, 4, 2)).all()
    assert (all_of(reshaped(value, (8,))) == lanes.reshape(ROWS, 8)).all()
    assert (all_of(reshaped(value, (1, 2, 1, 4)))[:, 0, :, 0] == lanes).all()
    assert (all_of(arrays.column(value, 1, 2)) == lanes[:, :, 2]).all()
    low, high = arrays.columns(value, 1, 0, 2), arrays.columns(value, 1, 2, 4)
    assert (all_of(arrays.concatenated(low, high, 1)) == lanes).all()
    stacked = arrays.stacked([value, value], 2)
    assert stacked.shape == (*SHAPE, 2)
    assert (all_of(stacked)[..., 1] == lanes).all()


@settings(max_examples=50, deadline=None, database=None)
@given(part(), part())
def test_rows_are_taken_and_put_back(one: Lanes, two: Lanes) -> None:
    value = integers.add(ADD, one, two)
    first, rest = np.array([2]), np.array([0, 1])
    pieces = [(first, taken(value, first)), (rest, taken(value, rest))]
    back = merged(ROWS, pieces)
    assert (all_of(back) == all_of(value)).all()
    exact = np.broadcast_to(back.exact_or_dense(), (ROWS, *SHAPE))
    assert (exact == value.exact_or_dense()).all()


def test_rows_that_no_piece_holds_are_not_known() -> None:
    known = of_array(np.zeros((1, 1, 1), dtype=np.int64), 32, SHAPE)
    value = merged(3, [(np.array([1]), known)])
    assert value.unknown is not None
    assert value.unknown[:, 0, 0].tolist() == [True, False, True]


def test_an_unknown_value_has_the_bounds_of_its_type() -> None:
    value = unknown(8, ())
    assert (value.low, value.high, value.plain) == (-128, 127, False)
    assert unknown(1, ()).high == 1


def test_a_gather_of_what_wrapped_is_not_right() -> None:
    """Found by reading: what was exact got lost."""
    big = integers.add(
        ADD,
        of_array(np.array([[2**31 - 1, 1]]), 32, (2,)),
        of_array(np.array([[1, 1]]), 32, (2,)),
    )
    index = of_array(np.array([[1, 0]]), 32, (2,))
    gathered = Operation(
        name="tt.gather",
        results=(),
        operands=(),
        text="%a[%i] {axis = 0 : i32}",
        types=(parse_type("tensor<2xi32>"),),
    )
    (result,) = arrays._gather(gathered, [big, index])
    assert result.dense().tolist() == [[2, -(2**31)]]
    assert result.exact_or_dense().tolist() == [[2, 2**31]]
