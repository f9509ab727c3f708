"""Integers of all programs of a launch at once: as wrapped, and as they should be.

A value is an array with one row per running program and one axis per axis of the
tensor. Two things keep it small. Axes along which it does not vary have size 1. And a
sum whose summands vary along different axes, as offsets do, is kept as its summands, a
conjunction of masks as its factors; an array of all lanes is made only when asked for.

What is exact is what 64 bits hold. Where a narrower result wrapped, both values are
kept, so that wrapping which cancels out again is no fault.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from invariants.memory.ttir import Operation

# Of int64, or of bool for predicates.
Array = NDArray[Any]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Wrap:
    """Where a value first left its width.

    Attributes:
        operation: What computed it.
        left: Its first operand, exact.
        right: Its second one.
        exact: Its result.
        bits: The width that it left.
    """

    operation: Operation
    left: Ints
    right: Ints
    exact: Ints
    bits: int


@dataclass(frozen=True, eq=False, slots=True)
class Lanes:
    """An integer or predicate of every program and lane.

    Attributes:
        shape: Of the tensor, () for a scalar.
        bits: Width; 1 for predicates, whose arrays are bool.
        parts: Arrays ``[rows or 1, *sizes or 1]`` of which it is the sum, of predicates
            the conjunction.
        low: No lane is below; a bound, not always the minimum.
        high: No lane is above.
        exact: Like parts, of what exact arithmetic gives; None where nothing wrapped.
        wrap: What wrapped first, when something did.
        unknown: Lanes that depend on what is not computed here; None for none.
    """

    shape: tuple[int, ...]
    bits: int
    parts: tuple[Array, ...]
    low: int
    high: int
    exact: tuple[Array, ...] | None = None
    wrap: Wrap | None = None
    unknown: Bools | None = None

    def dense(self) -> Array:
        """All lanes, broadcastable to ``[rows, *shape]``."""
        return _total(self.parts, self.bits)

    @property
    def plain(self) -> bool:
        """Whether every lane is known and is what exact arithmetic gives."""
        return self.exact is None and self.unknown is None

    @property
    def exact_parts(self) -> tuple[Array, ...]:
        """Parts of what exact arithmetic gives."""
        return self.parts if self.exact is None else self.exact

    def exact_or_dense(self) -> Ints:
        """What exact arithmetic gives."""
        return _total(self.exact_parts, self.bits)

    def differs(self) -> Bools:
        """Lanes that are not what exact arithmetic gives, broadcastable to all."""
        used = [part for part in self.parts if not _among(part, self.exact_parts)]
        meant = [part for part in self.exact_parts if not _among(part, self.parts)]
        nothing = np.zeros((1,) * (1 + len(self.shape)), dtype=np.int64)
        if self.bits == 1:
            return self.dense() != self.exact_or_dense()  # type: ignore[no-any-return]
        result: Bools = sum(used, nothing) != sum(meant, nothing)
        return result


def _among(part: Array, parts: tuple[Array, ...]) -> bool:
    return any(part is each for each in parts)


def _total(parts: tuple[Array, ...], bits: int) -> Array:
    first, *rest = parts
    for part in rest:
        first = first & part if bits == 1 else first + part
    return first


def constant(value: int, bits: int, shape: tuple[int, ...] = ()) -> Lanes:
    """The same number in every lane."""
    ones = (1,) * (1 + len(shape))
    if bits == 1:
        truth = bool(value)
        array: Array = np.full(ones, truth)
        return Lanes(shape, 1, (array,), int(truth), int(truth))
    return Lanes(shape, bits, (np.full(ones, value, dtype=np.int64),), value, value)


def of_array(
    array: Array, bits: int, shape: tuple[int, ...], unknown: Bools | None = None
) -> Lanes:
    """Lanes from an array ``[rows or 1, *sizes or 1]``; bounds are looked up."""
    if bits == 1:
        truth = array.astype(np.bool_, copy=False)
        return Lanes(shape, 1, (truth,), 0, 1, unknown=unknown)
    wide = array.astype(np.int64, copy=False)
    if not wide.size:
        return Lanes(shape, bits, (wide,), 0, 0, unknown=unknown)
    low, high = int(wide.min()), int(wide.max())
    return Lanes(shape, bits, (wide,), low, high, unknown=unknown)


def unknown(bits: int, shape: tuple[int, ...]) -> Lanes:
    """A value of which nothing is known."""
    zero = constant(0, bits, shape)
    ones = (1,) * (1 + len(shape))
    low, high = (0, 1) if bits == 1 else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    return replace(zero, low=low, high=high, unknown=np.ones(ones, dtype=np.bool_))


def either(*masks: Bools | None) -> Bools | None:
    """Lanes that are in any of these masks."""
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    result = given[0]
    for mask in given[1:]:
        result = result | mask
    return result


def taken(lanes: Lanes, rows: NDArray[np.intp]) -> Lanes:
    """The value for some of the rows, or for rows more than once."""
    if lanes.plain and all(part.shape[0] == 1 for part in lanes.parts):
        return lanes

    def of(array: Array) -> Array:
        return array if array.shape[0] == 1 else array[rows]

    return rearranged(lanes, lanes.shape, of)


def merged(rows: int, pieces: list[tuple[NDArray[np.intp], Lanes]]) -> Lanes:
    """One value from pieces that hold different rows each."""
    first = pieces[0][1]
    shape, bits = first.shape, first.bits
    full = (rows, *shape)
    values: Array = np.zeros(full, dtype=np.bool_ if bits == 1 else np.int64)
    strange = np.ones(full, dtype=np.bool_)
    exact = np.zeros(full, dtype=np.int64)
    wrap = next((each.wrap for _, each in pieces if each.wrap is not None), None)
    differs = any(each.exact is not None for _, each in pieces)
    for index, each in pieces:
        if not len(index):
            continue
        values[index] = each.dense()
        strange[index] = False if each.unknown is None else each.unknown
        if differs:
            exact[index] = each.exact_or_dense()
    result = of_array(values, bits, shape)
    return replace(
        result,
        exact=(exact,) if differs else None,
        wrap=wrap,
        unknown=strange if strange.any() else None,
    )


def nested(left: Array, right: Array) -> bool:
    """Whether one array varies along no axis that the other does not; rows are one."""
    sizes = list(zip(left.shape, right.shape, strict=True))
    return all(a <= b for a, b in sizes) or all(a >= b for a, b in sizes)


def together(
    parts: tuple[Array, ...],
    more: tuple[Array, ...],
    bits: int,
) -> tuple[Array, ...]:
    """Summands (of predicates factors) of two values, added up where that is cheap."""
    result = list(parts)
    for part in more:
        for at, have in enumerate(result):
            if nested(have, part):
                result[at] = have & part if bits == 1 else have + part
                break
        else:
            result.append(part)
    return tuple(result)


def reshaped(lanes: Lanes, shape: tuple[int, ...]) -> Lanes:
    """The same lanes in another shape, in the same order."""
    if [n for n in lanes.shape if n != 1] == [n for n in shape if n != 1]:

        def of(array: Array) -> Array:
            sizes = iter(
                size
                for size, full in zip(array.shape[1:], lanes.shape, strict=True)
                if full != 1
            )
            inner = tuple(1 if n == 1 else next(sizes) for n in shape)
            return array.reshape(array.shape[0], *inner)
    else:

        def of(array: Array) -> Array:
            full = np.broadcast_to(array, (array.shape[0], *lanes.shape))
            return full.reshape(array.shape[0], *shape)

        if len(lanes.parts) > 1:
            lanes = replace(lanes, parts=(lanes.dense(),))
    return rearranged(lanes, shape, of)


def rearranged(
    lanes: Lanes,
    shape: tuple[int, ...],
    of: Callable[[Array], Array],
) -> Lanes:
    """Apply one rearrangement of lanes to everything that is known of them."""
    return Lanes(
        shape,
        lanes.bits,
        tuple([of(part) for part in lanes.parts]),
        lanes.low,
        lanes.high,
        None if lanes.exact is None else tuple([of(each) for each in lanes.exact]),
        lanes.wrap,
        None if lanes.unknown is None else of(lanes.unknown),
    )


def full(lanes: Lanes) -> Array:
    """All lanes as an array ``[rows or 1, *shape]``, every axis at its size."""
    array = lanes.dense()
    return np.broadcast_to(array, (array.shape[0], *lanes.shape))
