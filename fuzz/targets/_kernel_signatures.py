"""Guesses what a kernel may be called with, from how its source uses its arguments.

A parameter that memory is accessed through is a pointer, one that sizes a range is a
power of two, one compared with a word is that word. Several guesses are made, for what
a kernel accepts is known only by compiling it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_ACCESSES = re.compile(r"load|store|atomic_\w+|make_block_ptr|make_tensor_descriptor")
_POINTER_NAME = re.compile(r"(?i)(^|_)(ptr|ptrs|pointer)s?(_|$|\d)")
_DESCRIPTOR_NAME = re.compile(r"(?i)(^|_)(desc|tma)(_|$)")
# Names of tensors of integers; those of addresses hold 64 bits.
_ADDRESSES = re.compile(r"(?i)ptrs_ptr|addrs?_|ptr_table|base_addr|data_ptrs")
_INTEGERS = re.compile(
    r"(?i)(^|_|\d)(ids?|idx|index|indices|slots?|tables?|lens?|lengths?|offsets?|starts?"
    r"|cu|counts?|num|pos|positions?|map|mapping|seqlens?|loc|locs|req|accepted|sizes?"
    r"|tokens?|expert|experts|seed|seeds|cumsum|rejected|bitmask|blocks?)(_|$|\d)"
)
_PREDICATES = re.compile(r"(?i)(^|_)(is|has|mask|valid|flags?)(_|$)")
_SINGLES = re.compile(r"(?i)scale|inv|lse|temp|prob|logit|state|dt|_m_|acc|sum|max")
_FLOATS = re.compile(
    r"(?i)scale|eps|alpha|beta|theta|temperature|factor|limit|threshold|cap|inv|rate"
    r"|clamp|fp8|min_val|max_val|slope|lambda"
)
_WHOLE = re.compile(r"(?i)stride|size|dim|len|numel|count|(^|_)(num|n|stop|start)(_|$)")
_DTYPE_NAME = re.compile(r"(?i)dtype|_ty$|_type$")
_FLAG_NAME = re.compile(
    r"^(IS|HAS|USE|ENABLE|DO|WITH|STORE|SAVE|INPLACE|APPLY|NEED|SKIP|FUSE|RETURN)_|^[a-z]"
)
_SIZE_NAME = re.compile(r"(?i)block|tile|size|dim|head|num|chunk|^b[a-z]$|^[a-z]{1,2}$")
_CALLEES_MAX = 4


@dataclass(frozen=True)
class Signature:
    """What a kernel is lowered for.

    Attributes:
        types: By parameter, as Triton writes them; ``constexpr`` for constants.
        constants: Values of those.
        options: Of the compiler.
    """

    types: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class _Uses:
    """How a function uses its parameters, by their names."""

    pointers: set[str] = field(default_factory=set)
    ranges: set[str] = field(default_factory=set)
    flags: set[str] = field(default_factory=set)
    optional: set[str] = field(default_factory=set)
    dtypes: set[str] = field(default_factory=set)
    words: dict[str, list[Any]] = field(default_factory=dict)
    ranks: dict[str, int] = field(default_factory=dict)
    integers: set[str] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What one guess takes for what the source leaves open."""

    size: int
    flags: bool
    defaults: bool = True
    floats: str = ""
    optional: bool = True
    other_word: bool = False


_PLANS = (
    _Plan(size=64, flags=False),
    _Plan(size=64, flags=False, optional=False),
    _Plan(size=64, flags=True),
    _Plan(size=64, flags=False, defaults=False),
    _Plan(size=16, flags=False),
    _Plan(size=128, flags=True, floats="fp32"),
    _Plan(size=64, flags=False, floats="i32"),
    _Plan(size=64, flags=False, other_word=True),
    _Plan(size=4, flags=False),
    _Plan(size=1, flags=False),
    _Plan(size=64, flags=False, floats="u8"),
)


def guesses(
    function: Any, configured: Mapping[str, Any], options: Mapping[str, Any]
) -> Iterator[Signature]:
    """Signatures worth a try, the likeliest first.

    Args:
        function: The JIT function.
        configured: Constants of its first autotuned configuration.
        options: Of the compiler, from there too.
    """
    uses = _uses(function, 0)
    seen: list[tuple[dict[str, str], dict[str, Any]]] = []
    for plan in _PLANS:
        types: dict[str, str] = {}
        constants: dict[str, Any] = {}
        for parameter in function.params:
            name = parameter.name
            if name in configured:
                types[name], constants[name] = "constexpr", configured[name]
            elif parameter.is_constexpr:
                types[name] = "constexpr"
                constants[name] = _constant(parameter, uses, plan)
            elif not plan.optional and _may_be_none(parameter, uses):
                types[name], constants[name] = "constexpr", None
            else:
                types[name] = _type(parameter, uses, plan)
        if (types, constants) not in seen:
            seen.append((types, constants))
            yield Signature(types, constants, options)


def _may_be_none(parameter: Any, uses: _Uses) -> bool:
    nothing = parameter.has_default and parameter.default is None
    return nothing or parameter.name in uses.optional


def _type(parameter: Any, uses: _Uses, plan: _Plan) -> str:
    name = parameter.name
    annotated: str = parameter.annotation_type
    if annotated:
        return annotated
    if name in uses.ranks or _DESCRIPTOR_NAME.search(name):
        sizes = ", ".join([str(plan.size)] * uses.ranks.get(name, 2))
        return f"tensordesc<{plan.floats or 'bf16'}[{sizes}]>"
    if name in uses.pointers or _POINTER_NAME.search(name):
        return "*" + _pointee(name, uses, plan)
    whole = name in uses.integers or _WHOLE.search(name)
    return "fp32" if _FLOATS.search(name) and not whole else "i32"


def _pointee(name: str, uses: _Uses, plan: _Plan) -> str:
    if name in uses.integers:
        return "i32"
    if _ADDRESSES.search(name):
        return "i64"
    if plan.floats:
        return plan.floats
    if _INTEGERS.search(name) and not _SINGLES.search(name):
        return "i32"
    if _PREDICATES.search(name):
        return "i1"
    return "fp32" if _SINGLES.search(name) else "bf16"


def _constant(parameter: Any, uses: _Uses, plan: _Plan) -> Any:
    import triton.language as tl

    name = parameter.name
    default = parameter.default if parameter.has_default else None
    if isinstance(default, tl.constexpr):
        default = default.value
    if plan.defaults and parameter.has_default and default is not None:
        return default
    size = plan.size if _SIZE_NAME.search(name) or name.isupper() else 1
    truth = name in uses.flags or isinstance(default, bool) or _FLAG_NAME.search(name)
    ways = (
        (name in uses.words, uses.words.get(name, [None])[-plan.other_word]),
        (name in uses.dtypes or _DTYPE_NAME.search(name), tl.bfloat16),
        (name in uses.ranges, plan.size),
        (truth, plan.flags),
        (_may_be_none(parameter, uses), None),
        (_FLOATS.search(name), 1.0),
    )
    return next((value for holds, value in ways if holds), size)


def _uses(function: Any, depth: int) -> _Uses:
    """How a JIT function, and those that it calls, use its parameters."""
    uses = _Uses()
    tree = function.parse()
    body = tree.body[0]
    names = {each.name for each in function.params}
    moved = _moved(body, names)

    def base(node: ast.expr) -> set[str]:
        """Parameters that a pointer may be made from; sums begin with theirs."""
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            node = node.left
        if isinstance(node, ast.Call) and _word(node.func) in {"to", "multiple_of"}:
            return set()
        if isinstance(node, ast.Name):
            return {node.id} & names | moved.get(node.id, set())
        return set()

    for node in ast.walk(body):
        match node:
            case ast.Call():
                _of_call(node, uses, names, base)
                _of_callee(node, uses, base, function, depth)
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                _of_comparison(left, operator, right, uses, names)
            case ast.If(test=test) | ast.IfExp(test=test):
                uses.flags |= _flags(test, names)
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id=name), attr="dtype"),
                attr="element_ty",
            ) if name in names:
                uses.pointers.add(name)
    return uses


def _moved(body: ast.AST, names: set[str]) -> dict[str, set[str]]:
    """Parameters that local names, as sums, begin with."""
    moved: dict[str, set[str]] = {}
    for node in ast.walk(body):
        if isinstance(node, ast.Assign | ast.AugAssign) and node.value is not None:
            value: ast.expr = node.value
            while isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                value = value.left
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if isinstance(node, ast.Assign) and isinstance(value, ast.Name):
                for target in targets:
                    if isinstance(target, ast.Name):
                        held = moved.setdefault(target.id, set())
                        held |= {value.id} & names | moved.get(value.id, set())
    return moved


def _of_call(
    node: ast.Call,
    uses: _Uses,
    names: set[str],
    base: Any,
) -> None:
    word = _word(node.func)
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    given = [*node.args, *(each.value for each in node.keywords)]
    if word in {"load", "store"} and isinstance(owner, ast.Name) and owner.id in names:
        offsets = node.args[0] if node.args else None
        if isinstance(offsets, ast.List | ast.Tuple):
            uses.ranks[owner.id] = len(offsets.elts)
    elif _ACCESSES.fullmatch(word) and given:
        uses.pointers |= base(given[0])
    elif word in {"arange", "zeros", "full"}:
        sizes = given[:2] if word == "arange" else given[:1]
        for size in sizes:
            uses.ranges |= {
                each.id
                for each in ast.walk(size)
                if isinstance(each, ast.Name) and each.id in names
            }
    elif word in {"to", "cast"}:
        uses.dtypes |= {
            each.id for each in given if isinstance(each, ast.Name) and each.id in names
        }
    elif word in {"range", "static_range"}:
        uses.integers |= {each.id for each in given if isinstance(each, ast.Name)}
    for keyword in node.keywords:
        if not isinstance(keyword.value, ast.Name) or keyword.value.id not in names:
            continue
        if keyword.arg == "dtype":
            uses.dtypes.add(keyword.value.id)
        elif keyword.arg == "input_precision":
            uses.words.setdefault(keyword.value.id, ["ieee"])


def _of_callee(
    node: ast.Call, uses: _Uses, base: Any, function: Any, depth: int
) -> None:
    """What a device function does with what it is given."""
    from triton.runtime.jit import JITFunction

    callee = inspect.unwrap(function.fn).__globals__.get(_word(node.func))
    if not isinstance(callee, JITFunction) or depth >= _CALLEES_MAX:
        return
    inner = _uses(callee, depth + 1)
    named = {each.arg: each.value for each in node.keywords if each.arg}
    order = [each.name for each in callee.params]
    for name, value in {**dict(zip(order, node.args, strict=False)), **named}.items():
        if name in inner.pointers:
            uses.pointers |= base(value)
        if isinstance(value, ast.Name):
            for mine, theirs in (
                (uses.ranges, inner.ranges),
                (uses.flags, inner.flags),
                (uses.optional, inner.optional),
                (uses.dtypes, inner.dtypes),
            ):
                if name in theirs:
                    mine.add(value.id)
            if name in inner.words:
                uses.words.setdefault(value.id, inner.words[name])


def _of_comparison(
    left: ast.expr, operator: ast.cmpop, right: ast.expr, uses: _Uses, names: set[str]
) -> None:
    if not isinstance(left, ast.Name) or left.id not in names:
        return
    if isinstance(right, ast.Constant) and right.value is None:
        uses.optional.add(left.id)
    elif isinstance(operator, ast.Eq | ast.NotEq) and isinstance(right, ast.Constant):
        number = type(right.value) is int and not _SIZE_NAME.search(left.id)
        if number or isinstance(right.value, str):
            uses.words.setdefault(left.id, []).append(right.value)


def _flags(test: ast.expr, names: set[str]) -> set[str]:
    """Parameters that a condition takes for truths."""
    match test:
        case ast.Name(id=name):
            return {name} & names
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return _flags(inner, names)
        case ast.BoolOp(values=values):
            return {name for each in values for name in _flags(each, names)}
    return set()


def _word(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
