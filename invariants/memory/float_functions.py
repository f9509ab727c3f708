"""What TTIR's operations and CUDA's device functions compute, on torch.

Each works in the dtype that it is given. A GPU approximates some of them to a few units
in the last place, and may fuse a product with a sum; torch does neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

Function = Callable[..., torch.Tensor]
_ROOT_2 = 0.5**0.5


def _fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Product and sum, rounded once; float64 holds a product of two float32."""
    return (a.double() * b.double() + c.double()).to(a.dtype)


def _root(a: torch.Tensor) -> torch.Tensor:
    """The square root, rounded once; torch's own may be off by one unit."""
    return a.double().sqrt().to(a.dtype)


def _away(a: torch.Tensor) -> torch.Tensor:
    """To the nearest integer, halves away from zero."""
    whole = a.trunc()
    return torch.where((a - whole).abs() >= 0.5, whole + torch.sign(a), whole)


def _normal(a: torch.Tensor) -> torch.Tensor:
    return 0.5 * torch.erfc(-a * _ROOT_2)


def clamped(
    a: torch.Tensor, low: torch.Tensor, high: torch.Tensor, *, keeps_nan: bool
) -> torch.Tensor:
    """Within bounds; NaN stays, or becomes the lower bound."""
    if keeps_nan:
        return torch.minimum(torch.maximum(a, low), high)
    return torch.fmin(torch.fmax(a, low), high)


# Functions of one, two or three numbers that give one of the same dtype.
FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "arith.addf": torch.add,
        "arith.subf": torch.sub,
        "arith.mulf": torch.mul,
        "arith.divf": torch.div,
        "arith.remf": torch.fmod,
        "arith.negf": torch.neg,
        "arith.maxnumf": torch.fmax,
        "arith.minnumf": torch.fmin,
        "arith.maximumf": torch.maximum,
        "arith.minimumf": torch.minimum,
        "tt.precise_divf": torch.div,
        "tt.precise_sqrt": _root,
        "math.absf": torch.abs,
        "math.acos": torch.acos,
        "math.asin": torch.asin,
        "math.atan": torch.atan,
        "math.atan2": torch.atan2,
        "math.ceil": torch.ceil,
        "math.copysign": torch.copysign,
        "math.cos": torch.cos,
        "math.cosh": torch.cosh,
        "math.erf": torch.erf,
        "math.exp": torch.exp,
        "math.exp2": torch.exp2,
        "math.expm1": torch.expm1,
        "math.floor": torch.floor,
        "math.fma": _fused,
        "math.log": torch.log,
        "math.log10": torch.log10,
        "math.log1p": torch.log1p,
        "math.log2": torch.log2,
        "math.powf": torch.pow,
        "math.round": _away,
        "math.roundeven": torch.round,
        "math.rsqrt": torch.rsqrt,
        "math.sin": torch.sin,
        "math.sinh": torch.sinh,
        "math.sqrt": torch.sqrt,
        "math.tan": torch.tan,
        "math.tanh": torch.tanh,
        "math.trunc": torch.trunc,
    }
)

# The functions of CUDA's libdevice, without `__nv_`, and without the `f` of float32.
DEVICE_FUNCTIONS: Mapping[str, Function] = MappingProxyType(
    {
        "acos": torch.acos,
        "acosh": torch.acosh,
        "asin": torch.asin,
        "asinh": torch.asinh,
        "atan": torch.atan,
        "atan2": torch.atan2,
        "atanh": torch.atanh,
        "ceil": torch.ceil,
        "copysign": torch.copysign,
        "cos": torch.cos,
        "cosh": torch.cosh,
        "ddiv_rn": torch.div,
        "dsqrt_rn": _root,
        "erf": torch.erf,
        "erfc": torch.erfc,
        "exp": torch.exp,
        "exp2": torch.exp2,
        "expm1": torch.expm1,
        "fabs": torch.abs,
        "fast_cos": torch.cos,
        "fast_exp": torch.exp,
        "fast_fdivide": torch.div,
        "fast_log": torch.log,
        "fast_log2": torch.log2,
        "fast_log10": torch.log10,
        "fast_pow": torch.pow,
        "fast_sin": torch.sin,
        "fast_tan": torch.tan,
        "fast_tanh": torch.tanh,
        "fdim": lambda a, b: torch.clamp(a - b, min=0.0),
        "fdiv_rn": torch.div,
        "floor": torch.floor,
        "fma": _fused,
        "fma_rn": _fused,
        "fmax": torch.fmax,
        "fmin": torch.fmin,
        "fmod": torch.fmod,
        "frsqrt_rn": torch.rsqrt,
        "fsqrt_rn": _root,
        "hypot": torch.hypot,
        "lgamma": torch.lgamma,
        "log": torch.log,
        "log10": torch.log10,
        "log1p": torch.log1p,
        "log2": torch.log2,
        "nearbyint": torch.round,
        "normcdf": _normal,
        "pow": torch.pow,
        "rint": torch.round,
        "round": _away,
        "rsqrt": torch.rsqrt,
        "saturate": lambda a: torch.nan_to_num(a, nan=0.0).clamp(0.0, 1.0),
        "sin": torch.sin,
        "sinh": torch.sinh,
        "sqrt": torch.sqrt,
        "tan": torch.tan,
        "tanh": torch.tanh,
        "trunc": torch.trunc,
    }
)

# Those that ask about one number; their result is 1 or 0.
DEVICE_PREDICATES: Mapping[str, Function] = MappingProxyType(
    {
        "finite": torch.isfinite,
        "isinf": torch.isinf,
        "isinfd": torch.isinf,
        "isnan": torch.isnan,
        "isnand": torch.isnan,
        "signbit": torch.signbit,
        "signbitd": torch.signbit,
    }
)


def device_function(symbol: str, held: Mapping[str, Function]) -> Function | None:
    """The one of this name among some: `__nv_expf` and `__nv_exp` are both `exp`."""
    name = symbol.removeprefix("__nv_")
    return held.get(name) or held.get(name.removesuffix("f"))


def _unordered(
    relation: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Function:
    def compare(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return relation(a, b) | a.isnan() | b.isnan()

    return compare


# Predicates of `arith.cmpf`: what starts with o is false where one is NaN, with u true.
COMPARISONS: Mapping[str, Function] = MappingProxyType(
    {
        "false": lambda a, b: torch.zeros_like(a + b, dtype=torch.bool),
        "oeq": torch.eq,
        "ogt": torch.gt,
        "oge": torch.ge,
        "olt": torch.lt,
        "ole": torch.le,
        "one": lambda a, b: (a < b) | (a > b),
        "ord": lambda a, b: ~(a.isnan() | b.isnan()),
        "ueq": _unordered(torch.eq),
        "ugt": _unordered(torch.gt),
        "uge": _unordered(torch.ge),
        "ult": _unordered(torch.lt),
        "ule": _unordered(torch.le),
        "une": torch.ne,
        "uno": lambda a, b: a.isnan() | b.isnan(),
        "true": lambda a, b: torch.ones_like(a + b, dtype=torch.bool),
    }
)
