"""How value mode runs the operations that make, take or rearrange floats.

What such an operation is, its types say: one of the same name that has integers only
runs as in address mode. An operation that is not known here makes the launch undecided,
by name, and its results unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch

from invariants.memory import (
    arrays,
    float_folds,
    float_memory,
    float_types,
    integers,
    lanes,
)
from invariants.memory.float_functions import (
    COMPARISONS,
    DEVICE_FUNCTIONS,
    DEVICE_PREDICATES,
    FUNCTIONS,
    Function,
    clamped,
    device_function,
)
from invariants.memory.float_lanes import (
    STRUCTURAL,
    full,
    gathered,
    joined,
    known_bits,
    lanes_of,
    selected,
    split,
)
from invariants.memory.float_types import UnknownElementError
from invariants.memory.floats import Floats, either
from invariants.memory.frames import UndecidedError
from invariants.memory.lanes import unknown
from invariants.memory.ttir import Operation, Type, parse_type

if TYPE_CHECKING:
    from invariants.memory.execute import Run
    from invariants.memory.frames import Frame, Value

Step = Callable[["Run", "Frame"], None]
Maker = Callable[[Operation], Step | None]


def made(operation: Operation) -> Step | None:
    """How to run an operation in value mode; None when address mode's way is right."""
    try:
        return _made(operation)
    except UnknownElementError as error:
        return not_computed(operation, str(error))


def not_computed(operation: Operation, reason: str = "") -> Step:
    """A step that leaves the launch undecided, and what the operation gives unknown."""
    said = reason or f"{operation.name} is not computed"
    kinds = operation.types[-len(operation.results) :] if operation.results else ()

    def step(run: Run, frame: Frame) -> None:
        run.doubt(said, operation)
        for result, kind in zip(operation.results, kinds, strict=True):
            if result in run.kernel.slice.values:
                frame.values[result] = nothing(kind, operation)

    return step


def nothing(kind: Type, operation: Operation) -> Value:
    """A value of a type of which nothing is known.

    Raises:
        UndecidedError: For a pointer, without which no access can be judged.
    """
    if kind.floating and kind.element in float_types.DTYPES:
        return float_types.not_known(kind.element, kind.shape)
    if kind.integer:
        return unknown(kind.bits, kind.shape)
    raise UndecidedError(f"{operation.name} gives {kind.element}", operation)


def _made(operation: Operation) -> Step | None:
    maker = _BY_NAME.get(operation.name)
    if maker is not None:
        return maker(operation)
    if operation.name in FUNCTIONS:
        return _elementwise(operation, FUNCTIONS[operation.name])
    if operation.types and operation.types[-1].floating:
        by_type = _OF_FLOATS.get(operation.name)
        return None if by_type is None else by_type(operation)
    return None


def _elementwise(operation: Operation, compute: Function) -> Step:
    """A function of numbers of one dtype, lane by lane."""
    numbers = operation.operands
    (result,) = operation.results
    element = operation.types[-1].element
    if float_types.dtype_of(element).itemsize == 1:
        # torch has no arithmetic of 8 bits.
        inner = compute

        def compute(*given: torch.Tensor) -> torch.Tensor:
            return float_types.converted(
                inner(*(each.to(torch.float32) for each in given)), element
            )

    if len(numbers) == 2:
        left, right = numbers

        def binary(_: Run, frame: Frame) -> None:
            a, b = frame.floats(left), frame.floats(right)
            frame.values[result] = Floats(
                a.shape,
                element,
                compute(a.array, b.array),
                either(a.unknown, b.unknown),
            )

        return binary

    def step(_: Run, frame: Frame) -> None:
        given = [frame.floats(each) for each in numbers]
        frame.values[result] = Floats(
            given[0].shape,
            element,
            compute(*(each.array for each in given)),
            either(*(each.unknown for each in given)),
        )

    return step


def _clamp(operation: Operation) -> Step:
    keeps_nan = "propagateNan = all" in operation.text
    return _elementwise(operation, partial(clamped, keeps_nan=keeps_nan))


def _compare(operation: Operation) -> Step:
    left, right = operation.operands
    (result,) = operation.results
    relation = COMPARISONS[operation.text.split(",")[0].split()[0]]

    def step(_: Run, frame: Frame) -> None:
        a, b = frame.floats(left), frame.floats(right)
        truth = relation(a.array, b.array)
        frame.values[result] = lanes_of(
            truth.numpy(), 1, a.shape, either(a.unknown, b.unknown)
        )

    return step


def _convert(operation: Operation) -> Step:
    (number,) = operation.operands
    (result,) = operation.results
    element = operation.types[-1].element
    # Unless it says otherwise, a conversion rounds to the nearest number.
    cut = "rounding = rtz" in operation.text
    change = float_types.toward_zero if cut else float_types.converted
    float_types.dtype_of(element)

    def step(_: Run, frame: Frame) -> None:
        value = frame.floats(number)
        frame.values[result] = Floats(
            value.shape, element, change(value.array, element), value.unknown
        )

    return step


def _from_integers(operation: Operation) -> Step:
    (number,) = operation.operands
    (result,) = operation.results
    element = operation.types[-1].element
    signed = operation.name == "arith.sitofp"
    float_types.dtype_of(element)

    def step(_: Run, frame: Frame) -> None:
        value = frame.lanes(number)
        array = float_types.from_integers(value, element, signed=signed)
        doubt = value.unknown
        frame.values[result] = Floats(
            value.shape,
            element,
            array,
            None if doubt is None else float_types.tensor_of(doubt),
        )

    return step


def _to_integers(operation: Operation) -> Step:
    (number,) = operation.operands
    (result,) = operation.results
    bits = operation.types[-1].bits
    signed = operation.name == "arith.fptosi"

    def step(_: Run, frame: Frame) -> None:
        value = frame.floats(number)
        array, lost = float_types.to_integers(value.array, bits, signed=signed)
        doubt = either(value.unknown, lost if bool(lost.any()) else None)
        frame.values[result] = lanes_of(array, bits, value.shape, doubt)

    return step


def _bitcast(operation: Operation) -> Step | None:
    source, target = operation.types[0], operation.types[-1]
    (number,) = operation.operands
    (result,) = operation.results
    if target.floating:
        float_types.dtype_of(target.element)

        def to_floats(_: Run, frame: Frame) -> None:
            value = frame.get(number)
            if isinstance(value, Floats):
                array = value.array.view(float_types.dtype_of(target.element))
                frame.values[result] = replace(
                    value, element=target.element, array=array
                )
                return
            frame.values[result] = known_bits(frame.lanes(number), target.element)

        return to_floats
    if not source.floating:
        return None

    def to_integers(_: Run, frame: Frame) -> None:
        value = frame.floats(number)
        bits = float_types.bits_of(value.array)
        frame.values[result] = lanes_of(bits, target.bits, value.shape, value.unknown)

    return to_integers


def _constant(operation: Operation) -> Step:
    (result,) = operation.results
    value = float_types.constant_of(operation)
    return lambda _, frame: frame.values.__setitem__(result, value)


def _poison(operation: Operation) -> Step:
    (result,) = operation.results
    kind = operation.types[-1]
    return lambda _, frame: frame.values.__setitem__(result, nothing(kind, operation))


def _select(operation: Operation) -> Step:
    condition, left, right = operation.operands
    (result,) = operation.results

    def step(_: Run, frame: Frame) -> None:
        frame.values[result] = selected(
            frame.lanes(condition), frame.floats(left), frame.floats(right)
        )

    return step


def _structural(operation: Operation) -> Step:
    """The same lanes in another arrangement."""
    (number,) = operation.operands
    (result,) = operation.results
    change = STRUCTURAL[operation.name]

    def step(_: Run, frame: Frame) -> None:
        frame.values[result] = change(operation, frame.floats(number))

    return step


def _join(operation: Operation) -> Step:
    left, right = operation.operands
    (result,) = operation.results
    new = operation.name == "tt.join"

    def step(_: Run, frame: Frame) -> None:
        given = [frame.floats(left), frame.floats(right)]
        axis = len(given[0].shape) if new else 0
        frame.values[result] = joined(given, axis, new=new)

    return step


def _split(operation: Operation) -> Step:
    (number,) = operation.operands

    def step(_: Run, frame: Frame) -> None:
        both = split(frame.floats(number))
        frame.values.update(zip(operation.results, both, strict=True))

    return step


def _gather(operation: Operation) -> Step:
    source, index = operation.operands
    (result,) = operation.results
    axis = arrays.attribute(operation, "axis")

    def step(_: Run, frame: Frame) -> None:
        frame.values[result] = gathered(frame.floats(source), frame.lanes(index), axis)

    return step


def _dot(operation: Operation) -> Step:
    left, right, start = operation.operands
    (result,) = operation.results
    kind, source = operation.types[-1], operation.types[0]
    if kind.integer:
        return _integer_dot(operation)
    # Products are added up in f32, or in f64 when the operands are; unless told to be
    # exact, f32 operands lose bits on the way to a tensor core.
    wide = torch.float64 if source.element == "f64" else torch.float32
    short = source.element == "f32" and "inputPrecision = tf32 " in f"{operation.text} "
    element = kind.element
    float_types.dtype_of(element)

    def step(_: Run, frame: Frame) -> None:
        a, b, c = frame.floats(left), frame.floats(right), frame.floats(start)
        x, y = full(a).to(wide), full(b).to(wide)
        if short:
            x, y = float_types.tensor_float_32(x), float_types.tensor_float_32(y)
        total = torch.matmul(x, y) + c.array.to(wide)
        doubt = c.unknown
        if a.unknown is not None:
            doubt = either(doubt, a.unknown.any(dim=-1, keepdim=True))
        if b.unknown is not None:
            doubt = either(doubt, b.unknown.any(dim=-2, keepdim=True))
        frame.values[result] = Floats(
            c.shape, element, float_types.converted(total, element), doubt
        )

    return step


def _integer_dot(operation: Operation) -> Step:
    left, right, start = operation.operands
    (result,) = operation.results
    bits = operation.types[-1].bits

    def step(_: Run, frame: Frame) -> None:
        a, b, c = (frame.lanes(each) for each in (left, right, start))
        if any(each.unknown is not None for each in (a, b, c)):
            frame.values[result] = unknown(bits, c.shape)
            return
        product = np.matmul(lanes.full(a), lanes.full(b)) + c.dense()
        frame.values[result] = lanes.of_array(
            integers.wrapped(product, bits), bits, c.shape
        )

    return step


def _extern(operation: Operation) -> Step:
    """A function of CUDA's libdevice."""
    found = re.search(r'symbol = "([^"]*)"', operation.text)
    symbol = found.group(1) if found else ""
    floating = all(kind.floating for kind in operation.types[:-1])
    function = device_function(symbol, DEVICE_FUNCTIONS)
    if function is not None and floating and operation.types[-1].floating:
        return _elementwise(operation, function)
    asked = device_function(symbol, DEVICE_PREDICATES)
    if asked is None or not floating or not operation.types[-1].integer:
        return not_computed(operation, f"{symbol or operation.name} is not computed")
    (number,) = operation.operands
    (result,) = operation.results
    bits = operation.types[-1].bits

    def step(_: Run, frame: Frame) -> None:
        value = frame.floats(number)
        truth = asked(value.array).numpy()
        frame.values[result] = lanes_of(truth, bits, value.shape, value.unknown)

    return step


def _inline(operation: Operation) -> Step:
    return not_computed(operation, "inline assembly is not computed")


def _load(operation: Operation) -> Step | None:
    if parse_type(operation.types[0].element).integer:
        return None
    return partial(_called, float_memory.load, operation)


def _store(operation: Operation) -> Step:
    return partial(_called, float_memory.store, operation)


def _atomic(operation: Operation) -> Step | None:
    if operation.types[-1].integer:
        return None
    return partial(_called, float_memory.atomic, operation)


def _fold(operation: Operation) -> Step | None:
    if all(kind.integer for kind in operation.types):
        return None
    fold = float_folds.reduce if operation.name == "tt.reduce" else float_folds.scan
    return partial(_called, fold, operation)


def _called(
    function: Callable[[Run, Operation, Frame], None],
    operation: Operation,
    run: Run,
    frame: Frame,
) -> None:
    function(run, operation, frame)


# Operations that concern floats by their name, or decide by their types.
_BY_NAME: Mapping[str, Maker] = MappingProxyType(
    {
        "arith.cmpf": _compare,
        "arith.truncf": _convert,
        "arith.extf": _convert,
        "tt.fp_to_fp": _convert,
        "arith.sitofp": _from_integers,
        "arith.uitofp": _from_integers,
        "arith.fptosi": _to_integers,
        "arith.fptoui": _to_integers,
        "arith.bitcast": _bitcast,
        "tt.bitcast": _bitcast,
        "tt.clampf": _clamp,
        "tt.dot": _dot,
        "tt.extern_elementwise": _extern,
        "tt.elementwise_inline_asm": _inline,
        "tt.load": _load,
        "tt.store": _store,
        "tt.atomic_rmw": _atomic,
        "tt.atomic_cas": _atomic,
        "tt.reduce": _fold,
        "tt.scan": _fold,
    }
)
# Operations that give floats, where address mode's are for integers and pointers.
_OF_FLOATS: Mapping[str, Maker] = MappingProxyType(
    {
        "arith.constant": _constant,
        "ub.poison": _poison,
        "arith.select": _select,
        "tt.join": _join,
        "tt.cat": _join,
        "tt.split": _split,
        "tt.gather": _gather,
        **dict.fromkeys(STRUCTURAL, _structural),
    }
)
