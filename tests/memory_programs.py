"""Draws integer kernels as source text, with inputs, for a differential test.

A program is right by construction: its addresses are inside their tensors, lanes that
are masked off get a value, and each program of the grid writes to memory of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.memory_expressions import DrawFn, Expressions, Variable, index_of

# Elements of each input; indices are cut to it by a mask of bits.
INPUT_SIZE = 64
LANES_MAX = 64
STORES_MAX = 20


@dataclass(frozen=True)
class Program:
    """One generated launch.

    Attributes:
        source: Of a module with a kernel named `kernel`.
        inputs: Dtypes of the input tensors, `INPUT_SIZE` elements each.
        outputs: Dtypes of the output tensors, `LANES_MAX` elements for each store of
            each program.
        stores: Stores to each output.
        numbers: Integers passed after the tensors.
        seed: Of the inputs' contents; 0 for ascending numbers.
    """

    source: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    stores: int
    grid: tuple[int, ...]
    numbers: tuple[int, ...]
    seed: int


@dataclass(eq=False)
class Writer(Expressions):
    """Writes statements.

    Attributes:
        inputs: Dtypes of the input tensors.
        outputs: Dtypes of the output tensors.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    stores: int = 0
    loops: int = 0

    def block(self, statements: int, depth: int) -> None:
        """Some statements, in a scope of their own."""
        before = list(self.scope)
        for _ in range(statements):
            self.statement(depth)
        self.scope[:] = before

    def statement(self, depth: int) -> None:
        kinds = ["define", "assign", "load", "fold", "move", "move", "store"]
        if depth:
            kinds += ["if", "for", "for", "while", "call"]
        getattr(self, f"a_{self.one_of(*kinds)}")(depth)

    def shape(self) -> tuple[int, ...]:
        return self.draw(
            st.sampled_from([(), (4,), (8,), (2, 4), (4, 2), (1, 8), (2, 4, 2)])
        )

    def a_define(self, _depth: int) -> None:
        shape = self.shape()
        self.define(self.number(shape), self.any_dtype(), shape)

    def a_assign(self, _depth: int) -> None:
        target = self.draw(st.sampled_from(self.scope))
        value = self.number(target.shape)
        if target.name.startswith("v"):
            self.say(f"{target.name} = ({value}).to(tl.{target.dtype})")

    def index(self, shape: tuple[int, ...]) -> str:
        return f"(({self.number(shape)}) & {INPUT_SIZE - 1}).to(tl.int32)"

    def a_load(self, _depth: int) -> None:
        shape = self.shape()
        at = self.upto(len(self.inputs) - 1)
        if self.draw(st.booleans()):
            text = f"tl.load(in{at} + {self.index(shape)})"
        elif self.draw(st.booleans()):
            mask, other = self.truth(shape), self.upto(1)
            text = f"tl.load(in{at} + {self.index(shape)}, mask={mask}, other={other})"
        else:
            index = self.fresh("i")
            self.say(f"{index} = {self.number(shape)}")
            mask = f"({index} >= 0) & ({index} < {INPUT_SIZE})"
            text = f"tl.load(in{at} + {index}, mask={mask}, other=1)"
        self.define(text, self.any_dtype(), shape)

    def a_store(self, _depth: int) -> None:
        if self.stores >= STORES_MAX:
            return
        shape = self.shape()
        at = self.upto(len(self.outputs) - 1)
        dtype = self.outputs[at]
        base = f"out{at} + (pid * STORES + {self.stores}) * {LANES_MAX}"
        self.stores += 1
        where = index_of(shape) or "0"
        value = f"({self.number(shape)}).to(tl.{dtype})"
        mask = "" if self.draw(st.booleans()) else f", mask={self.truth(shape)}"
        kind = self.one_of("store", "store", "store", "atomic", "twice")
        if kind == "atomic" and dtype in {"int32", "int64"}:
            name = self.one_of("add", "max", "min", "xchg", "and", "or", "xor")
            self.say(f"tl.atomic_{name}({base} + {where}, {value}{mask})")
            return
        self.say(f"tl.store({base} + {where}, {value}{mask})")
        if kind == "twice":
            shift = self.upto(8)
            self.define(f"tl.load({base} + {where})", self.any_dtype(), shape)
            again = f"({self.number(shape)}).to(tl.{dtype})"
            self.say(f"tl.store({base} + {shift} + {where}, {again})")

    def keep(self, value: Variable) -> None:
        """Store a value as it is: what nothing stores, no comparison sees."""
        if self.stores < STORES_MAX:
            at = self.upto(len(self.outputs) - 1)
            base = f"out{at} + (pid * STORES + {self.stores}) * {LANES_MAX}"
            self.stores += 1
            where = index_of(value.shape) or "0"
            text = f"{value.name}.to(tl.{self.outputs[at]})"
            self.say(f"tl.store({base} + {where}, {text})")

    def a_fold(self, _depth: int) -> None:
        self.fold()
        self.keep(self.scope[-1])

    def a_move(self, _depth: int) -> None:
        self.move()
        self.keep(self.scope[-1])

    def fold(self) -> None:
        shape = self.shape() or (8,)
        axis = self.upto(len(shape) - 1)
        dtype = self.one_of("int32", "int64", "int32", "uint32")
        kind = self.one_of(
            *("sum", "max", "min", "argmax", "argmin", "xor_sum"),
            *("cumsum", "scan", "gather", "reduce", "back"),
        )
        if kind == "xor_sum":
            dtype = "int32"
        value = self.define(self.number(shape), dtype, shape).name
        less = (*shape[:axis], *shape[axis + 1 :])
        if kind == "gather":
            index = f"({self.number(shape)} & {shape[axis] - 1}).to(tl.int32)"
            self.define(f"tl.gather({value}, {index}, {axis})", dtype, shape)
        elif kind == "cumsum":
            self.define(f"tl.cumsum({value}, {axis})", dtype, shape)
        elif kind == "back":
            self.define(f"tl.cumsum({value}, {axis}, reverse=True)", dtype, shape)
        elif kind == "scan":
            self.define(f"tl.associative_scan({value}, {axis}, larger)", dtype, shape)
        elif kind == "reduce":
            self.define(f"tl.reduce({value}, {axis}, mixed)", dtype, less)
        else:
            self.define(f"tl.{kind}({value}, {axis})", dtype, less)

    def move(self) -> None:
        dtype = self.any_dtype()
        kind = self.one_of("reshape", "trans", "join", "split", "outer", "broadcast")
        if kind == "reshape":
            value = self.define(self.number((8,)), dtype, (8,)).name
            self.define(f"tl.reshape({value}, [2, 4])", dtype, (2, 4))
        elif kind == "trans":
            value = self.define(self.number((2, 4)), dtype, (2, 4)).name
            self.define(f"tl.trans({value})", dtype, (4, 2))
        elif kind == "join":
            left = self.define(self.number((4,)), dtype, (4,)).name
            right = self.define(self.number((4,)), dtype, (4,)).name
            self.define(f"tl.join({left}, {right})", dtype, (4, 2))
        elif kind == "split":
            value = self.define(self.number((4, 2)), dtype, (4, 2)).name
            left, right = self.fresh("s"), self.fresh("s")
            self.say(f"{left}, {right} = tl.split({value})")
            self.define(f"{left} - {right}", dtype, (4,))
        elif kind == "outer":
            left = self.define(self.number((2,)), dtype, (2,)).name
            right = self.define(self.number((4,)), dtype, (4,)).name
            sign = self.one_of(*"+*&")
            self.define(f"{left}[:, None] {sign} {right}[None, :]", dtype, (2, 4))
        else:
            value = self.define(self.number((1, 8)), dtype, (1, 8)).name
            text = f"tl.broadcast_to({value}, [4, 8])"
            kept = self.define(text, dtype, (4, 8)).name
            self.define(f"tl.sum({kept}, 0)", dtype, (8,))

    def inner(self, depth: int) -> None:
        self.indent += 1
        self.a_assign(0)
        self.block(1 + self.upto(2), depth - 1)
        self.say("pass")
        self.indent -= 1

    def a_if(self, depth: int) -> None:
        self.say(f"if {self.truth(())}:")
        self.inner(depth)
        if self.draw(st.booleans()):
            self.say("else:")
            self.inner(depth)

    def a_for(self, depth: int) -> None:
        if self.loops >= 2:
            return
        self.loops += 1
        i = self.fresh("j")
        if self.draw(st.booleans()):
            begin, step = self.upto(4) - 2, 1 + self.upto(2)
            self.say(f"for {i} in range({begin}, {begin + self.upto(5)}, {step}):")
        else:
            first = f"({self.number((), 1)} & 3).to(tl.int32)"
            last = f"({self.number((), 1)} & 7).to(tl.int32)"
            self.say(f"for {i} in range({first}, {last}):")
        before = list(self.scope)
        self.indent += 1
        self.define(f"zero + {i}", "int32", ())
        self.indent -= 1
        self.inner(depth)
        self.scope[:] = before

    def a_while(self, depth: int) -> None:
        if self.loops >= 2:
            return
        self.loops += 1
        count = self.fresh("w")
        self.say(f"{count} = ({self.number((), 1)} & 7).to(tl.int32)")
        self.say(f"while {count} < 8:")
        self.indent += 1
        self.say(f"{count} += 1 + ({self.number((), 1)} & 3).to(tl.int32)")
        before = list(self.scope)
        self.scope.append(Variable(count, "int32", ()))
        self.indent -= 1
        self.inner(depth)
        self.scope[:] = before

    def a_call(self, _depth: int) -> None:
        value = self.number((), 1)
        self.define(f"nested(({value}).to(tl.int32))", "int32", ())

    def an_early_return(self) -> None:
        self.say(f"if {self.truth(())}:")
        before = list(self.scope)
        self.indent += 1
        self.a_store(0)
        self.scope[:] = before
        self.say("return")
        self.indent -= 1


HEAD = '''\
"""A kernel that nobody wrote."""

import triton
import triton.language as tl


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def mixed(a, b):
    return a ^ b


@triton.jit
def nested(x):
    if x > 3:
        return x * 2
    return x - 1


@triton.jit
'''


@st.composite
def programs(draw: DrawFn) -> Program:
    """Draw a launch."""
    kinds = st.sampled_from(("int8", "int16", "int32", "int64", "uint8"))
    inputs = tuple(draw(st.lists(kinds, min_size=1, max_size=3)))
    outputs = tuple(draw(st.lists(kinds, min_size=1, max_size=2)))
    grid = tuple(draw(st.lists(st.integers(1, 2), min_size=1, max_size=3)))
    numbers = tuple(
        draw(
            st.lists(
                st.one_of(
                    st.integers(-20, 20),
                    st.sampled_from(
                        (2**31 - 1, -(2**31), 2**31, 2**40 + 3, -(2**45), 2**63 - 1)
                    ),
                ),
                max_size=3,
            )
        )
    )
    writer = Writer(draw=draw, inputs=inputs, outputs=outputs)
    writer.say("pid = tl.program_id(0)")
    for axis in range(1, len(grid)):
        writer.say(f"pid += tl.program_id({axis}) * {100 if axis == 1 else 10000}")
    ids = " + ".join(
        f"tl.program_id({axis})" + "".join(f" * {n}" for n in grid[:axis])
        for axis in range(len(grid))
    )
    writer.say(f"row = {ids}")
    writer.say("zero = pid * 0")
    writer.scope.append(Variable("row", "int32", ()))
    for at in range(len(numbers)):
        writer.define(f"zero + n{at}", "int64", ())
    for at in range(len(inputs)):
        writer.define(f"tl.load(in{at} + row)", inputs[at], ())
        writer.define(f"tl.load(in{at} + tl.arange(0, 8))", inputs[at], (8,))
    for _ in range(2 + writer.upto(5)):
        writer.statement(2)
    if writer.draw(st.booleans()):
        writer.an_early_return()
        writer.statement(2)
    for value in writer.draw(st.permutations(writer.scope))[:4]:
        writer.keep(value)
    tensors = [f"in{at}" for at in range(len(inputs))]
    tensors += [f"out{at}" for at in range(len(outputs))]
    scalars = [f"n{at}" for at in range(len(numbers))]
    body = "\n".join(writer.lines).replace("pid * STORES", "row * STORES")
    parameters = ", ".join([*tensors, *scalars, "STORES: tl.constexpr"])
    return Program(
        source=f"{HEAD}def kernel({parameters}):\n{body}\n",
        inputs=inputs,
        outputs=outputs,
        stores=max(writer.stores, 1),
        grid=grid,
        numbers=numbers,
        seed=draw(st.integers(0, 3)),
    )
