"""Several project modules made into the sections of one file, from their source alone.

Imports between project modules are cut by their line ranges, for what they name stands
above in the same file. What could then mean two things is refused. Imports nothing that
it flattens.
"""

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("fuzz", "invariants", "reports", "reproducers", "strategies")
RULE = "# " + "-" * 76


class ScriptError(Exception):
    """Modules that cannot stand in one file; says which names or lines, and why."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A project module as text.

    Attributes:
        needs: Project modules that it imports from.
    """

    name: str
    path: Path
    text: str
    tree: ast.Module
    needs: tuple[str, ...]


def load(name: str, roots: tuple[Path, ...]) -> Source:
    """Read a project module; the first root that has it wins.

    Raises:
        ScriptError: When it does not exist, is no Python, or imports in a way that
            cannot be flattened.
    """
    relative = name.replace(".", "/")
    for root in roots:
        for path in (root / f"{relative}.py", root / relative / "__init__.py"):
            if path.is_file():
                text = path.read_text(encoding="utf-8")
                try:
                    tree = ast.parse(text, filename=str(path))
                except SyntaxError as error:
                    raise ScriptError(f"{name} ({path}): {error}") from error
                imports = project_imports(tree, name)
                needs = tuple(dict.fromkeys(node.module or "" for node in imports))
                return Source(name=name, path=path, text=text, tree=tree, needs=needs)
    looked = ", ".join(map(str, roots))
    raise ScriptError(f"there is no module {name} below {looked}")


def project_imports(tree: ast.Module, name: str) -> list[ast.ImportFrom]:
    """All imports from project modules, wherever they stand.

    Raises:
        ScriptError: At forms whose names would be missing in one file.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in PACKAGES:
                    raise ScriptError(
                        f"{name}:{node.lineno}: `import {alias.name}`; write `from "
                        f"{alias.name} import Name`, for scripts hold everything in "
                        "one file"
                    )
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ScriptError(
                    f"{name}:{node.lineno}: a relative import; name the module in full"
                )
            module = node.module or ""
            if module.split(".")[0] not in PACKAGES:
                continue
            renamed = [
                alias.name for alias in node.names if alias.asname or "*" in alias.name
            ]
            if module in PACKAGES or renamed:
                raise ScriptError(
                    f"{name}:{node.lineno}: imports from {module} must be of the form "
                    "`from package.module import Name`, without `as` or `*`"
                )
            found.append(node)
    return found


def ordered(names: Iterable[str], roots: tuple[Path, ...]) -> list[Source]:
    """Modules and all that they need, each after what it needs."""
    done: dict[str, Source | None] = {}

    def visit(name: str) -> Iterator[Source]:
        if name in done:
            return
        done[name] = None
        source = load(name, roots)
        for need in source.needs:
            yield from visit(need)
        yield source

    return [source for name in names for source in visit(name)]


def check_names(sources: Iterable[Source]) -> None:
    """Refuse a top-level name that would mean two things in one file.

    Raises:
        ScriptError: Names both modules.
    """
    bound: dict[str, tuple[str, str]] = {}
    for source in sources:
        for name, meaning in _bindings(source):
            if name.startswith("__") and name.endswith("__"):
                continue
            if name in vars(builtins):
                raise ScriptError(
                    f"{source.name} hides Python's own {name!r}; rename it"
                )
            other, other_meaning = bound.setdefault(name, (source.name, meaning))
            if meaning != other_meaning:
                raise ScriptError(
                    f"{name!r} is {other_meaning} in {other} and {meaning} in "
                    f"{source.name}; in one file they need distinct names"
                )


def _bindings(source: Source) -> Iterator[tuple[str, str]]:
    """Names that a module binds at its top level, each with what it means."""
    statements: list[ast.stmt] = list(source.tree.body)
    while statements:
        node = statements.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                yield name, f"import {alias.name if alias.asname else name}"
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").split(".")[0] not in PACKAGES:
                for alias in node.names:
                    meaning = f"from {node.module} import {alias.name}"
                    yield alias.asname or alias.name, meaning
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, f"defined ({source.name})"
        else:
            for field in ("body", "orelse", "finalbody"):
                statements.extend(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                statements.extend(handler.body)
            for inner in _own_expressions(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    yield inner.id, f"defined ({source.name})"


def _own_expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Nodes of a statement that run in the module's scope, inner blocks left out."""
    scopes = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    nodes = [
        node
        for node in ast.iter_child_nodes(statement)
        if not isinstance(node, ast.stmt | ast.ExceptHandler)
    ]
    while nodes:
        node = nodes.pop()
        yield node
        if not isinstance(node, scopes):
            nodes.extend(ast.iter_child_nodes(node))


def section(source: Source, *, without: tuple[str, ...] = ()) -> str:
    """A module's text as a section of one file.

    Args:
        source: The module.
        without: Top-level names whose assignments are left out.
    """
    lines = source.text.splitlines()
    edits = _cuts(source, without)
    kept: list[str] = []
    dropping = False
    for number, line in enumerate(lines, start=1):
        if number in edits:
            replacement = edits[number]
            if replacement is not None:
                kept.append(replacement)
            dropping = replacement is None
        elif dropping and not line.strip() and (not kept or not kept[-1].strip()):
            continue
        else:
            dropping = False
            kept.append(line)
    docstring = ast.get_docstring(source.tree) or ""
    about = [f"# {line}".rstrip() for line in docstring.splitlines()]
    title = f"# {source.name.replace('.', '/')}.py"
    header = [RULE, title, *(["#", *about] if about else []), RULE]
    return "\n".join([*header, "", "\n".join(kept).strip("\n")]).rstrip() + "\n"


def _cuts(source: Source, without: tuple[str, ...]) -> dict[int, str | None]:
    """What becomes of lines: None when dropped, else the text in their place."""
    cut: dict[int, str | None] = {}
    dropped = set(project_imports(source.tree, source.name))
    for parent in ast.walk(source.tree):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(parent, field, None)
            if not isinstance(block, list):
                continue
            gone = [
                node
                for node in block
                if node in dropped or _is_left_out(source, parent, node, without)
            ]
            for node in gone:
                _cut_lines(source, node, block, cut)
            if gone and len(gone) == len(block) and parent is not source.tree:
                cut[gone[0].lineno] = " " * gone[0].col_offset + "pass"
    return cut


def _is_left_out(
    source: Source, parent: ast.AST, node: ast.stmt, without: tuple[str, ...]
) -> bool:
    if parent is not source.tree:
        return False
    if isinstance(node, ast.ImportFrom) and node.module == "__future__":
        return True
    if node is source.tree.body[0] and ast.get_docstring(source.tree) is not None:
        return True
    names = _assigned(node)
    return bool(names) and all(name in without for name in names)


def _assigned(node: ast.stmt) -> list[str]:
    """Plain names that an assignment binds; none for other statements."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _cut_lines(
    source: Source, node: ast.stmt, block: list[ast.stmt], cut: dict[int, str | None]
) -> None:
    last = node.end_lineno or node.lineno
    for other in block:
        if (
            other is not node
            and other.lineno <= last
            and (other.end_lineno or other.lineno) >= node.lineno
        ):
            raise ScriptError(
                f"{source.name}:{node.lineno}: two statements on one line; give each "
                "its own"
            )
    for number in range(node.lineno, last + 1):
        cut[number] = None


def assignment(source: Source, name: str, *, default: str | None = None) -> str:
    """The text of a module's top-level assignment to a name.

    Raises:
        ScriptError: When there is none, and no default.
    """
    for node in source.tree.body:
        if name in _assigned(node):
            return ast.get_source_segment(source.text, node) or ""
    if default is not None:
        return default
    raise ScriptError(f"{source.name} assigns no {name}")


def needs_future_annotations(sources: Iterable[Source]) -> bool:
    """Whether a module relies on annotations that are not evaluated."""
    return any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
        for source in sources
        for node in source.tree.body
    )
