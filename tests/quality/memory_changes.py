"""Mechanical faults of kernels in what they address: one small change at a time.

A cast to 64 bits, a mask, a clamp or a factor is dropped, a stride is taken for
another, a comparison is off by one, an access is one element off.
"""

import ast
from collections.abc import Iterator
from itertools import pairwise

from tests.quality.mechanical import Change

_OFF_BY_ONE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_CLAMPS = {"minimum", "maximum", "min", "max"}


def memory_changes(tree: ast.Module) -> Iterator[Change]:
    """Every change of a kernel's function, in the order of its source."""
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    for argument in function.args.args:
        annotation = argument.annotation
        if annotation is not None and ast.unparse(annotation) == "tl.int64":
            text = f"drop the 64 bits of {argument.arg}"
            yield Change(function.lineno, text, argument, "annotation", None)
    strides = [each.arg for each in function.args.args if "stride" in each.arg]
    following = dict(pairwise([*strides, *strides[:1]]))
    for statement in function.body:
        for holder in ast.walk(statement):
            for field, value in ast.iter_fields(holder):
                if isinstance(value, ast.expr):
                    for text, new in _replacements(value, following):
                        yield Change(value.lineno, text, holder, field, new)
                elif isinstance(value, list):
                    yield from _in_list(holder, field, value, following)


def _in_list(
    holder: ast.AST, field: str, values: list[object], following: dict[str, str]
) -> Iterator[Change]:
    for at, value in enumerate(values):
        if isinstance(value, ast.expr):
            for text, new in _replacements(value, following):
                changed = [*values[:at], new, *values[at + 1 :]]
                yield Change(value.lineno, text, holder, field, changed)


def _replacements(
    node: ast.expr, following: dict[str, str]
) -> Iterator[tuple[str, ast.expr]]:
    """What an expression may become, with what to call it."""
    shown = " ".join(ast.unparse(node).split())
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="to"), args=[kind]) if (
            ast.unparse(kind) == "tl.int64"
        ):
            yield f"drop the cast of {shown}", inner
        case ast.Call(func=ast.Attribute(attr="load" | "store" as name)):
            yield from _accesses(node, name, shown)
        case ast.Call(func=ast.Attribute(attr="where"), args=[_, first, second]):
            yield f"always {ast.unparse(first)} of {shown}", first
            yield f"never {ast.unparse(first)} of {shown}", second
        case ast.Call(func=func, args=[first, second]) if (
            ast.unparse(func).rpartition(".")[2] in _CLAMPS
        ):
            yield f"drop the bound {ast.unparse(second)} of {shown}", first
            yield f"only the bound {ast.unparse(second)} of {shown}", second
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            yield f"drop the factor {ast.unparse(right)} of {shown}", left
        case ast.Compare(ops=[op], left=left, comparators=others) if (
            type(op) in _OFF_BY_ONE
        ):
            new = _OFF_BY_ONE[type(op)]()
            changed = ast.Compare(left=left, ops=[new], comparators=others)
            yield f"off by one: {ast.unparse(changed)}", changed
        case ast.Name(id=name, ctx=ast.Load()) if following.get(name, name) != name:
            yield (
                f"{following[name]} for {name}",
                ast.Name(id=following[name], ctx=ast.Load()),
            )


def _accesses(node: ast.Call, name: str, shown: str) -> Iterator[tuple[str, ast.expr]]:
    """An access without its mask, and one that is one element further."""
    pointer, *rest = node.args
    masked = any(each.arg == "mask" for each in node.keywords)
    positional = len(node.args) > (2 if name == "store" else 1)
    if masked or positional:
        kept = [each for each in node.keywords if each.arg not in {"mask", "other"}]
        args = node.args[: 2 if name == "store" else 1]
        yield (
            f"drop the mask of {shown}",
            ast.Call(func=node.func, args=args, keywords=kept),
        )
    further = ast.BinOp(left=pointer, op=ast.Add(), right=ast.Constant(value=1))
    yield (
        f"one further: {shown}",
        ast.Call(func=node.func, args=[further, *rest], keywords=node.keywords),
    )
