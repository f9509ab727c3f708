"""Integer operations of TTIR on lanes, with the widths and signs of the GPU.

Division and remainder truncate toward zero, comparisons know both signs, and a result
that leaves its width wraps: then both values go on (see `invariants.memory.lanes`).
Arithmetic that is meant to wrap, as hashes are, goes through unsigned remainders,
shifts, masks or xor before it becomes an index; their results count as exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from invariants.memory.lanes import (
    Array,
    Bools,
    Ints,
    Lanes,
    Wrap,
    either,
    of_array,
    together,
)

if TYPE_CHECKING:
    from invariants.memory.ttir import Operation

Binary = Callable[["Operation", Lanes, Lanes], Lanes]

# Beyond this, a float64 estimate says, 64 bits may not hold a product.
_SAFE = float(1 << 62)


def limits(bits: int) -> tuple[int, int]:
    """Smallest and largest signed number of a width."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def wrapped(values: Ints, bits: int) -> Ints:
    """What a register of this width holds."""
    if bits >= 64:
        return values
    low, high = limits(bits)
    return ((values - low) & (high - low)) + low


def unsigned(values: Ints, bits: int) -> NDArray[np.uint64]:
    """The same bits read as an unsigned number."""
    plain = values.astype(np.uint64, copy=False)
    return plain if bits >= 64 else plain & np.uint64((1 << bits) - 1)


def signed(values: NDArray[np.uint64], bits: int) -> Ints:
    """Unsigned numbers as a register of this width holds them."""
    return wrapped(values.astype(np.int64), bits)


def _noted(
    operation: Operation,
    left: Lanes,
    right: Lanes,
    compute: Callable[[Array, Array], Array],
) -> Lanes:
    """A result lane by lane, as computed and as it should be."""
    bits, shape = left.bits, left.shape
    strange = either(left.unknown, right.unknown)
    exact: Ints = compute(left.exact_or_dense(), right.exact_or_dense())
    tainted = left.exact is not None or right.exact is not None
    actual: Ints = exact
    if tainted:
        actual = compute(left.dense(), right.dense())
    actual = wrapped(actual, bits)
    result = of_array(actual, bits, shape, strange)
    if np.array_equal(actual, exact):
        return result
    wrap = left.wrap or right.wrap
    if wrap is None:
        wrap = Wrap(
            operation=operation,
            left=left.exact_or_dense(),
            right=right.exact_or_dense(),
            exact=exact,
            bits=bits,
        )
    return replace(result, exact=(exact,), wrap=wrap)


def add(operation: Operation, left: Lanes, right: Lanes) -> Lanes:
    """Sum; of predicates, exclusive or."""
    if left.bits == 1:
        return xor(operation, left, right)
    low, high = limits(left.bits)
    smallest, largest = left.low + right.low, left.high + right.high
    known = left.unknown is None and right.unknown is None
    if known and low <= smallest and largest <= high:
        parts = together(left.parts, right.parts, left.bits)
        exact = None
        if not (left.plain and right.plain):
            # What has wrapped before stays wrapped by as much.
            exact = together(left.exact_parts, right.exact_parts, left.bits)
        wrap = left.wrap or right.wrap
        return Lanes(left.shape, left.bits, parts, smallest, largest, exact, wrap)
    return _noted(operation, left, right, np.add)


def subtract(operation: Operation, left: Lanes, right: Lanes) -> Lanes:
    """Difference; of predicates, exclusive or."""
    if left.bits == 1:
        return xor(operation, left, right)
    low, high = limits(left.bits)
    smallest, largest = left.low - right.high, left.high - right.low
    if left.plain and right.plain and low <= smallest and largest <= high:
        negated = tuple(-part for part in right.parts)
        parts = together(left.parts, negated, left.bits)
        return Lanes(left.shape, left.bits, parts, smallest, largest)
    return _noted(operation, left, right, np.subtract)


def multiply(operation: Operation, left: Lanes, right: Lanes) -> Lanes:
    """Product; of predicates, conjunction."""
    if left.bits == 1:
        return conjunction(operation, left, right)
    corners = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
    smallest, largest = min(corners), max(corners)
    low, high = limits(left.bits)
    fits = low <= smallest and largest <= high
    if left.plain and right.plain and fits:
        for one, other in ((left, right), (right, left)):
            # A factor alike in all lanes multiplies each summand by itself.
            factor = one.parts[0]
            if len(one.parts) == 1 and all(n == 1 for n in factor.shape[1:]):
                parts = tuple(part * factor for part in other.parts)
                return Lanes(left.shape, left.bits, parts, smallest, largest)
        product = (left.dense() * right.dense(),)
        return Lanes(left.shape, left.bits, product, smallest, largest)
    a, b = left.exact_or_dense(), right.exact_or_dense()
    strange = either(left.unknown, right.unknown)
    estimate = np.abs(a.astype(np.float64) * b.astype(np.float64))
    beyond = estimate > _SAFE
    if not bool(beyond.any()):
        return _noted(operation, left, right, np.multiply)
    # Not even 64 bits hold it: such factors are hashes, and exact as they wrap.
    actual = wrapped(left.dense() * right.dense(), left.bits)
    result = of_array(actual, left.bits, left.shape, strange)
    exact = np.where(beyond, actual, a * b)
    if np.array_equal(exact, actual):
        return result
    wrap = left.wrap or right.wrap or Wrap(operation, a, b, exact, left.bits)
    return replace(result, exact=(exact,), wrap=wrap)


def shift_left(operation: Operation, left: Lanes, right: Lanes) -> Lanes:
    """Multiplication by a power of two; a shift by the width or more gives 0."""
    by = right.dense()
    inside = (by >= 0) & (by < left.bits)
    power = np.where(inside, np.left_shift(np.int64(1), np.where(inside, by, 0)), 0)
    factor = of_array(power, right.bits, right.shape, right.unknown)
    return multiply(operation, left, factor)


def _dense(
    compute: Callable[[Ints, Ints, int], Array], *, settles: bool = False
) -> Binary:
    """An operation computed lane by lane, on actual and on exact values.

    Args:
        compute: Gives values within the width, from two arrays and the width.
        settles: Whether its result counts as exact whatever wrapped before.
    """

    def apply(_: Operation, left: Lanes, right: Lanes) -> Lanes:
        actual = compute(left.dense(), right.dense(), left.bits)
        result = of_array(
            actual, left.bits, left.shape, either(left.unknown, right.unknown)
        )
        if settles or left.exact is None is right.exact:
            return result
        ideal = compute(left.exact_or_dense(), right.exact_or_dense(), 64)
        if np.array_equal(ideal, actual):
            return result
        return replace(
            result, exact=(ideal.astype(np.int64),), wrap=left.wrap or right.wrap
        )

    return apply


def _nonzero(values: Ints) -> Ints:
    """Divisors; what dividing by zero gives, no program may depend on."""
    return np.where(values == 0, 1, values)


def _divide(a: Ints, b: Ints, bits: int) -> Ints:
    b = _nonzero(b)
    # The smallest number divided by -1 is itself.
    with np.errstate(over="ignore"):
        quotient = a // b
    quotient += (quotient < 0) & (quotient * b != a)
    return wrapped(quotient, bits)


def _remainder(a: Ints, b: Ints, _bits: int) -> Ints:
    b = _nonzero(b)
    result: Ints = np.fmod(a, b)
    return result


def _divide_unsigned(a: Ints, b: Ints, bits: int) -> Ints:
    return signed(unsigned(a, bits) // unsigned(_nonzero(b), bits), bits)


def _remainder_unsigned(a: Ints, b: Ints, bits: int) -> Ints:
    return signed(unsigned(a, bits) % unsigned(_nonzero(b), bits), bits)


def _high_product_unsigned(a: Ints, b: Ints, bits: int) -> Ints:
    product = unsigned(a, bits).astype(object) * unsigned(b, bits).astype(object)
    return signed((product >> bits).astype(np.uint64), bits)


def _shift_right(a: Ints, b: Ints, bits: int) -> Ints:
    # A shift by the width or more leaves the sign.
    outside = (b < 0) | (b >= bits)
    result: Ints = a >> np.where(outside, min(bits, 63), b)
    return result


def _shift_right_unsigned(a: Ints, b: Ints, bits: int) -> Ints:
    outside = (b < 0) | (b >= bits)
    moved = unsigned(a, bits) >> np.where(outside, 0, b).astype(np.uint64)
    return signed(np.where(outside, np.uint64(0), moved), bits)


def _max_unsigned(a: Ints, b: Ints, bits: int) -> Ints:
    return np.where(unsigned(a, bits) >= unsigned(b, bits), a, b)


def _min_unsigned(a: Ints, b: Ints, bits: int) -> Ints:
    return np.where(unsigned(a, bits) <= unsigned(b, bits), a, b)


def _logical_unknown(left: Lanes, right: Lanes, *, decides: bool) -> Bools | None:
    """A known operand that decides the result makes it known."""
    strange = either(left.unknown, right.unknown)
    if strange is None:
        return None
    decided = np.zeros_like(strange)
    for each in (left, right):
        known = True if each.unknown is None else ~each.unknown
        decided = decided | (known & (each.dense() == decides))
    return strange & ~decided


def conjunction(operation: Operation, left: Lanes, right: Lanes) -> Lanes:
    """And, bit by bit."""
    if left.bits != 1:
        return _BITWISE_AND(operation, left, right)
    if left.plain and right.plain:
        parts = together(left.parts, right.parts, 1)
        return Lanes(left.shape, 1, parts, 0, 1)
    actual = left.dense() & right.dense()
    return _predicate(
        actual,
        left.exact_or_dense() & right.exact_or_dense(),
        left,
        right,
        decides=False,
    )


def disjunction(operation: Operation, left: Lanes, right: Lanes) -> Lanes:
    """Or, bit by bit."""
    if left.bits != 1:
        return _BITWISE_OR(operation, left, right)
    actual = left.dense() | right.dense()
    return _predicate(
        actual,
        left.exact_or_dense() | right.exact_or_dense(),
        left,
        right,
        decides=True,
    )


def xor(operation: Operation, left: Lanes, right: Lanes) -> Lanes:
    """Exclusive or, bit by bit."""
    if left.bits != 1:
        return _BITWISE_XOR(operation, left, right)
    actual = left.dense() ^ right.dense()
    return _predicate(
        actual,
        left.exact_or_dense() ^ right.exact_or_dense(),
        left,
        right,
        decides=None,
    )


def _predicate(
    actual: Array, ideal: Array, left: Lanes, right: Lanes, *, decides: bool | None
) -> Lanes:
    strange = (
        either(left.unknown, right.unknown)
        if decides is None
        else _logical_unknown(left, right, decides=decides)
    )
    result = of_array(actual, 1, left.shape, strange)
    if left.exact is None is right.exact or np.array_equal(actual, ideal):
        return result
    return replace(result, exact=(ideal,), wrap=left.wrap or right.wrap)


_COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "slt": np.less,
    "sle": np.less_equal,
    "sgt": np.greater,
    "sge": np.greater_equal,
}


def compare(operation: Operation, left: Lanes, right: Lanes) -> Lanes:
    """A predicate; tainted where exact numbers would compare otherwise."""
    predicate = operation.text.split(",")[0].strip()
    a, b = left.dense(), right.dense()
    if left.bits == 1:
        a, b = a.astype(np.int64), b.astype(np.int64)
        if predicate.startswith("s"):
            a, b = -a, -b
    if predicate.startswith("u"):
        bits = left.bits
        relation = _COMPARISONS["s" + predicate[1:]]
        actual = relation(unsigned(a, bits), unsigned(b, bits))
    else:
        relation = _COMPARISONS[predicate]
        actual = relation(a, b)
    result = of_array(actual, 1, left.shape, either(left.unknown, right.unknown))
    if left.exact is None is right.exact:
        return result
    one, other = left.exact_or_dense(), right.exact_or_dense()
    if left.bits == 1 and predicate.startswith("s"):
        one, other = other, one
    ideal = relation(one, other)
    if np.array_equal(ideal, actual):
        return result
    return replace(result, exact=(ideal,), wrap=left.wrap or right.wrap)


def select(condition: Lanes, left: Lanes, right: Lanes) -> Lanes:
    """Left where the condition holds; the condition may be a scalar."""
    chosen = condition.dense()
    if condition.shape != left.shape:
        chosen = chosen.reshape(chosen.shape[0], *(1,) * len(left.shape))
    result = of_array(
        np.where(chosen, left.dense(), right.dense()), left.bits, left.shape
    )
    strange = None
    if not (condition.unknown is None is left.unknown) or right.unknown is not None:
        none = np.zeros((1,) * (1 + len(left.shape)), dtype=np.bool_)
        a = none if left.unknown is None else left.unknown
        b = none if right.unknown is None else right.unknown
        strange = np.where(chosen, a, b)
        if condition.unknown is not None:
            doubt = condition.unknown
            if condition.shape != left.shape:
                doubt = doubt.reshape(doubt.shape[0], *(1,) * len(left.shape))
            strange = strange | doubt
    result = replace(result, unknown=strange)
    if condition.exact is None is left.exact and right.exact is None:
        return result
    right_way = condition.exact_or_dense()
    if condition.shape != left.shape:
        right_way = right_way.reshape(right_way.shape[0], *(1,) * len(left.shape))
    ideal = np.where(right_way, left.exact_or_dense(), right.exact_or_dense())
    if np.array_equal(ideal, result.dense()):
        return result
    return replace(
        result, exact=(ideal,), wrap=condition.wrap or left.wrap or right.wrap
    )


def extend_signed(value: Lanes, bits: int) -> Lanes:
    """Sign extension; of a true predicate, -1."""
    if value.bits == 1:
        array = -value.dense().astype(np.int64)
        result = of_array(array, bits, value.shape, value.unknown)
        return _with_exact(result, value, sign=-1)
    return replace(value, bits=bits)


def extend_unsigned(value: Lanes, bits: int) -> Lanes:
    """Zero extension.

    What wrapped as a signed number is right again as an unsigned one, when that is
    what exact arithmetic gives.
    """
    if value.bits == 1:
        array = value.dense().astype(np.int64)
        result = of_array(array, bits, value.shape, value.unknown)
        return _with_exact(result, value, sign=1)
    if value.low >= 0 and value.exact is None:
        return replace(value, bits=bits)
    actual = unsigned(value.dense(), value.bits).astype(np.int64)
    result = of_array(actual, bits, value.shape, value.unknown)
    if value.exact is None:
        return result
    exact = value.exact_or_dense()
    negative = (exact < 0) & (exact >= limits(value.bits)[0])
    ideal = np.where(negative, actual, exact)
    if np.array_equal(ideal, actual):
        return result
    return replace(result, exact=(ideal,), wrap=value.wrap)


def _with_exact(result: Lanes, predicate: Lanes, *, sign: int) -> Lanes:
    if predicate.exact is None:
        return result
    ideal = sign * predicate.exact_or_dense().astype(np.int64)
    return replace(result, exact=(ideal,), wrap=predicate.wrap)


def truncate(operation: Operation, value: Lanes, bits: int) -> Lanes:
    """The low bits; what does not fit counts as wrapped."""
    if bits == 1:
        odd = (value.dense() & 1).astype(np.bool_)
        return of_array(odd, 1, value.shape, value.unknown)
    low, high = limits(bits)
    if value.exact is None and low <= value.low and value.high <= high:
        return replace(value, bits=bits)
    # Where a comparison went another way, the two differ in their low bits as well.
    exact = value.exact_or_dense()
    actual = wrapped(value.dense(), bits)
    result = of_array(actual, bits, value.shape, value.unknown)
    if np.array_equal(actual, exact):
        return result
    wrap = value.wrap or Wrap(operation, exact, exact, exact, bits)
    return replace(result, exact=(exact,), wrap=wrap)


def absolute(value: Lanes) -> Lanes:
    """Magnitude; of the smallest number, itself."""
    array = wrapped(np.abs(value.dense()), value.bits)
    result = of_array(array, value.bits, value.shape, value.unknown)
    if value.exact is None:
        return result
    ideal = np.abs(value.exact_or_dense())
    if np.array_equal(ideal, array):
        return result
    return replace(result, exact=(ideal,), wrap=value.wrap)


_BITWISE_AND = _dense(lambda a, b, _: a & b, settles=True)
_BITWISE_OR = _dense(lambda a, b, _: a | b)
_BITWISE_XOR = _dense(lambda a, b, _: a ^ b, settles=True)


# The operations of two integers of one width.
BINARY_OPERATIONS: Mapping[str, Binary] = {
    "arith.addi": add,
    "arith.subi": subtract,
    "arith.muli": multiply,
    "arith.shli": shift_left,
    "arith.andi": conjunction,
    "arith.ori": disjunction,
    "arith.xori": xor,
    "arith.divsi": _dense(_divide),
    "arith.remsi": _dense(_remainder),
    "arith.divui": _dense(_divide_unsigned),
    "arith.remui": _dense(_remainder_unsigned, settles=True),
    "arith.shrsi": _dense(_shift_right),
    "arith.shrui": _dense(_shift_right_unsigned, settles=True),
    "arith.maxsi": _dense(lambda a, b, _: np.maximum(a, b)),
    "arith.minsi": _dense(lambda a, b, _: np.minimum(a, b)),
    "arith.maxui": _dense(_max_unsigned),
    "arith.minui": _dense(_min_unsigned),
    "tt.mulhiui": _dense(_high_product_unsigned, settles=True),
    "arith.cmpi": compare,
}
