"""Dtypes of TTIR on torch: constants, bits, and conversions as a GPU rounds them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray

from invariants.memory.floats import Floats
from invariants.memory.lanes import Array, Lanes
from invariants.memory.ttir import Operation

DTYPES: Mapping[str, torch.dtype] = MappingProxyType(
    {
        "f64": torch.float64,
        "f32": torch.float32,
        "f16": torch.float16,
        "bf16": torch.bfloat16,
        "f8E4M3FN": torch.float8_e4m3fn,
        "f8E5M2": torch.float8_e5m2,
    }
)
_INTEGERS = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


class UnknownElementError(ValueError):
    """A floating-point dtype that is not computed here; names it."""


def dtype_of(element: str) -> torch.dtype:
    """Torch's dtype of an element type.

    Raises:
        UnknownElementError: When there is none here.
    """
    if element not in DTYPES:
        msg = f"numbers of type {element} are not computed"
        raise UnknownElementError(msg)
    return DTYPES[element]


def tensor_of(array: Array) -> torch.Tensor:
    """A tensor over an array's memory, or over a copy where it must not be shared."""
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def of_bits(array: Array, element: str) -> torch.Tensor:
    """Numbers from integers of their width, bit by bit."""
    return tensor_of(array).view(dtype_of(element))


def bits_of(numbers: torch.Tensor) -> NDArray[np.int64]:
    """Numbers as integers of their width, bit by bit."""
    width = _INTEGERS[numbers.element_size() * 8]
    bits: NDArray[np.int64] = numbers.contiguous().view(width).numpy()
    return bits


def shown(bits: int, element: str) -> str:
    """The number that has these bits, as text, and the bits where NaN hides them."""
    width = torch.finfo(dtype_of(element)).bits
    held = torch.tensor([bits], dtype=_INTEGERS[width])
    number = float(held.view(dtype_of(element)))
    if math.isnan(number):
        return f"nan {bits & ((1 << width) - 1):#x}"
    return f"{number:.9g}"


def filled(element: str, shape: tuple[int, ...], number: float) -> Floats:
    """The same number in every lane."""
    ones = (1,) * (1 + len(shape))
    wide = torch.full(ones, number, dtype=torch.float64)
    return Floats(shape, element, wide.to(dtype_of(element)))


def not_known(element: str, shape: tuple[int, ...]) -> Floats:
    """A number that nothing determines: NaN, and noted."""
    nan = filled(element, shape, float("nan"))
    return replace(nan, unknown=torch.ones_like(nan.array, dtype=torch.bool))


def constant_of(operation: Operation, shape: tuple[int, ...] | None = None) -> Floats:
    """`arith.constant` of floats; hexadecimal literals are bits."""
    kind = operation.types[-1]
    dense = re.search(r"dense<(.*)>", operation.text)
    literal = dense.group(1) if dense else operation.text.strip()
    dtype = dtype_of(kind.element)
    width = _INTEGERS[kind.bits]

    def of(text: str) -> torch.Tensor:
        if text.startswith("0x"):
            bits = int(text, 16)
            bits -= (bits >> (kind.bits - 1)) << kind.bits
            return torch.tensor([bits], dtype=width).view(dtype)
        return torch.tensor([float(text)], dtype=torch.float64).to(dtype)

    if literal.startswith("["):
        numbers = [of(each) for each in re.findall(r"[^\[\], ]+", literal)]
        return Floats(kind.shape, kind.element, torch.cat(numbers).view(1, *kind.shape))
    wanted = kind.shape if shape is None else shape
    return Floats(wanted, kind.element, of(literal).view((1,) * (1 + len(wanted))))


def converted(numbers: torch.Tensor, element: str) -> torch.Tensor:
    """Numbers rounded to another dtype, to nearest and ties to even.

    To 8 bits a GPU saturates, infinities too (PTX: `cvt.rn.satfinite`); NaN stays NaN.
    """
    dtype = dtype_of(element)
    if dtype.itemsize == 1 and numbers.element_size() > 1:
        limit = torch.finfo(dtype).max
        # bf16 and f16 reach f8 by way of f32, and so does torch.
        numbers = numbers.to(torch.float32).clamp(-limit, limit)
    return numbers.to(dtype)


def toward_zero(numbers: torch.Tensor, element: str) -> torch.Tensor:
    """Numbers rounded to another dtype, toward zero.

    What is too large becomes the largest number; infinities and NaN stay what they are.
    """
    near = converted(numbers, element)
    wide = numbers.to(torch.float64)
    back = near.to(torch.float64)
    limit = torch.finfo(dtype_of(element)).max
    beyond = back.abs() > wide.abs()
    # The next number toward zero has the next smaller bits, sign aside.
    lower = (tensor_of(bits_of(near)) - 1).view(near.dtype)
    result = torch.where(beyond, lower, near)
    largest = torch.full_like(wide, limit).copysign(wide).to(near.dtype)
    cut = torch.isfinite(wide) & (wide.abs() > limit)
    return torch.where(cut, largest, result)


def from_integers(lanes: Lanes, element: str, *, signed: bool) -> torch.Tensor:
    """Integers as numbers; a predicate counts as 1, as a signed one as -1."""
    values = lanes.dense()
    if lanes.bits == 1:
        values = -values.astype(np.int64) if signed else values.astype(np.int64)
    elif not signed and lanes.bits < 64:
        values = values & ((1 << lanes.bits) - 1)
    elif not signed:
        return converted(tensor_of(values.view(np.uint64).astype(np.float64)), element)
    return tensor_of(values).to(dtype_of(element))


def to_integers(
    numbers: torch.Tensor, bits: int, *, signed: bool
) -> tuple[NDArray[np.int64], torch.Tensor]:
    """Numbers cut toward zero, and where what does not fit leaves them undetermined.

    To 32 and 64 bits a GPU saturates, and NaN becomes 0, or the top bit alone where 64
    bits take part (PTX: `cvt.rzi`); narrower results of what does not fit are left open
    by LLVM.
    """
    low, high = (0, (1 << bits) - 1)
    if signed:
        low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    wide = numbers.to(torch.float64).trunc()
    lost = ~((wide >= low) & (wide <= high))
    array = wide.nan_to_num(nan=0.0).clamp(float(low), float(high)).numpy()
    # float64 does not hold the largest number of 64 bits, but the next one.
    top = array >= float(high)
    plain = np.where(top, 0.0, array)
    if bits == 64 and not signed:
        cut = plain.astype(np.uint64).astype(np.int64)
        values = np.where(top, np.int64(-1), cut)
    else:
        values = np.where(top, np.int64(high), plain.astype(np.int64))
    if not signed and bits < 64:
        sign = 1 << (bits - 1)
        values = (values ^ sign) - sign
    if bits == 64 or numbers.dtype == torch.float64:
        values = np.where(wide.isnan().numpy(), np.int64(-(1 << (bits - 1))), values)
    exact: NDArray[np.int64] = values.astype(np.int64)
    return exact, lost if bits < 32 else torch.zeros_like(lost)


def tensor_float_32(numbers: torch.Tensor) -> torch.Tensor:
    """What a tensor core keeps of f32: 10 bits of fraction, the others cut off."""
    return (numbers.view(torch.int32) & -(1 << 13)).view(torch.float32)
