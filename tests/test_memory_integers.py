"""Every integer operation against plain Python with two's complement made explicit."""

from collections.abc import Callable

import numpy as np
import pytest

from invariants.memory import integers
from invariants.memory.lanes import Lanes, of_array, unknown
from invariants.memory.ttir import Operation

WIDTHS = (8, 16, 32, 64)


def wrap(value: int, bits: int) -> int:
    """What a register of this width holds."""
    low = value & ((1 << bits) - 1)
    return low - (1 << bits) if low >> (bits - 1) else low


def plain(value: int, bits: int) -> int:
    """The same bits as an unsigned number."""
    return value & ((1 << bits) - 1)


def truncated(a: int, b: int) -> int:
    """Quotient toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# By the operation's name: from both numbers, both as unsigned ones, and the width.
Reference = Callable[[int, int, int, int, int], int]
REFERENCES: dict[str, Reference] = {
    "addi": lambda a, b, _ua, _ub, _n: a + b,
    "subi": lambda a, b, _ua, _ub, _n: a - b,
    "muli": lambda a, b, _ua, _ub, _n: a * b,
    "andi": lambda a, b, _ua, _ub, _n: a & b,
    "ori": lambda a, b, _ua, _ub, _n: a | b,
    "xori": lambda a, b, _ua, _ub, _n: a ^ b,
    "shli": lambda a, b, _ua, _ub, n: a << b if 0 <= b < n else 0,
    "shrsi": lambda a, b, _ua, _ub, n: a >> (b if 0 <= b < n else n),
    "shrui": lambda _a, b, ua, _ub, n: ua >> b if 0 <= b < n else 0,
    "divsi": lambda a, b, _ua, _ub, _n: truncated(a, b),
    "remsi": lambda a, b, _ua, _ub, _n: a - b * truncated(a, b),
    "divui": lambda _a, _b, ua, ub, _n: ua // ub,
    "remui": lambda _a, _b, ua, ub, _n: ua % ub,
    "maxsi": lambda a, b, _ua, _ub, _n: max(a, b),
    "minsi": lambda a, b, _ua, _ub, _n: min(a, b),
    "maxui": lambda _a, _b, ua, ub, _n: max(ua, ub),
    "minui": lambda _a, _b, ua, ub, _n: min(ua, ub),
    "mulhiui": lambda _a, _b, ua, ub, n: (ua * ub) >> n,
}
PREDICATES: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
SIGNS = (
    "eq",
    "ne",
    *(f"{sign}{each}" for sign in "su" for each in ("lt", "le", "gt", "ge")),
)


def reference(name: str, a: int, b: int, bits: int) -> int | None:
    """The result as Python sees it; None where no program may ask."""
    if b == 0 and name in {"divsi", "remsi", "divui", "remui"}:
        return None
    return wrap(REFERENCES[name](a, b, plain(a, bits), plain(b, bits), bits), bits)


def compared(predicate: str, a: int, b: int, bits: int) -> bool:
    """Whether a predicate holds, as Python sees it."""
    if predicate.startswith("u"):
        a, b = plain(a, bits), plain(b, bits)
    return PREDICATES[predicate[-2:]](a, b)


def edges(bits: int) -> list[int]:
    half = 1 << (bits - 1)
    near = [-3, -2, -1, 0, 1, 2, 3, 7, bits - 1, bits, bits + 1, -7]
    return sorted({-half, -half + 1, half - 1, half - 2, half // 2, -half // 2, *near})


def pairs(bits: int) -> tuple[list[tuple[int, int]], Lanes, Lanes]:
    """All pairs of edge values, as numbers and as two values of a kernel."""
    both = [(a, b) for a in edges(bits) for b in edges(bits)]
    left, right = (lanes([each[at] for each in both], bits) for at in (0, 1))
    return both, left, right


def lanes(numbers: list[int], bits: int) -> Lanes:
    return of_array(np.asarray([numbers], dtype=np.int64), bits, (len(numbers),))


def operation(name: str, text: str = "") -> Operation:
    return Operation(name=name, results=(), operands=(), text=text, types=())


def numbers(value: Lanes) -> list[int]:
    held = [int(each) for each in np.broadcast_to(value.dense(), (1, *value.shape))[0]]
    assert all(value.low <= each <= value.high for each in held)
    return held


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("name", sorted({*integers.BINARY_OPERATIONS} - {"arith.cmpi"}))
def test_two_integers(name: str, bits: int) -> None:
    both, left, right = pairs(bits)
    result = integers.BINARY_OPERATIONS[name](operation(name), left, right)
    assert (result.bits, result.shape) == (bits, left.shape)
    assert result.unknown is None
    short = name.split(".")[1]
    for (a, b), given in zip(both, numbers(result), strict=True):
        expected = reference(short, a, b, bits)
        assert expected is None or given == expected, (a, b)


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("predicate", SIGNS)
def test_comparisons(predicate: str, bits: int) -> None:
    both, left, right = pairs(bits)
    done = operation("arith.cmpi", f"{predicate}, %a, %b")
    result = integers.compare(done, left, right)
    assert result.bits == 1
    assert numbers(result) == [compared(predicate, a, b, bits) for a, b in both]


@pytest.mark.parametrize("predicate", SIGNS)
def test_comparisons_of_predicates(predicate: str) -> None:
    """A true predicate is -1 as a signed number, and 1 as an unsigned one."""
    both = [(a, b) for a in (0, 1) for b in (0, 1)]
    left, right = (lanes([each[at] for each in both], 1) for at in (0, 1))
    done = operation("arith.cmpi", f"{predicate}, %a, %b")
    result = integers.compare(done, left, right)
    assert numbers(result) == [compared(predicate, -a, -b, 1) for a, b in both]


@pytest.mark.parametrize("name", ["addi", "subi", "muli"])
def test_what_wraps_keeps_what_is_exact(name: str) -> None:
    both, left, right = pairs(32)
    done = operation(f"arith.{name}")
    result = integers.BINARY_OPERATIONS[done.name](done, left, right)
    assert result.exact is not None
    assert result.wrap is not None
    assert (result.wrap.operation, result.wrap.bits) == (done, 32)
    exact = [int(each) for each in result.exact_or_dense()[0]]
    assert exact == [REFERENCES[name](a, b, 0, 0, 32) for a, b in both]


def test_what_wraps_and_comes_back_is_exact_again() -> None:
    left, right = lanes([2**31 - 1, 5], 32), lanes([1, 1], 32)
    there = integers.add(operation("arith.addi"), left, right)
    assert there.exact is not None
    back = integers.subtract(operation("arith.subi"), there, right)
    assert numbers(back) == [2**31 - 1, 5]
    assert back.exact is None


@pytest.mark.parametrize("name", ["remui", "shrui", "andi", "xori"])
def test_a_hash_is_what_it_is(name: str) -> None:
    factor = lanes([2**31 - 1], 32)
    wrapped = integers.multiply(operation("arith.muli"), factor, factor)
    assert wrapped.exact is not None
    done = operation(f"arith.{name}")
    settled = integers.BINARY_OPERATIONS[done.name](done, wrapped, lanes([2], 32))
    assert settled.exact is None


def test_a_lane_that_64_bits_cannot_hold_settles_that_lane_alone() -> None:
    left = integers.multiply(
        operation("arith.muli"),
        lanes([2**31 - 1, 2], 32),
        lanes([2**31 - 1, 2**30], 32),
    )
    result = integers.multiply(operation("arith.muli"), left, lanes([2**20, 3], 32))
    assert result.exact is not None
    assert result.differs().tolist() == [[False, True]]
    assert int(result.exact_or_dense()[0, 1]) == 3 * 2**31


@pytest.mark.parametrize("change", ["absi", "trunci", "select", "cmpi"])
def test_a_wrap_is_not_forgotten(change: str) -> None:
    big = integers.add(operation("arith.addi"), lanes([2**31 - 1], 32), lanes([9], 32))
    none = lanes([0], 32)
    less = operation("arith.cmpi", "slt, %a, %b")
    result = {
        "absi": lambda: integers.absolute(big),
        "trunci": lambda: integers.truncate(operation("arith.trunci"), big, 16),
        "select": lambda: integers.select(lanes([1], 1), big, none),
        "cmpi": lambda: integers.compare(less, big, none),
    }[change]()
    assert result.exact is not None
    assert result.wrap is big.wrap


def test_where_a_comparison_went_wrong_the_number_that_is_used_goes_on() -> None:
    """Found by the interpreter: a narrower result was taken from the exact numbers."""
    big = integers.add(operation("arith.addi"), lanes([2**31 - 1], 32), lanes([9], 32))
    less = operation("arith.cmpi", "slt, %a, %b")
    negative = integers.compare(less, big, lanes([0], 32))
    chosen = integers.select(negative, lanes([3], 32), lanes([4], 32))
    narrow = integers.truncate(operation("arith.trunci"), chosen, 8)
    assert numbers(narrow) == [3]
    assert narrow.exact is not None
    assert narrow.exact_or_dense().tolist() == [[4]]


@pytest.mark.parametrize(("bits", "wider"), [(8, 32), (16, 64), (32, 64)])
def test_extensions(bits: int, wider: int) -> None:
    given = edges(bits)
    assert numbers(integers.extend_signed(lanes(given, bits), wider)) == given
    assert numbers(integers.extend_unsigned(lanes(given, bits), wider)) == [
        plain(each, bits) for each in given
    ]


def test_extensions_of_predicates() -> None:
    assert numbers(integers.extend_signed(lanes([0, 1], 1), 32)) == [0, -1]
    assert numbers(integers.extend_unsigned(lanes([0, 1], 1), 32)) == [0, 1]


@pytest.mark.parametrize(("bits", "narrower"), [(64, 32), (32, 16), (64, 8)])
def test_truncations(bits: int, narrower: int) -> None:
    given = edges(bits)
    result = integers.truncate(operation("arith.trunci"), lanes(given, bits), narrower)
    assert numbers(result) == [wrap(each, narrower) for each in given]
    odd = integers.truncate(operation("arith.trunci"), lanes(given, bits), 1)
    assert numbers(odd) == [each & 1 for each in given]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bits", WIDTHS)
def test_magnitudes(bits: int) -> None:
    given = edges(bits)
    result = integers.absolute(lanes(given, bits))
    assert numbers(result) == [wrap(abs(each), bits) for each in given]


def test_selections() -> None:
    chosen = lanes([1, 0], 1)
    result = integers.select(chosen, lanes([5, 6], 32), lanes([7, 8], 32))
    assert numbers(result) == [5, 8]


def test_what_is_not_known_stays_so() -> None:
    doubt = unknown(32, (2,))
    known = lanes([1, 2], 32)
    for name, apply in integers.BINARY_OPERATIONS.items():
        done = operation(name, "slt, %a, %b")
        for left, right in ((doubt, known), (known, doubt)):
            result = apply(done, left, right)
            assert result.unknown is not None, name
            assert result.unknown.all(), name


def test_a_known_side_may_decide_a_predicate() -> None:
    doubt, sides = unknown(1, (2,)), lanes([0, 1], 1)
    both = integers.conjunction(operation("arith.andi"), doubt, sides)
    assert both.unknown is not None
    assert both.unknown.tolist() == [[False, True]]
    assert not both.dense()[0, 0]
    one = integers.disjunction(operation("arith.ori"), doubt, sides)
    assert one.unknown is not None
    assert one.unknown.tolist() == [[True, False]]
    assert one.dense()[0, 1]
