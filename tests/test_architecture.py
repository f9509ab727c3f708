"""The rules of ARCHITECTURE.md that the sources themselves can break.

Read from the syntax of every file, functions included, so that nothing heavy is
imported for it; each check is shown a breach as well.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from fuzz import rooms
from invariants.model import ORIGINS, Invariant
from tests.quality.mutant import Mutant

ROOT = Path(__file__).parents[1]
ROOMS = ("invariants", "strategies", "fuzz", "reproducers", "reports")
# What the modules of a room may import of the project; a name stands for its package.
ALLOWED = {
    "invariants": ("invariants",),
    "strategies": ("strategies", "invariants"),
    "fuzz": ("fuzz", "invariants", "strategies", "reports.events"),
    "reproducers": ("reproducers", "fuzz", "invariants", "reports.events"),
    "reports": ("reports",),
}
# The last screen and the report's folder are the plugin's; the fixes' package has the
# path that a user's folder lengthens.
ALLOWED_BESIDE = {
    "fuzz.controller": ("reports",),
    "fuzz.plugin": ("reports.store",),
    "fuzz.rooms": ("reproducers.fixes",),
}
SUBJECT_ROOMS = ("fuzz.targets", "reproducers.fixes")
HEAVY = ("torch", "numpy", "triton", "vllm")
# Targets alone import the memory checker, and nothing that collects tests does.
HEAVY_ROOMS = ("fuzz.targets", "invariants.memory")
# In the folder of a run; everything else that a source names is in the repository.
WRITTEN_BY_A_RUN = ("report.md",)
LAW_ID = re.compile(r"[A-Z][A-Z0-9]*(-[A-Z0-9]+)+")


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported name; `late` where it stands in a function."""

    name: str
    line: int
    late: bool


def imports(tree: ast.Module) -> Iterator[Import]:
    """Every import, and every module that `import_module` is given by its name."""
    late = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    } | {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom(module=str(module)):
                names = [f"{module}.{alias.name}" for alias in node.names]
            case ast.Call(args=[ast.Constant(value=str(module)), *_]) if ast.unparse(
                node.func
            ).endswith("import_module"):
                names = [module]
        for name in names:
            assert isinstance(node, ast.stmt | ast.expr)
            yield Import(name=name, line=node.lineno, late=id(node) in late)


def below(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in packages)


def breaches(module: str, source: str) -> list[str]:
    """What a module imports against the rules, a line each."""
    room = module.partition(".")[0]
    allowed = ALLOWED[room] + ALLOWED_BESIDE.get(module, ())
    told = []
    for each in imports(ast.parse(source)):
        where = f"{module}:{each.line}: {each.name}"
        if below(each.name, ROOMS) and not below(each.name, allowed):
            told.append(f"{where}: against the direction of imports")
        if below(each.name, ("vllm",)) and not below(module, SUBJECT_ROOMS):
            told.append(f"{where}: vLLM is imported by targets and fixes only")
        if room == "invariants" and below(each.name, ("hypothesis", "pytest")):
            told.append(f"{where}: invariants are plain values and functions")
        heavy = below(each.name, HEAVY) and not below(module, HEAVY_ROOMS)
        if heavy and not each.late:
            told.append(f"{where}: imported by collecting tests")
    return told


@cache
def sources() -> dict[str, str]:
    """Text of every module of the rooms, by module name."""
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path.read_text("utf-8")
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if not path.is_relative_to(ROOT / "reproducers" / "cases")
    }


def catalogue() -> list[Invariant]:
    return [law for name in rooms.discover() for law in rooms.load(name).invariants]


def test_imports_go_one_way() -> None:
    assert len(sources()) > 80
    told = [line for name, text in sources().items() for line in breaches(name, text)]
    assert told == []


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("invariants.a", "from strategies.b import c", "direction"),
        ("invariants.a", "def f():\n    import vllm.config", "vLLM is imported"),
        ("invariants.a", "import hypothesis", "plain values"),
        ("invariants.a", "import numpy as np", "collecting"),
        ("strategies.a", "from fuzz import rooms", "direction"),
        ("strategies.a", "import torch", "collecting"),
        ("fuzz.a", "from reports.store import load", "direction"),
        ("fuzz.a", "from reproducers.store import read", "direction"),
        ("fuzz.a", "from importlib import import_module\nimport_module('vllm')", "vLL"),
        ("fuzz.a", "import torch", "collecting"),
        ("reproducers.a", "from reports import text", "direction"),
        ("reproducers.fixes.a", "import vllm", "collecting"),
        ("reports.a", "from invariants.model import Origin", "direction"),
    ],
)
def test_a_breach_is_told(module: str, source: str, reason: str) -> None:
    (first, *_) = breaches(module, source)
    assert reason in first


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("fuzz.targets.a", "import torch, vllm"),
        ("fuzz.controller", "from reports.terminal import render"),
        ("reproducers.fixes.a", "def f():\n    from vllm import config"),
        ("invariants.a", "if TYPE_CHECKING:\n    import torch"),
        ("strategies.a", "from invariants.model import Origin"),
    ],
)
def test_what_is_allowed_is_not_told(module: str, source: str) -> None:
    assert breaches(module, source) == []


def test_every_file_says_what_it_is_for() -> None:
    files = [
        path
        for room in (*ROOMS, "benchmarks", "tests")
        for path in (ROOT / room).rglob("*.py")
        if path.read_text(encoding="utf-8").strip()
    ]
    silent = [
        str(path.relative_to(ROOT))
        for path in (*files, ROOT / "conftest.py")
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def collected_state(source: str) -> list[str]:
    """Names that a module fills while it runs: `global`, or empty collections."""
    tree = ast.parse(source)
    told = [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Global)
        for name in node.names
    ]
    empty = re.compile(r"(list|dict|set|Counter|defaultdict)\(.*\)|\[\]|\{\}")
    told += [
        ast.unparse(node).partition(" ")[0]
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and node.value is not None
        and empty.fullmatch(ast.unparse(node.value))
    ]
    return told


def test_modules_keep_no_state() -> None:
    told = {name: collected_state(text) for name, text in sources().items()}
    assert {name: names for name, names in told.items() if names} == {}
    assert collected_state("seen = {}") == ["seen"]
    assert collected_state("found: list[int] = []") == ["found:"]
    assert collected_state("def f():\n    global count\n    count = 1") == ["count"]


def test_ids_of_laws_are_unique_and_stable() -> None:
    laws = catalogue()
    ids = [law.id for law in laws]
    assert len(ids) == len(set(ids))
    assert [id_ for id_ in ids if not LAW_ID.fullmatch(id_)] == []
    assert not LAW_ID.fullmatch("GDN-ALIGN-")
    assert not LAW_ID.fullmatch("GDN bounds")


def test_every_law_is_stated_and_judged() -> None:
    for law in catalogue():
        assert law.statement.endswith("."), law.id
        judged = [law.labels_needed(origin) is not None for origin in ORIGINS]
        assert any(judged), f"{law.id} is judged under no origin"


@pytest.mark.parametrize("target", rooms.discover())
def test_a_target_has_a_file_in_every_room(target: str) -> None:
    places = (
        *("invariants/", "strategies/", "fuzz/targets/", "fuzz/test_"),
        *("reproducers/fixes/", "tests/quality/mutants_"),
    )
    missing = [place for place in places if not (ROOT / f"{place}{target}.py").exists()]
    assert missing == []


@pytest.mark.parametrize("target", rooms.discover())
def test_a_property_searches_every_origin_that_has_laws(target: str) -> None:
    laws = rooms.load(target).invariants
    wanted = {
        o for o in ORIGINS if any(law.labels_needed(o) is not None for law in laws)
    }
    searched = {
        keyword.value.value
        for node in ast.walk(ast.parse(sources()[f"fuzz.test_{target}"]))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "campaign.search"
        if ast.literal_eval(node.args[0]) == target
        for keyword in node.keywords
        if keyword.arg == "origin" and isinstance(keyword.value, ast.Constant)
    }
    assert searched == wanted


def test_what_is_recorded_of_the_platform_is_what_was_asked_for() -> None:
    typed_in = [
        name
        for name, text in sources().items()
        if 'platform="cpu"' in text and not name.startswith("fuzz.targets.")
    ]
    assert typed_in == []


def test_a_source_refers_to_no_document_that_is_not_here() -> None:
    missing = {
        (name, document)
        for name, text in sources().items()
        for document in re.findall(r"[\w./-]+\.md\b", text)
        if not (ROOT / document).exists() and document not in WRITTEN_BY_A_RUN
    }
    assert missing == set()


@pytest.mark.parametrize("target", rooms.discover())
def test_a_target_plants_a_control_for_a_law_of_its_own(target: str) -> None:
    # Importing a target would import vLLM: its controls are read as text.
    ids = {law.id for law in rooms.load(target).invariants}
    planted = [
        {keyword.arg: keyword.value for keyword in node.keywords}
        for node in ast.walk(ast.parse(sources()[f"fuzz.targets.{target}"]))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Control"
    ]
    assert planted
    for control in planted:
        assert ast.literal_eval(control["invariant"]) in ids
        assert ast.literal_eval(control["origin"]) in ORIGINS


@pytest.mark.parametrize("target", rooms.discover())
def test_a_target_has_planted_faults_of_both_kinds(target: str) -> None:
    module = import_module(f"tests.quality.mutants_{target}")
    ids = {law.id for law in rooms.load(target).invariants}
    written: tuple[Mutant, ...] = module.WRITTEN
    assert len(written) >= 3
    assert module.MECHANICAL
    assert len({mutant.name for mutant in written}) == len(written)
    for mutant in written:
        assert mutant.invariants, mutant.name
        assert set(mutant.invariants) <= ids, mutant.name
