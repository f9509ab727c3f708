"""Mechanical faults: every small change of a function, one at a time.

The function's syntax tree is changed in one place (a comparison, a constant, an
operator, a condition, a dropped statement) and the whole function becomes that text, as
a `SourceEdit` of the tree under test.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fuzz.edits import SourceEdit, function_source

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True, kw_only=True)
class Mechanical:
    """One mechanical fault; its name is stable while the function's text is."""

    name: str
    edit: SourceEdit


def mechanical(modules: tuple[str, ...], function: str) -> tuple[Mechanical, ...]:
    """All mechanical faults of a function of the active tree."""
    source = function_source(modules, function)
    return mechanical_of_source(function, modules, source)


def mechanical_of_source(
    function: str,
    modules: tuple[str, ...],
    source: str,
    *,
    changes: Callable[[ast.Module], Iterable["Change"]] | None = None,
) -> tuple[Mechanical, ...]:
    """All mechanical faults of a function, from its source.

    Args:
        function: Qualified name.
        modules: Where the function may live.
        source: Its text.
        changes: Gives the changes of its syntax tree, the usual ones when None.
    """
    made = changes or _changes
    original = ast.unparse(ast.parse(source))
    mutants = []
    for index in range(sum(1 for _ in made(ast.parse(source)))):
        tree = ast.parse(source)
        what = list(made(tree))[index]
        what.apply()
        new = ast.unparse(ast.fix_missing_locations(tree))
        if new != original:
            name = f"{function}:{what.line}: {what.text}"
            edit = SourceEdit(modules=modules, function=function, old=source, new=new)
            mutants.append(Mechanical(name=name, edit=edit))
    return tuple(mutants)


@dataclass(frozen=True)
class Change:
    """A change waiting to be made to one node."""

    line: int
    text: str
    holder: ast.AST
    field: str
    new: object

    def apply(self) -> None:
        setattr(self.holder, self.field, self.new)


def _changes(tree: ast.Module) -> Iterator[Change]:
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    # Decorators, annotations and defaults are the signature, not what is judged.
    for statement in function.body:
        for node in ast.walk(statement):
            yield from _changes_of(node)
    yield from _drops(function)


def _changes_of(node: ast.AST) -> Iterator[Change]:
    line = getattr(node, "lineno", 0)
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            new = COMPARISONS[type(op)]()
            text = f"{_name(op)} becomes {_name(new)} in {ast.unparse(node)}"
            yield Change(line, text, node, "ops", [new])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in OPERATORS:
            new_op = OPERATORS[type(op)]()
            text = f"{_name(op)} becomes {_name(new_op)} in {ast.unparse(node)}"
            yield Change(line, text, node, "op", new_op)
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            text = f"{_name(op)} becomes {_name(other)} in {ast.unparse(node)}"
            yield Change(line, text, node, "op", other)
        case ast.Constant(value=bool() as value):
            yield Change(line, f"{value} becomes {not value}", node, "value", not value)
        case ast.Constant(value=int() as value):
            yield Change(line, f"{value} becomes {value + 1}", node, "value", value + 1)
        case ast.If(test=test) | ast.IfExp(test=test):
            negated = ast.UnaryOp(op=ast.Not(), operand=test)
            yield Change(line, f"not ({ast.unparse(test)})", node, "test", negated)


def _drops(holder: ast.AST) -> Iterator[Change]:
    for node in ast.walk(holder):
        for field in ("body", "orelse"):
            block = getattr(node, field, None)
            if not isinstance(block, list):
                continue
            for index, statement in enumerate(block):
                if _droppable(statement):
                    rest = [*block[:index], *block[index + 1 :]] or [ast.Pass()]
                    text = f"drop {ast.unparse(statement).splitlines()[0]}"
                    yield Change(statement.lineno, text, node, field, rest)


def _droppable(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Constant()):
            return False  # a docstring
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Assert() | ast.If():
            return True
        case ast.Continue() | ast.Break():
            return True
    return False


def _name(node: ast.AST) -> str:
    return type(node).__name__
