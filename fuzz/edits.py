"""Changes to the tree under test, as plain values: fixes, mutants and controls.

A `SourceEdit` rewrites one expression in a function's own source as it is loaded; a
`Replacement` puts a function of ours in its place. Both are JSON values, so that an
isolated process can apply them too. `applied` puts everything back at its end.
"""

import __future__

import hashlib
import importlib
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any


class EditError(Exception):
    """An edit that does not fit the tree; says which function and what it lacks."""


@dataclass(frozen=True, kw_only=True)
class SourceEdit:
    """This text becomes that one, once, in a function's own source.

    Attributes:
        modules: Where the function may live, first found wins (releases move code).
        function: Qualified name: ``function`` or ``Class.method``.
        old: Exact source text, found exactly once.
        new: What takes its place.
    """

    modules: tuple[str, ...]
    function: str
    old: str
    new: str


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A function of ours in a function's place.

    Attributes:
        modules: Where the function may live, first found wins.
        function: Qualified name: ``function`` or ``Class.method``.
        implementation: ``module:name`` of ours, called with the original's arguments.
    """

    modules: tuple[str, ...]
    function: str
    implementation: str


Edit = SourceEdit | Replacement


def _located(modules: tuple[str, ...], function: str) -> tuple[ModuleType, Any, Any]:
    """The module, the holder (module or class) and the current value of a function."""
    for name in modules:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        holder: Any = module
        *classes, last = function.split(".")
        for part in classes:
            holder = getattr(holder, part, None)
        if holder is not None and last in vars(holder):
            return module, holder, vars(holder)[last]
    raise EditError(
        f"no function {function!r} in {', '.join(modules)} of this tree; "
        "name the module where this release keeps it"
    )


def function_source(modules: tuple[str, ...], function: str) -> str:
    """Dedented source of a function of the tree, decorators included.

    Raises:
        EditError: When no module has it.
    """
    _, _, current = _located(modules, function)
    return textwrap.dedent(inspect.getsource(_plain(current)))


def _plain(value: Any) -> Any:
    """The Python function inside a staticmethod, classmethod or Triton's wrappers."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    while hasattr(value, "fn"):
        # A JIT function, and what autotunes it or computes some of its arguments.
        value = value.fn
    return value


def _recompiled(module: ModuleType, holder: Any, function: str, source: str) -> Any:
    """Run a function's new source in its module's namespace; give what it defines."""
    last = function.rsplit(".", 1)[-1]
    if isinstance(holder, type):
        # `super()` without arguments finds its class in a variable around the method.
        body = textwrap.indent(source, "    ")
        source = f"def method_of(__class__):\n{body}\n    return {last}\n"
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    filename = f"<edited {module.__name__}:{function} {digest}>"
    # Triton and inspect read a function's source through linecache.
    lines = source.splitlines(keepends=True)
    linecache.cache[filename] = (len(source), None, lines, filename)
    defined: dict[str, Any] = {}
    # Annotations of a module that postpones them may name what only checkers import.
    postponed = vars(module).get("annotations") is __future__.annotations
    flags = __future__.annotations.compiler_flag if postponed else 0
    code = compile(source, filename, "exec", flags=flags, dont_inherit=True)
    exec(code, module.__dict__, defined)  # noqa: S102 (the tree's own source, edited)
    if not isinstance(holder, type):
        return defined[last]
    method = defined["method_of"](holder)
    plain = _plain(method)
    # Tracebacks name the method as the tree does.
    plain.__qualname__ = function
    plain.__code__ = plain.__code__.replace(co_qualname=function)
    return method


def _edited(edit: SourceEdit) -> tuple[Any, Any, Any]:
    module, holder, current = _located(edit.modules, edit.function)
    source = function_source(edit.modules, edit.function)
    count = source.count(edit.old)
    if count != 1:
        raise EditError(
            f"{edit.function} of {module.__name__} holds the text {edit.old!r} "
            f"{count} times; an edit needs it exactly once"
        )
    new = _recompiled(module, holder, edit.function, source.replace(edit.old, edit.new))
    return holder, current, new


def _replaced(edit: Replacement) -> tuple[Any, Any, Any]:
    _, holder, current = _located(edit.modules, edit.function)
    home, _, name = edit.implementation.partition(":")
    implementation: Any = getattr(importlib.import_module(home), name)
    if isinstance(current, staticmethod | classmethod):
        implementation = type(current)(implementation)
    return holder, current, implementation


def _holders(holder: Any, function: str, value: Any) -> Iterator[tuple[Any, str]]:
    """Whatever calls a function by a name of its own, and that name.

    Its home, its importers, and what a decorator of the home made to launch it (from
    0.33.0 on, `_expand` keeps `expand_kernel` as its `kernel`).
    """
    if not isinstance(holder, ModuleType):
        yield holder, function
        return
    # The tree's package and our targets; thousands of other modules cannot have it.
    roots = {holder.__name__.partition(".")[0], "fuzz"}
    for name, module in list(sys.modules.items()):
        known = name.partition(".")[0] in roots and module is not None
        if known and vars(module).get(function) is value:
            yield module, function
    for launcher in list(vars(holder).values()):
        if not isinstance(launcher, ModuleType | type):
            kept = dict(getattr(launcher, "__dict__", {}))
            yield from ((launcher, name) for name in kept if kept[name] is value)


@contextmanager
def applied(*edits: Edit) -> Iterator[None]:
    """Apply edits to the loaded tree, in order, and undo them at the end.

    A module-level function is changed in every module of the tree that imported it by
    name, so that its callers see the change; one that is imported while the edit is in
    force gets the original back at the end too.

    Raises:
        EditError: When an edit does not fit this tree; nothing stays changed.
    """
    undo: list[tuple[Any, str, Any, Any]] = []
    try:
        for edit in edits:
            made = _edited(edit) if isinstance(edit, SourceEdit) else _replaced(edit)
            holder, current, new = made
            last = edit.function.rsplit(".", 1)[-1]
            undo.append((holder, last, current, new))
            for each, name in list(_holders(holder, last, current)):
                setattr(each, name, new)
        yield
    finally:
        for holder, last, current, new in reversed(undo):
            for each, name in list(_holders(holder, last, new)):
                setattr(each, name, current)


def fitting(edits: tuple[SourceEdit, ...]) -> SourceEdit:
    """The first of several alternatives that fits the loaded tree.

    Raises:
        EditError: When none does; tells why each does not.
    """
    reasons = []
    for edit in edits:
        try:
            _edited(edit)
        except EditError as error:
            reasons.append(str(error))
        else:
            return edit
    raise EditError("no edit fits this tree: " + "; ".join(reasons))
