"""Triton kernels of a tree, found in its sources: nothing is imported for it.

A kernel is what a decorator `triton.jit` or `gluon.jit`, under whatever name it was
imported, stands on. What other kernels call and nobody launches is a device function:
it is compiled as a part of its callers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

# Ends of the names that a decorator may have been imported from.
_DECORATORS = {"triton.jit": "triton", "gluon.jit": "gluon"}
_TARGETS = Path(__file__).parents[1] / "targets"
_CATALOGUE = "_real_"

Functions = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, kw_only=True)
class SourceKernel:
    """A kernel as its file defines it.

    Attributes:
        module: Its module, dotted.
        name: Its qualified name, as Python has it.
        line: Of its first decorator, counted from 1.
        language: Which compiler's.
        device: Whether it only serves other kernels.
        launchers: Names of functions of the tree that launch it.
    """

    module: str
    name: str
    line: int
    language: Literal["triton", "gluon"]
    device: bool = False
    launchers: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Unique in a tree."""
        return f"{self.module}:{self.name}:{self.line}"


@dataclass(frozen=True)
class _File:
    """What one file defines, and what its functions launch.

    Attributes:
        launched: Names of a launched kernel and of the function; the module that the
            kernel is defined in, "" for any where it was imported.
    """

    module: str
    kernels: list[tuple[SourceKernel, Functions]]
    launched: list[tuple[str, str, str]]


def kernels_of(root: Path) -> tuple[SourceKernel, ...]:
    """All kernels of a tree, in the order of its files.

    Args:
        root: The folder that contains `vllm/`.

    Raises:
        SyntaxError: A file that names a decorator is not Python.
    """
    texts = {
        path: path.read_text(encoding="utf-8", errors="replace")
        for path in sorted((root / "vllm").rglob("*.py"))
    }
    files = {
        path: _file(path, root, text)
        for path, text in texts.items()
        if "jit" in text and re.search("triton|gluon", text)
    }
    names = {
        each.name.rpartition(".")[2]
        for file in files.values()
        for each, _ in file.kernels
    }
    for path, text in texts.items():
        if (
            path not in files
            and "](" in text
            and names.intersection(re.findall(r"\b(\w++)\[", text))
        ):
            files[path] = _file(path, root, text)
    return _joined(list(files.values()))


def _joined(files: list[_File]) -> tuple[SourceKernel, ...]:
    """Kernels with what all files say of them."""
    called = {
        name for file in files for _, node in file.kernels for name in _called_in(node)
    }
    launchers: dict[tuple[str, str], set[str]] = {}
    for file in files:
        for launched, function, module in file.launched:
            launchers.setdefault((launched, module), set()).add(function)
    found = []
    for file in files:
        for kernel, node in file.kernels:
            last = kernel.name.rpartition(".")[2]
            nobody: set[str] = set()
            by = launchers.get((last, kernel.module), nobody) | launchers.get(
                (last, ""), nobody
            )
            serves = _returns_value(node) or (last in called and not by)
            found.append(replace(kernel, device=serves, launchers=tuple(sorted(by))))
    return tuple(found)


def _file(path: Path, root: Path, text: str) -> _File:
    tree = ast.parse(text, filename=str(path))
    module = ".".join(path.relative_to(root).with_suffix("").parts)
    file = _File(module.removesuffix(".__init__"), [], [])
    _visit(tree, file, {}, prefix="", function="")
    return file


def _visit(
    node: ast.AST, file: _File, names: dict[str, str], *, prefix: str, function: str
) -> None:
    """Take in the statements below a node, in order.

    Args:
        node: A statement, or a part of one that has statements.
        file: What is added to.
        names: What imported names stand for, dotted; added to.
        prefix: Of the qualified names of what is defined here.
        function: Name of the outermost function around, "" for none.
    """
    for child in _statements(node):
        inner, outer = prefix, function
        if isinstance(child, ast.Import):
            names.update((each.asname or each.name, each.name) for each in child.names)
        elif isinstance(child, ast.ImportFrom):
            names.update(
                (each.asname or each.name, f"{child.module}.{each.name}")
                for each in child.names
            )
        elif isinstance(child, ast.ClassDef):
            inner = f"{prefix}{child.name}."
        elif isinstance(child, Functions):
            language = _language(child, names)
            if language is not None:
                kernel = SourceKernel(
                    module=file.module,
                    name=prefix + child.name,
                    line=min(each.lineno for each in child.decorator_list),
                    language=language,
                )
                file.kernels.append((kernel, child))
            elif not function:
                file.launched.extend(
                    (each, child.name, "" if each in names else file.module)
                    for each in _launched_in(child)
                )
            inner = f"{prefix}{child.name}.<locals>."
            outer = function or child.name
        _visit(child, file, names, prefix=inner, function=outer)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        yield from getattr(node, field, ())


def _launched_in(node: Functions) -> set[str]:
    return {
        _last_name(call.func.value)
        for call in ast.walk(node)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript)
    }


def _language(
    node: Functions, names: dict[str, str]
) -> Literal["triton", "gluon"] | None:
    for decorator in node.decorator_list:
        plain = decorator.func if isinstance(decorator, ast.Call) else decorator
        first, _, rest = ast.unparse(plain).partition(".")
        whole = f"{names.get(first, first)}.{rest}".strip(".")
        for end, language in _DECORATORS.items():
            if whole == end or whole.endswith(f".{end}"):
                return "gluon" if language == "gluon" else "triton"
    return None


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _called_in(node: Functions) -> set[str]:
    calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
    return {_last_name(call.func) for call in calls}


def _returns_value(node: Functions) -> bool:
    return any(
        isinstance(each, ast.Return) and each.value is not None
        for each in ast.walk(node)
    )


@dataclass(frozen=True)
class _Mentions:
    """What a target's own sources name: identifiers, and modules of vLLM."""

    target: str
    names: frozenset[str]
    modules: frozenset[str]


def targets_naming(kernels: tuple[SourceKernel, ...]) -> dict[str, tuple[str, ...]]:
    """Targets whose sources name a kernel, or what launches it, by the kernel's key.

    The kernel's module has to be named as well. The catalogue of launches is left out:
    it is run.
    """
    targets = [
        _mentions(path)
        for path in sorted(_TARGETS.glob("*.py"))
        if not path.name.startswith("_")
    ]
    return {
        kernel.key: tuple(
            each.target
            for each in targets
            if kernel.module in each.modules
            and each.names.intersection(
                # Of a kernel within a class, the class says which it is.
                (kernel.name.partition(".")[0], *kernel.launchers)
            )
        )
        for kernel in kernels
    }


def catalogue() -> tuple[str, ...]:
    """Modules of the catalogue of launches."""
    return tuple(
        f"fuzz.targets.{path.stem}"
        for path in sorted(_TARGETS.glob(f"{_CATALOGUE}*.py"))
    )


def _mentions(path: Path) -> _Mentions:
    names: set[str] = set()
    modules: set[str] = set()
    files, at = [path], 0
    while at < len(files):
        tree = ast.parse(files[at].read_text(encoding="utf-8"))
        at += 1
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    names.add(name)
                case ast.alias(name=name):
                    names.add(name)
                    modules.add(name)
                case ast.Constant(value=str(text)):
                    names.add(text)
                    modules.add(text)
            if isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module)
                modules.update(f"{node.module}.{each.name}" for each in node.names)
                helper = _TARGETS / f"{node.module.rpartition('.')[2]}.py"
                ours = node.module.startswith("fuzz.targets._")
                catalogued = helper.name.startswith(_CATALOGUE)
                if ours and not catalogued and helper not in files:
                    files.append(helper)
    return _Mentions(path.stem, frozenset(names), frozenset(modules))
