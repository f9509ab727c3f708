"""What value mode computes beside references of its own, for a prepared process.

The references are float64 and rounded here, by search among all numbers of a dtype
where that is possible; none of them calls what value mode is made of.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isnan
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from invariants.memory.findings import Finding, Undecided
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory
from tests import value_kernels as kernels

Tensor = torch.Tensor


@dataclass(frozen=True)
class Result:
    """What a kernel left, and what was said of it."""

    numbers: list[float]
    findings: tuple[Finding, ...]
    undecided: tuple[Undecided, ...]
    accesses: int = 0

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(finding.kind for finding in self.findings)

    @property
    def reasons(self) -> tuple[str, ...]:
        return tuple(each.reason for each in self.undecided)


def launched(
    kernel: Any,
    grid: tuple[int, ...],
    out: Tensor,
    *arguments: object,
    memory: Memory | None = None,
    **constants: Any,
) -> Result:
    """Run a kernel whose first argument is its output."""
    with checked_launches(memory, values=True) as log:
        kernel[grid](out, *arguments, **constants)
    return Result(
        out.double().flatten().tolist(),
        log.findings,
        log.undecided,
        accesses=log.launches[0].accesses,
    )


def clean(
    kernel: Any,
    grid: tuple[int, ...],
    out: Tensor,
    *arguments: object,
    **constants: Any,
) -> Tensor:
    """The output of a kernel of which nothing may be said."""
    result = launched(kernel, grid, out, *arguments, **constants)
    assert result.findings == (), result.findings
    assert result.undecided == (), result.undecided
    return out


def same(got: Tensor, want: Tensor) -> int:
    """How many numbers differ in value; NaN is NaN."""
    assert got.shape == want.shape
    got, want = got.double(), want.double()
    return int((~((got == want) | (got.isnan() & want.isnan()))).sum())


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


# --- numbers --------------------------------------------------------------------------

SPECIAL = (0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 3.5)


def _pairs(dtype: torch.dtype, count: int = 256) -> tuple[Tensor, Tensor]:
    special = torch.tensor(SPECIAL, dtype=torch.float64)
    grid = torch.cartesian_prod(special, special)
    drawn = random(count - len(grid), 2, seed=7).double() * 4
    both = torch.cat([grid, drawn]).to(dtype)
    return both[:, 0].contiguous(), both[:, 1].contiguous()


def _picked(of: Callable[[float, float], bool]) -> Callable[[Tensor, Tensor], Tensor]:
    """The number that is larger, or smaller; NaN loses."""

    def choose(x: Tensor, y: Tensor) -> Tensor:
        result = [
            b if isnan(a) else a if isnan(b) else a if of(a, b) else b
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
        return torch.tensor(result, dtype=torch.float64)

    return choose


def _or_nan(of: Callable[[float, float], bool]) -> Callable[[Tensor, Tensor], Tensor]:
    choose = _picked(of)
    return lambda x, y: torch.where(x.isnan() | y.isnan(), torch.nan, choose(x, y))


def _chosen(
    of: Callable[[float, float], bool], *, left: bool
) -> Callable[[Tensor, Tensor], Tensor]:
    """Left or right where the relation holds, by Python's own comparison."""

    def choose(x: Tensor, y: Tensor) -> Tensor:
        pairs = zip(x.tolist(), y.tolist(), strict=True)
        result = [
            (a if left else b) if of(a, b) else (b if left else a) for a, b in pairs
        ]
        return torch.tensor(result, dtype=torch.float64)

    return choose


def _asked(of: Callable[[float, float], bool]) -> Callable[[Tensor, Tensor], Tensor]:
    def ask(x: Tensor, y: Tensor) -> Tensor:
        pairs = zip(x.tolist(), y.tolist(), strict=True)
        return torch.tensor([float(of(a, b)) for a, b in pairs], dtype=torch.float64)

    return ask


# float64 holds sums, products and quotients of shorter numbers so well that rounding it
# once more gives what one rounding would.
OF_TWO: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "add": lambda x, y: x + y,
        "subtract": lambda x, y: x - y,
        "multiply": lambda x, y: x * y,
        "divide": lambda x, y: x / y,
        "negate": lambda x, _: -x,
        "magnitude": lambda x, _: x.abs(),
        "maximum": _picked(lambda a, b: a >= b),
        "minimum": _picked(lambda a, b: a <= b),
        "maximum of all": _or_nan(lambda a, b: a >= b),
        "minimum of all": _or_nan(lambda a, b: a <= b),
        "greater": _chosen(lambda a, b: a > b, left=True),
        "not less": _chosen(lambda a, b: a < b, left=False),
        "differs": _asked(lambda a, b: a != b),
        "equals": _asked(lambda a, b: a == b),
    }
)


def two_numbers(name: str, dtype: str) -> int:
    """How many results of a function of two numbers are not the rounded exact ones."""
    kind = getattr(torch, dtype)
    x, y = _pairs(kind)
    out = torch.empty_like(x)
    clean(kernels.two_numbers, (4,), out, x, y, NAME=name, N=64)
    return same(out, OF_TWO[name](x.double(), y.double()).to(kind))


OF_ONE: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "exp": np.exp,
        "exp2": np.exp2,
        "log": np.log,
        "log2": np.log2,
        "sqrt": np.sqrt,
        "rsqrt": lambda x: 1 / np.sqrt(x),
        "floor": np.floor,
        "ceil": np.ceil,
        "sin": np.sin,
        "cos": np.cos,
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "tanh": np.tanh,
        "log1p": np.log1p,
        "rint": np.rint,
        "round": lambda x: np.floor(x + 0.5),
        "trunc": np.trunc,
    }
)


def one_number(name: str, dtype: str) -> float:
    """The worst error of a function of a number, in units in the last place."""
    kind = getattr(torch, dtype)
    x = torch.cat([torch.arange(1, 65) / 4, random(64, seed=3).abs() + 1e-3]).to(kind)
    out = torch.empty_like(x)
    clean(kernels.one_number, (1,), out, x, NAME=name, N=128)
    want = OF_ONE[name](x.double().numpy().astype(np.longdouble))
    error = np.abs(out.double().numpy() - want) / (np.abs(want) + 1e-30)
    return float(error.max() / torch.finfo(kind).eps)


def exact_numbers() -> int:
    """How many of a fused product, quotient, root, bound and test are not exact."""
    x, y = _pairs(torch.float32)
    c = random(256, seed=9)
    out = torch.empty(5, 256)
    clean(kernels.exact_numbers, (1,), out, x, y, c, N=256)
    wide = x.double()
    # NaN becomes the lower bound.
    bounded = torch.where(wide.isnan(), -0.5, wide.clamp(-0.5, 0.5))
    high = y.double() * 0 + 0.5
    bounded = torch.where(
        high.isnan(), torch.where(wide.isnan(), -0.5, wide.clamp(min=-0.5)), bounded
    )
    want = torch.stack(
        [
            wide * y.double() + c.double(),
            wide / y.double(),
            wide.abs().sqrt(),
            bounded,
            wide.isnan().double(),
        ]
    )
    return same(out, want.float())


# --- conversions ----------------------------------------------------------------------

# Bits of exponent and fraction; whether the top exponent holds numbers but for NaN.
FORMATS: Mapping[str, tuple[int, int, bool]] = MappingProxyType(
    {
        "float8_e4m3fn": (4, 3, True),
        "float8_e5m2": (5, 2, False),
        "float16": (5, 10, False),
        "bfloat16": (8, 7, False),
    }
)


def _decoded(dtype: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Every number of a format, by its bits, from the definition of the format."""
    exponent_bits, fraction_bits, finite = FORMATS[dtype]
    width = 1 + exponent_bits + fraction_bits
    bits = np.arange(1 << width)
    sign = np.where(bits >> (width - 1), -1.0, 1.0)
    exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1)
    fraction = bits & ((1 << fraction_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    share = fraction / (1 << fraction_bits)
    normal = (1 + share) * 2.0 ** (exponent - bias)
    number = np.where(exponent == 0, share * 2.0 ** (1 - bias), normal)
    top = exponent == (1 << exponent_bits) - 1
    if finite:
        number[top & (fraction == (1 << fraction_bits) - 1)] = np.nan
    else:
        number[top] = np.where(fraction[top] == 0, np.inf, np.nan)
    numbers: np.ndarray[Any, np.dtype[np.float64]] = sign * number
    return numbers


def all_numbers(dtype: str) -> int:
    """How many numbers of a format are not read as its definition says."""
    held = _decoded(dtype)
    width = torch.int8 if len(held) == 256 else torch.int16
    source = torch.arange(len(held)).to(width).view(getattr(torch, dtype))
    out = torch.empty(len(held), dtype=torch.float32)
    clean(kernels.convert, (1,), out, source, N=len(held))
    return same(out, torch.from_numpy(held))


def rounded(dtype: str, source: str, *, toward_zero: bool = False) -> int:
    """How many numbers are not rounded to the right one of all numbers of a format."""
    held = _decoded(dtype)
    finite = np.unique(held[np.isfinite(held)])
    middles = (finite[1:] + finite[:-1]) / 2
    step = max(1, len(middles) // 1500)
    drawn = np.concatenate([middles[::step], middles[::step] * 1.001, finite[::step]])
    limit = finite[-1]
    drawn = np.concatenate([drawn, [limit * 1.01, limit * 4, -limit * 4, 0.0, -0.0]])
    drawn = np.concatenate([drawn, [np.nan, np.inf, -np.inf]])
    count = 1 << int(len(drawn) - 1).bit_length()
    numbers = torch.from_numpy(np.resize(drawn, count)).to(getattr(torch, source))
    out = torch.empty(count, dtype=getattr(torch, dtype))
    kernel = kernels.convert_toward_zero if toward_zero else kernels.convert
    clean(kernel, (1,), out, numbers, N=count)
    given = numbers.double().numpy()
    small = len(held) == 256
    return same(
        out, torch.from_numpy(_nearest(given, finite, small=small, cut=toward_zero))
    )


def _nearest(
    given: np.ndarray[Any, np.dtype[np.float64]],
    finite: np.ndarray[Any, np.dtype[np.float64]],
    *,
    small: bool,
    cut: bool,
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The nearest of all finite numbers, of two the one with an even fraction.

    Beyond the last, 8 bits saturate; others become infinite from half a step on.
    """
    limit = finite[-1]
    at = np.searchsorted(finite, given).clip(1, len(finite) - 1)
    low, high = finite[at - 1], finite[at]
    # Fractions alternate between even and odd, zero being even.
    zero = int(np.flatnonzero(finite == 0)[0])
    low_even = (at - 1 - zero) % 2 == 0
    tie = given - low == high - given
    below = np.where(tie, low_even, given - low < high - given)
    if cut:
        below = np.where(given >= 0, given < high, given <= low)
    result = np.where(below, low, high)
    last = finite[-1] - finite[-2]
    beyond = np.abs(given) > limit
    endless = np.isinf(given) if cut else np.abs(given) >= limit + last / 2
    largest = np.copysign(limit, given)
    result = np.where(beyond, largest, result)
    if not small:
        result = np.where(beyond & endless, np.copysign(np.inf, given), result)
    return np.where(np.isnan(given), np.nan, result)


def to_integers(dtype: str, source: str) -> int:
    """How many numbers are not cut to the integer they should."""
    kind = getattr(torch, dtype)
    held = torch.iinfo(kind)
    drawn = [-1.5, -0.5, 0.5, 1.5, 2.5, 100.75, -100.75]
    if held.bits >= 32:
        drawn += [3e9, -3e9, 1e20, -1e20, float("inf"), float("nan")]
    numbers = torch.tensor((drawn * 4)[:16], dtype=getattr(torch, source))
    out = torch.empty(16, dtype=kind)
    clean(kernels.convert, (1,), out, numbers, N=16)
    # NaN is 0, but the lowest number where 64 bits take part.
    nan = held.min if 64 in {held.bits, numbers.element_size() * 8} else 0
    want = [
        nan
        if isnan(x)
        else max(
            held.min, min(held.max, int(x) if abs(x) < 1e30 else int(np.sign(x) * 1e30))
        )
        for x in numbers.double().tolist()
    ]
    return sum(a != b for a, b in zip(out.tolist(), want, strict=True))


def from_integers(dtype: str, source: str) -> int:
    """How many integers do not become the nearest number."""
    kind = getattr(torch, source)
    held = torch.iinfo(kind)
    drawn = [0, 1, held.max, held.max - 1, held.max // 3, held.min, held.min // 5, 7]
    numbers = torch.tensor(drawn, dtype=kind)
    out = torch.empty(8, dtype=getattr(torch, dtype))
    clean(kernels.convert, (1,), out, numbers, N=8)
    want = np.asarray(drawn, dtype=object).astype(dtype)
    return same(out, torch.from_numpy(want.astype(np.float64)))


def same_bits() -> int:
    """How many numbers change when their bits go to integers and back."""
    total = 0
    for dtype, width in (
        ("float64", torch.int64),
        ("float32", torch.int32),
        ("bfloat16", torch.int16),
        ("float16", torch.int16),
    ):
        numbers = _pairs(getattr(torch, dtype))[0]
        bits = clean(
            kernels.convert_bits, (1,), torch.empty(256, dtype=width), numbers, N=256
        )
        total += int((bits != numbers.view(width)).sum())
        back = clean(kernels.convert_bits, (1,), torch.empty_like(numbers), bits, N=256)
        total += int((back.view(width) != bits).sum())
    return total
