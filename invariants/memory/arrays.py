"""Operations of TTIR that rearrange lanes, change widths, or move pointers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import gcd
from typing import TYPE_CHECKING, Any

import numpy as np

from invariants.memory import integers
from invariants.memory.frames import UndecidedError
from invariants.memory.lanes import (
    Array,
    Ints,
    Lanes,
    constant,
    full,
    of_array,
    rearranged,
    reshaped,
    unknown,
)
from invariants.memory.pointers import Pointer
from invariants.memory.slicing import opaque
from invariants.memory.ttir import Operation, Type

if TYPE_CHECKING:
    from invariants.memory.execute import Run
    from invariants.memory.frames import Frame
    from invariants.memory.regions import Memory, Region

Value = Lanes | Pointer
Step = Callable[["Run", "Frame"], None]
Maker = Callable[[Operation], Step]


def attribute(operation: Operation, name: str) -> int:
    """An integer attribute such as ``axis = 1 : i32``."""
    found = re.search(rf"{name} = (-?\d+)", operation.text)
    if found is None:
        raise ValueError(f"{operation.name} has no {name}: {operation.text}")
    return int(found.group(1))


def constant_of(operation: Operation, shape: tuple[int, ...] | None = None) -> Lanes:
    """`arith.constant` of integers."""
    kind = operation.types[-1] if operation.types else Type((), "i1")
    text = operation.text
    inner = re.search(r"dense<(.*)>", text)
    literal = inner.group(1) if inner else text.strip()
    wanted = kind.shape if shape is None else shape
    if literal.startswith("["):
        numbers = [
            {"true": 1, "false": 0}.get(each)
            if each in {"true", "false"}
            else int(each)
            for each in re.findall(r"-?\d+|true|false", literal)
        ]
        array = np.asarray(numbers, dtype=np.int64).reshape(1, *kind.shape)
        return of_array(array, kind.bits, kind.shape)
    value = {"true": 1, "false": 0}.get(literal)
    return constant(int(literal) if value is None else value, kind.bits, wanted)


def _constant(operation: Operation) -> Step:
    (result,) = operation.results
    kind = operation.types[-1] if operation.types else Type((), "i1")
    if not kind.integer:
        return lambda run, frame: run.unknown_results(operation, frame)
    value = constant_of(operation)
    return lambda _, frame: frame.values.__setitem__(result, value)


def _range(operation: Operation) -> Step:
    (result,) = operation.results
    start, end = attribute(operation, "start"), attribute(operation, "end")
    value = of_array(np.arange(start, end).reshape(1, -1), 32, (end - start,))
    return lambda _, frame: frame.values.__setitem__(result, value)


def _each(change: Callable[[Operation, Lanes], Lanes]) -> Maker:
    """An operation of one value, a pointer's offset alike."""

    def make(operation: Operation) -> Step:
        number = operation.operands[0]
        (result,) = operation.results

        def step(_: Run, frame: Frame) -> None:
            value = frame.get(number)
            if isinstance(value, Lanes):
                frame.values[result] = change(operation, value)
                return
            assert isinstance(value, Pointer)
            offset = change(operation, value.offset)
            which = value.which
            if which is not None:
                held = of_array(which, 64, value.shape)
                which = full(change(operation, held)).astype(np.int64)
            frame.values[result] = replace(value, offset=offset, which=which)

        return step

    return make


def _splat(operation: Operation, value: Lanes) -> Lanes:
    shape = operation.types[-1].shape
    ones = (1,) * len(shape)
    return rearranged(value, shape, lambda a: a.reshape(a.shape[0], *ones))


def _unsplat(_: Operation, value: Lanes) -> Lanes:
    return reshaped(value, ())


def expanded(value: Lanes, shape: tuple[int, ...]) -> Lanes:
    """The same value with more lanes along axes of size 1."""
    if len(value.shape) != len(shape):
        ones = (1,) * len(shape)
        return rearranged(value, shape, lambda a: a.reshape(a.shape[0], *ones))
    return replace(value, shape=shape)


def _broadcast(operation: Operation, value: Lanes) -> Lanes:
    return replace(value, shape=operation.types[-1].shape)


def _expand_dims(operation: Operation, value: Lanes) -> Lanes:
    axis = attribute(operation, "axis")
    shape = (*value.shape[:axis], 1, *value.shape[axis:])
    return rearranged(value, shape, lambda a: np.expand_dims(a, axis + 1))


def _reshape(operation: Operation, value: Lanes) -> Lanes:
    return reshaped(value, operation.types[-1].shape)


def _transpose(operation: Operation, value: Lanes) -> Lanes:
    found = re.search(r"order = array<i32: ([\d, ]+)>", operation.text)
    if found is None:
        raise ValueError(f"tt.trans has no order: {operation.text}")
    order = [int(each) for each in found.group(1).split(",")]
    shape = tuple(value.shape[axis] for axis in order)
    axes = [0, *(axis + 1 for axis in order)]
    return rearranged(value, shape, lambda a: np.transpose(a, axes))


def columns(value: Lanes, axis: int, start: int, end: int) -> Lanes:
    """Lanes `start` to `end` along an axis."""

    def of(array: Array) -> Array:
        if array.shape[axis + 1] == 1:
            return array
        chosen: Array = array.take(range(start, end), axis=axis + 1)
        return chosen

    shape = (*value.shape[:axis], end - start, *value.shape[axis + 1 :])
    return rearranged(value, shape, of)


def column(value: Lanes, axis: int, at: int) -> Lanes:
    """One lane along an axis, which is dropped."""

    def of(array: Array) -> Array:
        lane = 0 if array.shape[axis + 1] == 1 else at
        chosen: Array = array.take(lane, axis=axis + 1)
        return chosen

    return rearranged(value, (*value.shape[:axis], *value.shape[axis + 1 :]), of)


def concatenated(left: Lanes, right: Lanes, axis: int) -> Lanes:
    """Two values behind each other along an axis."""
    return _gathered([left, right], axis, new=False)


def stacked(values: list[Lanes], axis: int) -> Lanes:
    """Values behind each other along a new axis."""
    return _gathered(values, axis, new=True)


def _gathered(values: list[Lanes], axis: int, *, new: bool) -> Lanes:
    rows = max(_rows(each) for each in values)
    put: Any = np.stack if new else np.concatenate

    def whole(array: Array, shape: tuple[int, ...]) -> Array:
        return np.broadcast_to(array, (rows, *shape))

    actual = put([whole(each.dense(), each.shape) for each in values], axis=axis + 1)
    result = of_array(actual, values[0].bits, actual.shape[1:])
    if any(each.exact is not None for each in values):
        exact = put(
            [whole(each.exact_or_dense(), each.shape) for each in values], axis=axis + 1
        )
        wrap = next(each.wrap for each in values if each.wrap is not None)
        result = replace(result, exact=(exact,), wrap=wrap)
    if any(each.unknown is not None for each in values):
        none = np.zeros((1,) * (1 + len(values[0].shape)), dtype=np.bool_)
        strange = put(
            [
                whole(none if each.unknown is None else each.unknown, each.shape)
                for each in values
            ],
            axis=axis + 1,
        )
        result = replace(result, unknown=strange)
    return result


def _rows(value: Lanes) -> int:
    arrays = [*value.parts]
    if value.exact is not None:
        arrays.extend(value.exact)
    if value.unknown is not None:
        arrays.append(value.unknown)
    return max(int(array.shape[0]) for array in arrays)


def _numbers(change: Callable[[Operation, list[Lanes]], tuple[Lanes, ...]]) -> Maker:
    """An operation of numbers that gives one or more."""

    def make(operation: Operation) -> Step:
        def step(_: Run, frame: Frame) -> None:
            given = [frame.lanes(each) for each in operation.operands]
            results = change(operation, given)
            frame.values.update(zip(operation.results, results, strict=True))

        return step

    return make


def _join(_: Operation, given: list[Lanes]) -> tuple[Lanes, ...]:
    return (stacked(given, len(given[0].shape)),)


def _split(_: Operation, given: list[Lanes]) -> tuple[Lanes, ...]:
    last = len(given[0].shape) - 1
    return column(given[0], last, 0), column(given[0], last, 1)


def _cat(_: Operation, given: list[Lanes]) -> tuple[Lanes, ...]:
    return (concatenated(given[0], given[1], 0),)


def _gather(operation: Operation, given: list[Lanes]) -> tuple[Lanes, ...]:
    value, index = given
    axis = attribute(operation, "axis") + 1
    source, at = full(value), full(index).astype(np.int64)
    rows = max(source.shape[0], at.shape[0])
    source = np.broadcast_to(source, (rows, *source.shape[1:]))
    at = np.broadcast_to(at, (rows, *at.shape[1:]))
    size = value.shape[axis - 1]
    inside = (at >= 0) & (at < size)
    place = np.where(inside, at, 0)
    found = np.take_along_axis(source, place, axis=axis)
    strange = None if inside.all() else ~inside
    if value.unknown is not None or index.unknown is not None:
        strange = np.ones_like(inside)
    result = of_array(found, value.bits, index.shape, strange)
    if value.exact is None:
        return (result,)
    exact = np.broadcast_to(value.exact_or_dense(), source.shape)
    ideal = np.take_along_axis(exact, place, axis=axis)
    return (replace(result, exact=(ideal,), wrap=value.wrap),)


def _histogram(operation: Operation, given: list[Lanes]) -> tuple[Lanes, ...]:
    bins = operation.types[-1].shape[0]
    if any(each.unknown is not None for each in given):
        return (unknown(32, (bins,)),)
    values = full(given[0])
    counted = np.ones_like(values, dtype=np.bool_)
    if len(given) > 1:
        counted = counted & full(given[1])
    at = np.arange(bins).reshape(1, bins, 1)
    hits = (values[:, None, :] == at) & counted[:, None, :]
    return (of_array(hits.sum(axis=2), 32, (bins,)),)


def _select(operation: Operation) -> Step:
    condition, left, right = operation.operands
    (result,) = operation.results

    def step(run: Run, frame: Frame) -> None:
        chosen = frame.lanes(condition)
        a, b = frame.get(left), frame.get(right)
        if isinstance(a, Lanes) and isinstance(b, Lanes):
            frame.values[result] = integers.select(chosen, a, b)
            return
        if not isinstance(a, Pointer):
            raise UndecidedError(*run.depends("a pointer", left, operation))
        if not isinstance(b, Pointer):
            raise UndecidedError(*run.depends("a pointer", right, operation))
        unit = gcd(a.unit_bytes, b.unit_bytes)
        a, b = in_units(a, unit), in_units(b, unit)
        offset = integers.select(chosen, a.offset, b.offset)
        truth = chosen.dense()
        if chosen.shape != a.shape:
            truth = truth.reshape(truth.shape[0], *(1,) * len(a.shape))
        first = 0 if a.which is None else a.which
        second = 0 if b.which is None else b.which
        which = np.where(truth, first, second + len(a.regions))
        regions = (*a.regions, *b.regions)
        if all(each is regions[0] for each in regions):
            frame.values[result] = replace(
                a, offset=offset, regions=regions[:1], which=None
            )
        else:
            frame.values[result] = replace(
                a, offset=offset, regions=regions, which=which
            )

    return step


def _cast(change: Callable[[Operation, Lanes, int], Lanes]) -> Maker:
    def make(operation: Operation) -> Step:
        (number,) = operation.operands
        (result,) = operation.results
        bits = operation.types[-1].bits

        def step(_: Run, frame: Frame) -> None:
            frame.values[result] = change(operation, frame.lanes(number), bits)

        return step

    return make


def _bitcast(operation: Operation) -> Step:
    (number,) = operation.operands
    (result,) = operation.results
    kind = operation.types[-1]
    if opaque(operation):
        return lambda run, frame: run.unknown_results(operation, frame)

    def step(_: Run, frame: Frame) -> None:
        value = frame.get(number)
        if isinstance(value, Pointer):
            value = replace(
                value,
                element_bits=kind.bits,
                integer=kind.element.startswith("i"),
            )
        frame.values[result] = value

    return step


def in_units(pointer: Pointer, unit_bytes: int) -> Pointer:
    """The same pointer with its offset in other units."""
    if pointer.unit_bytes == unit_bytes:
        return pointer
    factor = constant(pointer.unit_bytes // unit_bytes, 64, pointer.shape)
    scaled = integers.multiply(_SCALING, pointer.offset, factor)
    return replace(pointer, offset=scaled, unit_bytes=unit_bytes)


_SCALING = Operation(name="arith.muli", results=(), operands=(), text="", types=())


def moved_pointer(operation: Operation, pointer: Pointer, by: Lanes) -> Pointer:
    """A pointer some elements on; the offset is sign-extended first."""
    size = pointer.element_bytes
    unit = gcd(size, pointer.unit_bytes)
    pointer = in_units(pointer, unit)
    wide = integers.extend_signed(by, 64)
    if size != unit:
        wide = integers.multiply(
            operation, wide, constant(size // unit, 64, wide.shape)
        )
    return replace(pointer, offset=integers.add(operation, pointer.offset, wide))


def _add_pointer(operation: Operation) -> Step:
    pointer, by = operation.operands
    (result,) = operation.results

    def step(run: Run, frame: Frame) -> None:
        base = frame.get(pointer)
        if not isinstance(base, Pointer):
            raise UndecidedError(*run.depends("a pointer", pointer, operation))
        frame.values[result] = moved_pointer(operation, base, frame.lanes(by))

    return step


def _to_pointer(operation: Operation) -> Step:
    (number,) = operation.operands
    (result,) = operation.results
    kind = operation.types[-1]

    def step(run: Run, frame: Frame) -> None:
        address = frame.lanes(number)
        values = address.dense().astype(np.int64)
        if address.shape:
            regions, which = run.memory.placed(values)
        else:
            regions, which = _found(run.memory, values)
        bases = np.array([0 if each is None else each.base for each in regions])
        offset = np.where(which == 0, 0, values - bases[which])
        shape = address.shape
        placed = replace(
            of_array(offset, 64, shape),
            unknown=address.unknown,
            wrap=address.wrap,
            exact=None
            if address.exact is None
            else (address.exact_or_dense() - bases[which],),
        )
        single = len(regions) == 2 and bool((which == 1).all())
        frame.values[result] = Pointer(
            regions=tuple(regions[1:] if single else regions),
            which=None if single else which,
            offset=placed,
            unit_bytes=1,
            element_bits=kind.bits,
            integer=kind.element.startswith("i"),
        )

    return step


def _found(memory: Memory, values: Ints) -> tuple[tuple[Region | None, ...], Ints]:
    """Regions that single addresses name, None first, and which each is in."""
    regions: list[Region | None] = [None]
    which = np.zeros(values.shape, dtype=np.int64)
    for each, region in memory.at(int(each) for each in np.unique(values)).items():
        if region not in regions:
            regions.append(region)
        which[values == each] = regions.index(region)
    return tuple(regions), which


def _to_integer(operation: Operation) -> Step:
    (number,) = operation.operands
    (result,) = operation.results

    def step(run: Run, frame: Frame) -> None:
        pointer = frame.get(number)
        if not isinstance(pointer, Pointer):
            raise UndecidedError(*run.depends("a pointer", number, operation))
        region = pointer.regions[0]
        if pointer.which is not None or region is None:
            run.unknown_results(operation, frame)
            return
        offset = in_units(pointer, 1).offset
        base = constant(region.base, 64, offset.shape)
        frame.values[result] = integers.add(operation, offset, base)

    return step


OPERATIONS: Mapping[str, Maker] = {
    "arith.constant": _constant,
    "tt.make_range": _range,
    "tt.splat": _each(_splat),
    "tt.unsplat": _each(_unsplat),
    "tt.broadcast": _each(_broadcast),
    "tt.expand_dims": _each(_expand_dims),
    "tt.reshape": _each(_reshape),
    "tt.trans": _each(_transpose),
    "tt.join": _numbers(_join),
    "tt.split": _numbers(_split),
    "tt.cat": _numbers(_cat),
    "tt.gather": _numbers(_gather),
    "tt.histogram": _numbers(_histogram),
    "arith.select": _select,
    "arith.extsi": _cast(lambda _, value, bits: integers.extend_signed(value, bits)),
    "arith.extui": _cast(lambda _, value, bits: integers.extend_unsigned(value, bits)),
    "arith.trunci": _cast(integers.truncate),
    "arith.index_cast": _cast(lambda _, value, bits: replace(value, bits=bits)),
    "math.absi": _numbers(lambda _, given: (integers.absolute(given[0]),)),
    "tt.bitcast": _bitcast,
    "arith.bitcast": _bitcast,
    "tt.addptr": _add_pointer,
    "tt.int_to_ptr": _to_pointer,
    "tt.ptr_to_int": _to_integer,
}
