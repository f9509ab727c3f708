"""Why a value is not known: the nearest operation before it that nobody computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from invariants.memory.slicing import operations_of
from invariants.memory.ttir import Block, Function, Module, Operation

# What a value is computed by, and of what; None for an argument of a block.
Origin = tuple[Operation | None, tuple[int, ...]]


def origins_of(module: Module) -> dict[int, list[Origin]]:
    """Where each value of a module comes from, by its number."""
    found: dict[int, list[Origin]] = {}
    for function in module.functions.values():
        for operation in operations_of(function.blocks):
            for number, origin in _origins(operation, function, module):
                found.setdefault(number, []).append(origin)
    return found


def cause_of(
    origins: dict[int, list[Origin]],
    number: int,
    computed: Callable[[Operation], bool],
) -> Operation | None:
    """The nearest operation that a value depends on and that is not computed."""
    seen = {number}
    queue = [number]
    for each in queue:
        for operation, before in origins.get(each, ()):
            if operation is not None and not computed(operation):
                return operation
            queue += [n for n in dict.fromkeys(before) if n not in seen]
            seen.update(before)
    return None


def _origins(
    operation: Operation, function: Function, module: Module
) -> Iterator[tuple[int, Origin]]:
    match operation.name:
        case "scf.if":
            return _of_if(operation)
        case "scf.for":
            return _of_for(operation)
        case "scf.while":
            return _of_while(operation)
        case "tt.call":
            return _of_call(operation, module)
        case "cf.br" | "cf.cond_br":
            return _of_branch(operation, function)
    return _of_others(operation)


def _of_if(operation: Operation) -> Iterator[tuple[int, Origin]]:
    for at, result in enumerate(operation.results):
        ends = [n for region in operation.regions for n in _at(_end(region), at)]
        yield result, (None, (*operation.operands, *ends))


def _of_for(operation: Operation) -> Iterator[tuple[int, Origin]]:
    counter, *arguments = operation.regions[0][0].arguments
    bounds, starts = operation.operands[:3], operation.operands[3:]
    yield counter, (None, bounds)
    ends = _end(operation.regions[0])
    for at, (argument, result) in enumerate(
        zip(arguments, operation.results, strict=True)
    ):
        for number in (argument, result):
            yield number, (None, (starts[at], *_at(ends, at), *bounds))


def _of_while(operation: Operation) -> Iterator[tuple[int, Origin]]:
    before, after = operation.regions
    condition, *passed = _end(before)
    for at, result in enumerate(operation.results):
        yield result, (None, (*_at(passed, at), condition))
    for at, argument in enumerate(after[0].arguments):
        yield argument, (None, _at(passed, at))
    for at, argument in enumerate(before[0].arguments):
        yield argument, (None, (*_at(operation.operands, at), *_at(_end(after), at)))


def _of_call(operation: Operation, module: Module) -> Iterator[tuple[int, Origin]]:
    name = operation.text.split("(")[0].lstrip("@").strip('"')
    callee = module.functions[name]
    for parameter, given in zip(callee.parameters, operation.operands, strict=True):
        yield parameter, (None, (given,))
    for block in callee.blocks:
        if block.operations[-1].name == "tt.return":
            for at, result in enumerate(operation.results):
                yield result, (None, _at(_end([block]), at))


def _of_branch(
    operation: Operation, function: Function
) -> Iterator[tuple[int, Origin]]:
    blocks = {block.label: block for block in function.blocks}
    for label, given in operation.successors:
        for argument, source in zip(blocks[label].arguments, given, strict=True):
            yield argument, (None, (source,))


def _of_others(operation: Operation) -> Iterator[tuple[int, Origin]]:
    """Of what computes, reductions with what is in their regions included."""
    inner = tuple(n for region in operation.regions for n in _end(region))
    for result in operation.results:
        yield result, (operation, (*operation.operands, *inner))
    for region in operation.regions:
        for argument in region[0].arguments:
            yield argument, (None, operation.operands)


def _end(region: list[Block]) -> tuple[int, ...]:
    """What the last operation of a region hands on."""
    return region[-1].operations[-1].operands if region[-1].operations else ()


def _at(numbers: tuple[int, ...] | list[int], at: int) -> tuple[int, ...]:
    return tuple(numbers[at : at + 1])
