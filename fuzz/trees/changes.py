"""Say which files and functions differ between two trees, from their syntax."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

OUTSIDE = "code outside functions"


def describe_changes(
    old_root: Path,
    new_root: Path,
    *,
    before: Mapping[str, str],
    after: Mapping[str, str],
) -> list[str]:
    """One line for each file that differs, with the functions that differ in it.

    Args:
        old_root: The folder that the paths of `before` start from.
        new_root: The folder that the paths of `after` start from.
        before: Hash by path, as `fuzz.trees.tree.measure` gives it.
        after: The same, of the other tree.
    """
    lines = []
    for name in sorted(before.keys() | after):
        if before.get(name) == after.get(name):
            continue
        if name not in before:
            lines.append(f"adds {name}")
        elif name not in after:
            lines.append(f"removes {name}")
        elif not name.endswith(".py"):
            lines.append(f"changes {name}")
        else:
            what = changed_functions(
                (old_root / name).read_bytes(), (new_root / name).read_bytes()
            )
            lines.append(f"changes {name}: {what}")
    return lines


def changed_functions(old: bytes, new: bytes) -> str:
    """Name the functions that differ between two versions of a module."""
    try:
        old_parts = _parts(ast.parse(old))
    except (SyntaxError, ValueError):
        old_parts = {}
    try:
        new_parts = _parts(ast.parse(new))
    except (SyntaxError, ValueError) as error:
        return f"WARNING: the result is not Python ({error})"
    names = [
        name
        for name in dict.fromkeys([*old_parts, *new_parts])
        if old_parts.get(name) != new_parts.get(name)
    ]
    return ", ".join(names) or "comments or layout only, no function differs"


def _parts(module: ast.Module) -> dict[str, str]:
    """The syntax of each function by qualified name, and of all that is in none.

    Functions in functions belong to the outer one; positions do not count.
    """
    parts: dict[str, str] = {}
    remainder: list[str] = []
    for name, node in _walk(module, prefix=""):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # A name may be defined more than once, under conditions.
            parts[name] = parts.get(name, "") + ast.dump(node)
        else:
            remainder.append(ast.dump(node))
    parts[OUTSIDE] = "\n".join(remainder)
    return parts


def _walk(node: ast.AST, *, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield functions by qualified name, and the statements around them by none.

    A class or conditional block is looked into only if it holds a function.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
        elif _holds_function(child):
            inner = (
                f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix
            )
            yield from _walk(child, prefix=inner)
        else:
            yield "", child


def _holds_function(node: ast.AST) -> bool:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return any(isinstance(child, functions) for child in ast.walk(node))
