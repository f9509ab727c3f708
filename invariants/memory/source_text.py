"""The source expression that an operation of a kernel comes from, on one line.

Triton 3.6 and 3.7 note where the compiler was last: at the last argument of a call, or
the right side of an operator. 3.9 notes where the expression starts, with columns from
1. So the operation's own name decides which of the expressions around a place is meant.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache

# Longer texts are cut.
_LENGTH_MAX = 100

# What the source calls what these operations do.
_CALLS = {
    "tt.load": ("load",),
    "tt.store": ("store",),
    "tt.atomic_rmw": ("atomic_",),
    "tt.atomic_cas": ("atomic_cas",),
    "tt.descriptor_load": ("load",),
    "tt.descriptor_store": ("store",),
}
_OPERATORS: dict[str, tuple[type[ast.operator], ...]] = {
    "arith.addi": (ast.Add,),
    "arith.subi": (ast.Sub,),
    "arith.muli": (ast.Mult,),
    "arith.shli": (ast.LShift,),
    "tt.addptr": (ast.Add, ast.Sub),
}


@lru_cache(maxsize=1024)
def expression_at(file: str, line: int, column: int, operation: str) -> str:
    """The call, or the operator with its operands, that an operation comes from.

    Args:
        file: Of the source.
        line: From 1.
        column: As Triton gives it.
        operation: Its name, such as `tt.load`.

    Returns:
        At most about 100 characters; the statement's first line where it is not clear
        which expression is meant, "" where there is no such source.
    """
    tree = _parsed(file)
    if tree is None:
        return linecache.getline(file, line).strip()
    around = [node for node in _nodes(tree) if _contains(node, line, column)]
    statements = [node for node in around if isinstance(node, ast.stmt)]
    if not statements:
        return linecache.getline(file, line).strip()
    statement = min(statements, key=_size)
    inside = [node for node in ast.walk(statement) if _made(node, operation)]
    meant = [node for node in inside if _noted(node, line, column)]
    close = [node for node in meant if _contains(node, line, column)]
    if close:
        return _one_line(min(close, key=_size))
    return _one_line(inside[0] if len(inside) == 1 else statement)


@lru_cache(maxsize=64)
def _parsed(file: str) -> ast.Module | None:
    lines = linecache.getlines(file)
    try:
        return ast.parse("".join(lines)) if lines else None
    except SyntaxError:
        return None


def _nodes(tree: ast.Module) -> Iterator[ast.stmt | ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr):
            yield node


def _contains(node: ast.AST, line: int, column: int) -> bool:
    if not isinstance(node, ast.stmt | ast.expr):
        return False
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return (node.lineno, node.col_offset) <= (line, column) < end


def _noted(node: ast.AST, line: int, column: int) -> bool:
    """Whether a place may be that of this node."""
    if not isinstance(node, ast.BinOp):
        return True
    right = node.right
    return (line, column) in {
        (right.lineno, right.col_offset),
        (node.lineno, node.col_offset + 1),
    }


def _size(node: ast.AST) -> tuple[int, int]:
    """Lines, then characters, that a node spans."""
    assert isinstance(node, ast.stmt | ast.expr)
    last = node.end_lineno or node.lineno
    return last - node.lineno, (node.end_col_offset or 0) - node.col_offset


def _made(node: ast.AST, operation: str) -> bool:
    """Whether the compiler makes such an operation of this node."""
    if operation in _OPERATORS:
        operators = _OPERATORS[operation]
        return isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(
            node.op, operators
        )
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    return any(name.startswith(each) for each in _CALLS.get(operation, ()))


def _one_line(node: ast.AST) -> str:
    """Its source without comments and line ends; of a block, its head."""
    text = ast.unparse(node)
    if isinstance(node, ast.stmt):
        text = text.split("\n", maxsplit=1)[0]
    return text if len(text) <= _LENGTH_MAX else text[: _LENGTH_MAX - 1] + "…"
