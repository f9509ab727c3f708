"""Triton's intermediate representation, read from its text.

The text is the same for Triton 3.6 to 3.9 but for details that are read here; the
bindings differ more, and give neither constants nor locations. SSA names repeat in
sibling regions, so every value gets a number of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property


class TtirError(ValueError):
    """Text that this reader does not understand; shows the line."""


@dataclass(frozen=True)
class Type:
    """A scalar or tensor type.

    Attributes:
        shape: Of a tensor; () for a scalar.
        element: `i32`, `f32`, … of integers and floats; of a pointer its pointee.
        pointer: Whether the elements are pointers to `element`.
    """

    shape: tuple[int, ...]
    element: str
    pointer: bool = False

    @cached_property
    def bits(self) -> int:
        """Width of an element; of a pointer, of what it points to."""
        if self.element == "index":
            return 64
        digits = re.search(r"\d+", self.element)
        return int(digits.group()) if digits else 64

    @cached_property
    def integer(self) -> bool:
        """Whether elements are integers, predicates included."""
        return not self.pointer and bool(re.fullmatch(r"i\d+|index", self.element))

    @cached_property
    def floating(self) -> bool:
        """Whether elements are floating-point numbers."""
        return not self.pointer and bool(re.fullmatch(r"b?f\d+\w*", self.element))


@dataclass(frozen=True)
class Frame:
    """A place in a source file; `line` counts from 1."""

    file: str
    line: int
    column: int


@dataclass(eq=False)
class Operation:
    """One operation.

    Attributes:
        results: Numbers of the values that it defines.
        operands: Numbers of the values that it uses; of a loop, bounds first.
        text: What stands between its name and its types: attributes, predicates.
        types: Types as written after the last colon, in order; results last.
        successors: Of a branch, (block, numbers of the block's arguments).
        location: Key into `Function.frames`.
        names: Names of its results in the source, "" where the compiler made one up.
    """

    name: str
    results: tuple[int, ...]
    operands: tuple[int, ...]
    text: str
    types: tuple[Type, ...]
    regions: list[list[Block]] = field(default_factory=list)
    successors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    location: str = ""
    names: tuple[str, ...] = ()


@dataclass(eq=False)
class Block:
    """Operations in order, and the values that it is entered with."""

    label: str
    arguments: tuple[int, ...]
    argument_types: tuple[Type | None, ...] = ()
    operations: list[Operation] = field(default_factory=list)


@dataclass(eq=False)
class Function:
    """A kernel, or a device function that was not inlined.

    Attributes:
        parameters: Numbers of its arguments.
        names: By number of a value, its name in the source.
    """

    name: str
    parameters: tuple[int, ...]
    parameter_types: tuple[Type, ...]
    blocks: list[Block]
    names: dict[int, str]


@dataclass(eq=False)
class Module:
    """What one kernel was lowered to; the first function is the kernel."""

    functions: dict[str, Function]
    locations: dict[str, str]

    @property
    def kernel(self) -> Function:
        """The function that is launched."""
        return next(iter(self.functions.values()))

    def frames(self, location: str) -> tuple[Frame, ...]:
        """Source frames of a location, innermost first; () when unknown."""
        return tuple(_frames(self.locations, location))


_ID = r"%[A-Za-z0-9_$.\-]+(?:#\d+)?"
_VALUE = re.compile(_ID)
_RESULTS = re.compile(rf"((?:{_ID})(?::\d+)?(?:, (?:{_ID})(?::\d+)?)*) = ")
_NAME = re.compile(r'"?([a-z][\w]*\.[\w.]+)"?')
_LOCATION = re.compile(r" ?loc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_TRAILING = re.compile(r"loc\(([^()]*|(?:[^()]|\([^()]*\))*)\)$")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_TENSOR = re.compile(r"tensor<((?:\d+x)*)(.*)>$")
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):(\d+)')
_ALIAS = re.compile(r"#loc\d*")


@cache
def parse_type(text: str) -> Type:
    """Read `i32`, `tensor<16x!tt.ptr<bf16>>`, `!tt.ptr<f32>` and the like."""
    text = text.strip()
    shape: tuple[int, ...] = ()
    tensor = _TENSOR.match(text)
    if tensor and text.startswith("tensor<"):
        shape = tuple(int(size) for size in tensor.group(1).split("x") if size)
        text = tensor.group(2).split(", ")[0]
    if text.startswith("!tt.ptr<"):
        inner = text[len("!tt.ptr<") : -1].split(", ")[0]
        return Type(shape, inner, pointer=True)
    return Type(shape, text)


def _split(text: str) -> list[str]:
    """Split at commas outside of all brackets."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char in "<([{":
            depth += 1
        elif char in ">)]}" and text[at - 1 : at + 1] != "->":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _types(text: str) -> tuple[Type, ...]:
    """All types of a signature: operands' first, then results'."""
    found: list[Type] = []
    for side in re.split(r" -> | to ", text):
        bare = side.strip()
        if bare.startswith("(") and bare.endswith(")"):
            bare = bare[1:-1]
        found += [
            parse_type(each) for part in _split(bare) for each in part.split(" * ")
        ]
    return tuple(found)


def _signature(rest: str) -> tuple[str, str]:
    """Cut an operation's text at the colon before its types."""
    depth = 0
    cut = -1
    for at, char in enumerate(rest):
        if char in "<([{":
            depth += 1
        elif char in ">)]}" and rest[at - 1 : at + 1] != "->":
            depth -= 1
        elif char == ":" and depth == 0 and rest[at - 1 : at + 2] == " : ":
            cut = at
    return (rest, "") if cut < 0 else (rest[: cut - 1], rest[cut + 2 :])


class _Reader:
    """Reads a module line by line; one scope of names per region."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._at = 0
        self._count = 0
        self._source_names: dict[int, str] = {}

    def module(self) -> Module:
        locations: dict[str, str] = {}
        functions: dict[str, Function] = {}
        while self._at < len(self._lines):
            line = self._lines[self._at].strip()
            if line.startswith("#loc"):
                name, _, content = line.partition(" = loc(")
                locations[name] = content[:-1]
            elif line.startswith("tt.func"):
                function = self._function(line)
                functions[function.name] = function
            self._at += 1
        if not functions:
            raise TtirError("no tt.func in this text")
        return Module(functions=functions, locations=locations)

    def _number(self, name: str, scope: dict[str, int]) -> int:
        self._count += 1
        scope[name] = self._count
        plain = re.sub(r"(_\d+)?(#\d+)?$", "", name[1:])
        made_up = re.fullmatch(r"\d*|c-?\d+.*|cst|true|false|arg\d+", plain)
        self._source_names[self._count] = "" if made_up else plain
        return self._count

    def _function(self, line: str) -> Function:
        head = re.match(r'tt\.func (?:public |private )?@("[^"]+"|[^\s(]+)\(', line)
        if head is None:
            raise TtirError(f"not a function: {line[:200]}")
        self._source_names = {}
        scope: dict[str, int] = {}
        bare = _LOCATION.sub("", line)
        start = bare.index("(") + 1
        depth, end = 1, start
        while depth:
            depth += {"(": 1, ")": -1}.get(bare[end], 0)
            end += 1
        numbers, kinds = [], []
        for parameter in _split(bare[start : end - 1]):
            name, _, kind = parameter.partition(": ")
            numbers.append(self._number(name, scope))
            kinds.append(parse_type(re.sub(r" \{.*\}$", "", kind)))
        self._at += 1
        blocks = self._region(scope, ())
        return Function(
            name=head.group(1).strip('"'),
            parameters=tuple(numbers),
            parameter_types=tuple(kinds),
            blocks=blocks,
            names=self._source_names,
        )

    def _region(self, outer: dict[str, int], first: tuple[int, ...]) -> list[Block]:
        """Read up to the line that closes the region, and stay on that line."""
        scope = dict(outer)
        block = Block(label="^bb0", arguments=first)
        blocks = [block]
        pending: list[tuple[Operation, list[str], list[tuple[str, list[str]]]]] = []
        while True:
            if self._at >= len(self._lines):
                raise TtirError("the text ends within a region")
            raw = self._lines[self._at].strip()
            if raw.startswith("}"):
                break
            if not raw or raw.startswith(("#", "//")):
                self._at += 1
                continue
            if raw.startswith("^"):
                block = self._block(raw, scope)
                fresh = len(blocks) == 1 and not blocks[0].operations
                if fresh and not blocks[0].arguments:
                    blocks = []
                blocks.append(block)
                self._at += 1
                continue
            operation, names, branches = self._operation(raw, scope)
            block.operations.append(operation)
            pending.append((operation, names, branches))
            self._at += 1
        # A block may use what one that comes later in the text defines.
        for operation, names, branches in pending:
            if not operation.operands:
                operation.operands = tuple(_found(scope, name) for name in names)
            operation.successors = tuple(
                (label, tuple(_found(scope, name) for name in given))
                for label, given in branches
            )
        return blocks

    def _block(self, raw: str, scope: dict[str, int]) -> Block:
        bare = _LOCATION.sub("", raw.split("//", maxsplit=1)[0]).strip()
        head = re.match(r"(\^\w+)(?:\((.*)\))?:", bare)
        if head is None:
            raise TtirError(f"not a block: {raw[:200]}")
        numbers, kinds = [], []
        for argument in _split(head.group(2) or ""):
            name, _, kind = argument.partition(": ")
            numbers.append(self._number(name, scope))
            kinds.append(parse_type(kind))
        return Block(
            label=head.group(1),
            arguments=tuple(numbers),
            argument_types=tuple(kinds),
        )

    def _operation(
        self, raw: str, scope: dict[str, int]
    ) -> tuple[Operation, list[str], list[tuple[str, list[str]]]]:
        location = _location(raw)
        line = _LOCATION.sub("", raw)
        results: list[str] = []
        defined = _RESULTS.match(line)
        if defined:
            for each in defined.group(1).split(", "):
                name, _, many = each.partition(":")
                results += [f"{name}#{i}" for i in range(int(many))] if many else [name]
            line = line[defined.end() :]
        head = _NAME.match(line)
        if head is None:
            raise TtirError(f"not an operation: {raw[:200]}")
        operation = Operation(
            name=head.group(1),
            results=(),
            operands=(),
            text=line[head.end() :].strip(),
            types=(),
            location=location,
        )
        names: list[str] = []
        branches: list[tuple[str, list[str]]] = []
        if line.endswith("{"):
            names = self._with_regions(operation, scope)
        elif operation.name in {"cf.br", "cf.cond_br"}:
            condition = _VALUE.match(operation.text)
            names = [condition.group()] if condition else []
            for label, given in re.findall(r"(\^\w+)(?:\(([^)]*)\))?", operation.text):
                branches.append((label, _VALUE.findall(given.split(" : ")[0])))
        else:
            operation.text, signature = _signature(operation.text)
            names = _VALUE.findall(_STRING.sub("", operation.text))
            operation.types = _types(signature)
        operation.results = tuple(self._number(name, scope) for name in results)
        operation.names = tuple(self._source_names[n] for n in operation.results)
        return operation, names, branches

    def _with_regions(self, operation: Operation, scope: dict[str, int]) -> list[str]:
        text = operation.text[:-1].strip()
        inner = dict(scope)
        first: tuple[int, ...] = ()
        names: list[str]
        if operation.name == "scf.for":
            head = re.match(
                rf"(unsigned )?({_ID}) = ({_ID}) to ({_ID}) step ({_ID})"
                rf"(?: iter_args\((.*)\) -> \(.*\))?\s*(?:: (\w+))?$",
                text,
            )
            if head is None:
                raise TtirError(f"not a loop: {text[:200]}")
            carried = re.findall(rf"({_ID}) = ({_ID})", head.group(6) or "")
            names = [head.group(i) for i in (3, 4, 5)] + [start for _, start in carried]
            inside = [head.group(2), *(name for name, _ in carried)]
            first = tuple(self._number(name, inner) for name in inside)
            operation.types = (parse_type(head.group(7) or "i32"),)
        elif operation.name == "scf.while":
            head_text = text.split(" : ")[0]
            carried = re.findall(rf"({_ID}) = ({_ID})", head_text)
            names = [start for _, start in carried]
            first = tuple(self._number(name, inner) for name, _ in carried)
        elif not (operation.name == "scf.if" or text.endswith("(")):
            raise TtirError(f"{operation.name} has regions and is not known")
        else:
            names = _VALUE.findall(text.split(" -> ")[0])
            if operation.name == "scf.if" and " -> " in text:
                operation.types = _types(text.split(" -> ")[1])
        # Uses are resolved here, for the names of sibling regions are not in scope.
        operation.operands = tuple(_found(scope, name) for name in names)
        self._at += 1
        operation.regions.append(self._region(inner, first))
        while True:
            tail = self._lines[self._at].strip()
            if not re.match(r"\} else|\} do|\}, \{", tail):
                break
            self._at += 1
            operation.regions.append(self._region(scope, ()))
        operation.location = _location(tail) or operation.location
        if text.endswith("("):
            closing = _LOCATION.sub("", tail).lstrip("})")
            _, signature = _signature(closing)
            operation.types = _types(signature)
        return names


def _found(scope: dict[str, int], name: str) -> int:
    if name not in scope:
        raise TtirError(f"{name} is used and not defined")
    return scope[name]


def _location(raw: str) -> str:
    found = _TRAILING.search(raw)
    return found.group(1) if found else ""


def _frames(locations: dict[str, str], text: str) -> Iterator[Frame]:
    content = locations.get(text, text) if text.startswith("#") else text
    content = re.sub(r'^"[^"]*"\((.*)\)$', r"\1", content)
    if content.startswith("#"):
        yield from _frames(locations, content)
        return
    if content.startswith("callsite("):
        callee, _, caller = content[len("callsite(") : -1].partition(" at ")
        yield from _frames(locations, callee)
        yield from _frames(locations, caller)
        return
    if content.startswith("fused"):
        for alias in _ALIAS.findall(content)[:1]:
            yield from _frames(locations, alias)
        return
    place = _FILE.match(content)
    if place:
        yield Frame(place.group(1), int(place.group(2)), int(place.group(3)))


def parse(text: str) -> Module:
    """Read the text of a module, with or without locations.

    Raises:
        TtirError: On text that is not TTIR, or TTIR of a form not met before.
    """
    return _Reader(text).module()
