"""Draws integer expressions of Triton's language, as text, for a differential test.

What two right sides may answer differently is kept out: division by zero, shifts by
the width or more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st

DrawFn = st.DrawFn

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
WIDTHS = {name: int(name.lstrip("uint")) for name in (*SIGNED, *UNSIGNED)}


@dataclass(frozen=True)
class Variable:
    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(eq=False)
class Expressions:
    """Writes expressions; knows which variables are in scope."""

    draw: DrawFn
    lines: list[str] = field(default_factory=list)
    scope: list[Variable] = field(default_factory=list)
    indent: int = 1
    names: int = 0

    def one_of(self, *choices: str) -> str:
        return self.draw(st.sampled_from(choices))

    def upto(self, most: int) -> int:
        return self.draw(st.integers(0, most))

    def say(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def fresh(self, prefix: str = "v") -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def define(self, text: str, dtype: str, shape: tuple[int, ...]) -> Variable:
        made = Variable(self.fresh(), dtype, shape)
        self.say(f"{made.name} = ({text}).to(tl.{dtype})")
        self.scope.append(made)
        return made

    def any_dtype(self) -> str:
        return self.one_of("int32", "int64", "int32", "int16", "int8", *UNSIGNED)

    # --- expressions ------------------------------------------------------------------

    def leaf(self, shape: tuple[int, ...]) -> str:
        fitting = [each for each in self.scope if each.shape == shape]
        if fitting:
            return self.draw(st.sampled_from(fitting)).name
        return self.reshaped_leaf(shape)

    def reshaped_leaf(self, shape: tuple[int, ...]) -> str:
        """A value of that shape from an index and a scalar."""
        scalar = self.leaf(())
        index = index_of(shape)
        return f"({index} + {scalar})" if index else scalar

    def number(self, shape: tuple[int, ...], depth: int = 2) -> str:
        """An integer expression of that shape."""
        if depth == 0:
            return self.leaf(shape)
        kind = self.one_of(
            *("leaf", "arithmetic", "arithmetic", "bits", "divide", "shift", "where"),
            *("extreme", "constant", "cast", "unary", "compare", "scalar", "high"),
        )
        made: str = getattr(self, f"of_{kind}")(shape, depth - 1)
        return made

    def of_leaf(self, shape: tuple[int, ...], _below: int) -> str:
        return self.leaf(shape)

    def of_arithmetic(self, shape: tuple[int, ...], below: int) -> str:
        left, right = self.number(shape, below), self.number(shape, below)
        return f"({left} {self.one_of(*'+-*')} {right})"

    def of_bits(self, shape: tuple[int, ...], below: int) -> str:
        left, right = self.number(shape, below), self.number(shape, below)
        return f"({left} {self.one_of(*'&|^')} {right})"

    def of_divide(self, shape: tuple[int, ...], below: int) -> str:
        dtype = self.any_dtype()
        right = self.one_of(
            f"(({self.number(shape, below)} & 7) + 1).to(tl.{dtype})",
            str(1 + self.upto(60)),
        )
        left = self.number(shape, below)
        return f"(({left}).to(tl.{dtype}) {self.one_of('//', '%')} {right})"

    def of_shift(self, shape: tuple[int, ...], below: int) -> str:
        dtype = self.any_dtype()
        most = WIDTHS[dtype] - 1
        right = self.one_of(
            f"({self.number(shape, below)} & {most}).to(tl.{dtype})",
            str(self.upto(most)),
        )
        left = self.number(shape, below)
        return f"(({left}).to(tl.{dtype}) {self.one_of('<<', '>>')} {right})"

    def of_where(self, shape: tuple[int, ...], below: int) -> str:
        left, right = self.number(shape, below), self.number(shape, below)
        return f"tl.where({self.truth(shape, below)}, {left}, {right})"

    def of_extreme(self, shape: tuple[int, ...], below: int) -> str:
        name, dtype = self.one_of("minimum", "maximum"), self.any_dtype()
        left, right = self.number(shape, below), self.number(shape, below)
        return f"tl.{name}(({left}).to(tl.{dtype}), ({right}).to(tl.{dtype}))"

    def of_constant(self, shape: tuple[int, ...], below: int) -> str:
        operator = self.one_of(*"+-*&|^")
        return f"({self.number(shape, below)} {operator} {self.upto(100)})"

    def of_cast(self, shape: tuple[int, ...], below: int) -> str:
        return f"({self.number(shape, below)}).to(tl.{self.any_dtype()})"

    def of_unary(self, shape: tuple[int, ...], below: int) -> str:
        cast = f"({self.number(shape, below)}).to(tl.{self.one_of(*SIGNED)})"
        return self.one_of(f"(-{cast})", f"(~{cast})", f"tl.abs({cast})")

    def of_compare(self, shape: tuple[int, ...], below: int) -> str:
        return f"({self.truth(shape, below)}).to(tl.{self.any_dtype()})"

    def of_scalar(self, shape: tuple[int, ...], below: int) -> str:
        sides = [self.number(shape, below), self.number((), below)]
        if self.draw(st.booleans()):
            sides.reverse()
        return f"({sides[0]} {self.one_of(*'+-*')} {sides[1]})"

    def of_high(self, shape: tuple[int, ...], below: int) -> str:
        # Of signed numbers, the interpreter multiplies what is sign-extended.
        dtype = self.one_of("uint32", "uint64")
        left, right = self.number(shape, below), self.number(shape, below)
        return f"tl.umulhi(({left}).to(tl.{dtype}), ({right}).to(tl.{dtype}))"

    def truth(self, shape: tuple[int, ...], depth: int = 1) -> str:
        """A predicate of that shape."""
        left = self.number(shape, max(depth - 1, 0))
        right = self.number(shape, max(depth - 1, 0))
        relation = self.one_of("<", "<=", ">", ">=", "==", "!=")
        simple = f"({left} {relation} {right})"
        if depth == 0 or self.draw(st.booleans()):
            return simple
        other = self.truth(shape, depth - 1)
        return f"({simple} {self.one_of(*'&|^')} {other})"


def index_of(shape: tuple[int, ...]) -> str:
    """Row-major positions of a tensor's lanes, "" for a scalar."""
    terms = []
    stride = 1
    for axis in reversed(range(len(shape))):
        others = ", ".join(":" if at == axis else "None" for at in range(len(shape)))
        view = f"[{others}]" if len(shape) > 1 else ""
        terms.append(f"tl.arange(0, {shape[axis]}){view} * {stride}")
        stride *= shape[axis]
    return f"({' + '.join(terms)})" if terms else ""
