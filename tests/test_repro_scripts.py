"""repro.py files: they stand alone, and say what the saved case says.

Each is run from another folder, with packages on its path that raise when anything
imports this project.
"""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import msgspec
import pytest

from fuzz.rooms import Rooms, discover, load
from fuzz.trees import DEFAULT_RELEASE, resolve
from invariants.model import FaultKey, Origin, digest, encode
from reproducers.case_file import Saved
from reproducers.flatten import PACKAGES, ScriptError
from reproducers.script import PACKAGED, project_roots, script
from reproducers.store import STORE, entries, read
from tests.saved_faults import BAD, GOOD, found_on, save_toy, toy_rooms, write_tree

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def rooms() -> Iterator[Rooms]:
    with toy_rooms() as rooms:
        yield rooms


@pytest.fixture(scope="module")
def poison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages with the names of ours that cannot be imported."""
    folder = tmp_path_factory.mktemp("poison")
    for name in PACKAGES:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(
            "raise RuntimeError('the script imports the project')\n", encoding="utf-8"
        )
    return folder


def packages(text: str, poison: Path) -> Path:
    """What a script finds of this project: nothing, unless it says that it needs it."""
    return PROJECT if PACKAGED in text else poison


def run(
    path: Path, poison: Path, *arguments: str
) -> "subprocess.CompletedProcess[str]":
    found = packages(path.read_text(encoding="utf-8"), poison)
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=poison.parent,
        env={**os.environ, "PYTHONPATH": str(found)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_poison_works(poison: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import invariants.model"],
        cwd=poison.parent,
        env={**os.environ, "PYTHONPATH": str(poison)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the script imports the project" in done.stderr


def test_a_script_shows_the_fault_and_its_fix(
    tmp_path: Path, rooms: Rooms, poison: Path
) -> None:
    folder = save_toy(tmp_path / "store", rooms)
    tree = write_tree(tmp_path / "tree", BAD)
    done = run(folder / "repro.py", poison, "--vllm", str(tree))
    assert done.stdout.splitlines() == [
        f"{folder.name}: TOY-BLOCKS at cdiv",
        "BROKEN ARM: fails: 1 blocks of 4 for 7",
        "FIXED ARM: holds: TOY-BLOCKS holds (divide with remainder)",
    ]
    assert (done.returncode, done.stderr) == (1, "")


def test_a_script_on_a_sound_tree_ends_with_0(
    tmp_path: Path, rooms: Rooms, poison: Path
) -> None:
    folder = save_toy(tmp_path / "store", rooms)
    tree = write_tree(tmp_path / "tree", GOOD)
    done = run(folder / "repro.py", poison, "--vllm", str(tree))
    assert "BROKEN ARM: holds: TOY-BLOCKS holds" in done.stdout
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("deed", "cause"),
    [
        ("segfault", "signal 11"),
        ("hang", "timed out"),
        ("hog", "memory limit"),
    ],
)
def test_a_death_is_what_the_script_observes(
    tmp_path: Path, rooms: Rooms, poison: Path, deed: str, cause: str
) -> None:
    folder = save_toy(tmp_path / "store", rooms, deed=deed, cause=cause)
    tree = write_tree(tmp_path / "tree", GOOD)
    path = folder / "repro.py"
    # Filling memory may take long where others are at work; hanging need not.
    limit_s = 300 if deed == "hog" else 2
    text, count = re.subn(
        r"timeout_s=[\d.]+", f"timeout_s={limit_s}", path.read_text(encoding="utf-8")
    )
    assert count == 1
    path.write_text(text, encoding="utf-8")
    done = run(path, poison, "--vllm", str(tree))
    assert f"BROKEN ARM: fails: the process ended: {cause}" in done.stdout
    assert done.returncode == 1


def test_another_death_than_the_recorded_one_is_no_verdict(
    tmp_path: Path, rooms: Rooms, poison: Path
) -> None:
    folder = save_toy(tmp_path / "store", rooms, deed="exit", cause="signal 11")
    tree = write_tree(tmp_path / "tree", GOOD)
    done = run(folder / "repro.py", poison, "--vllm", str(tree))
    assert "BROKEN ARM: differs: TOY-ALIVE is broken in another way" in done.stdout
    assert done.returncode == 2


def test_a_fault_of_the_script_itself_is_an_error(
    tmp_path: Path, rooms: Rooms, poison: Path
) -> None:
    folder = save_toy(tmp_path / "store", rooms, deed="error", cause="signal 11")
    tree = write_tree(tmp_path / "tree", GOOD)
    done = run(folder / "repro.py", poison, "--vllm", str(tree))
    assert "BROKEN ARM: errored:" in done.stdout
    assert "LookupError: the harness's own fault" in done.stdout
    assert done.returncode == 2


def test_a_tree_without_the_code_is_not_applicable(
    tmp_path: Path, rooms: Rooms, poison: Path
) -> None:
    folder = save_toy(tmp_path / "store", rooms)
    tree = write_tree(tmp_path / "tree", "")
    done = run(folder / "repro.py", poison, "--vllm", str(tree))
    assert "not applicable: vllm.utils.math_utils has no cdiv" in done.stdout
    assert "FIXED ARM" not in done.stdout
    assert done.returncode == 0


def test_a_tree_that_cannot_be_imported_is_an_error(
    tmp_path: Path, rooms: Rooms, poison: Path
) -> None:
    folder = save_toy(tmp_path / "store", rooms)
    tree = write_tree(tmp_path / "tree", "raise ImportError('no such operator')\n")
    done = run(folder / "repro.py", poison, "--vllm", str(tree))
    assert "BROKEN ARM: errored: the process ended (exit 1)" in done.stdout
    assert "ImportError: no such operator" in done.stdout
    assert done.returncode == 2


def test_a_script_without_vllm_says_what_to_do(
    tmp_path: Path, rooms: Rooms, poison: Path
) -> None:
    folder = save_toy(tmp_path / "store", rooms)
    done = run(folder / "repro.py", poison, "--vllm", str(tmp_path))
    assert "no vllm/__init__.py in this folder; give the" in done.stdout
    assert done.returncode == 2
    # -S leaves out the environment's packages, so that no vLLM is installed.
    code = (
        "import sys; sys.path += [p for p in {!r}]; sys.modules['vllm'] = None;"
        "import runpy; sys.argv = ['repro.py'];"
        "runpy.run_path({!r}, run_name='__main__')"
    ).format(sys.path, str(folder / "repro.py"))
    bare = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "vLLM is not installed here; install it, or give --vllm PATH" in bare.stdout
    assert bare.returncode == 2


def test_a_script_says_what_it_is_and_how_to_run_it(
    tmp_path: Path, rooms: Rooms
) -> None:
    folder = save_toy(tmp_path / "store", rooms, deed="segfault")
    text = (folder / "repro.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(text)) or ""
    for said in (
        f"{folder.name}: TOY-ALIVE is broken at cdiv.",
        "Dividing does not end the process.",
        "Seen:      the process ended: signal 11",
        "Found on:  vLLM 0.33.0 (tree abababababababab), torch 2.13.0, triton 3.7.1",
        "python repro.py --vllm PATH",
        "1 when the fault shows, 0 when it does not",
        "That a process is killed (signal 11, say) is the\nexpected outcome",
        f"python -m reproducers script {folder.name}",
    ):
        assert said in docstring
    assert text.index('"deed": "segfault"') < text.index("import hashlib")
    assert max(map(len, docstring.splitlines())) <= 88


def test_a_script_imports_nothing_of_this_project(tmp_path: Path, rooms: Rooms) -> None:
    folder = save_toy(tmp_path / "store", rooms)
    tree = ast.parse((folder / "repro.py").read_text(encoding="utf-8"))
    modules = [
        name
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    assert "vllm.utils" in modules
    assert [each for each in modules if each.split(".")[0] in PACKAGES] == []


GENERATE = """
import sys
from tests.saved_faults import toy_rooms
from reproducers.script import script
from reproducers.store import read
from pathlib import Path
with toy_rooms():
    sys.stdout.write(script(read(Path(sys.argv[1]), sys.argv[2])))
loaded = {"vllm", "torch", "triton"} & set(sys.modules)
assert not loaded, loaded
"""


def test_generation_is_deterministic_and_imports_nothing_heavy(
    tmp_path: Path, rooms: Rooms
) -> None:
    folder = save_toy(tmp_path, rooms)
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", GENERATE, str(tmp_path), folder.name],
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == (folder / "repro.py").read_text(encoding="utf-8")


def sample(target: str) -> Saved:
    """A saved case of a target: the simplest that its strategy draws."""
    rooms = load(target)
    law = rooms.invariants[0]
    origin: Origin = "contract" if law.contract is not None else "wired"
    case = hypothesis.find(
        rooms.cases(origin=origin),
        lambda _case: True,
        settings=hypothesis.settings(database=None, deadline=None),
    )
    key = FaultKey(
        target=target, invariant=law.id, origin=origin, site="any", exception=""
    )
    return Saved(
        format_version=1,
        id=key.id,
        target=target,
        invariant=law.id,
        origin=origin,
        site="any",
        exception="",
        statement=law.statement,
        severity=law.severity,
        message="a sample",
        evidence={},
        case=msgspec.json.decode(encode(case)),
        case_digest=digest(case),
        found_on=found_on(),
        fix="none",
        found="2026-01-01",
    )


@pytest.mark.parametrize("target", discover())
def test_every_target_can_stand_alone(
    tmp_path: Path, poison: Path, target: str
) -> None:
    path = tmp_path / "repro.py"
    path.write_text(script(sample(target)), encoding="utf-8")
    done = run(path, poison, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--vllm PATH" in done.stdout
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet"]
    names = subprocess.run(
        [*ruff, "--select", "F821,F822", "--output-format=concise", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    # Names that are used and defined nowhere.
    assert names.stdout == ""
    assert names.returncode == 0, names.stderr


SAVED = [each for each in entries(STORE) if isinstance(each, Saved)]
# Two arms of half a minute each: one saved fault of each target is run alone here. The
# text of all of them is checked below.
RUN_ALONE = sorted({each.target: each.id for each in SAVED}.values())
# Targets of which no saved case is run below.
UNSAVED = sorted({*discover()} - {each.target for each in SAVED})


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize("target", UNSAVED)
def test_every_target_runs_alone_on_the_default_release(
    tmp_path: Path, poison: Path, target: str
) -> None:
    path = tmp_path / "repro.py"
    path.write_text(script(sample(target)), encoding="utf-8")
    tree = resolve(DEFAULT_RELEASE)
    done = run(path, poison, "--vllm", str(tree.root))
    assert "BROKEN ARM: " in done.stdout
    assert "errored" not in done.stdout
    assert "FIXED ARM: unfit: nobody has written a fix for any" in done.stdout


@pytest.mark.subject
@pytest.mark.network
@pytest.mark.parametrize("id_", RUN_ALONE)
def test_a_saved_fault_of_each_target_shows_itself_alone_where_it_was_found(
    poison: Path, id_: str
) -> None:
    saved = read(STORE, id_)
    path = STORE / id_ / "repro.py"
    done = run(path, poison, "--vllm", str(resolve(saved.found_on.spec).root))
    assert "BROKEN ARM: fails: " in done.stdout
    if saved.fix == "verified":
        assert "FIXED ARM: holds: " in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("id_", [each.id for each in SAVED])
def test_every_saved_script_is_what_its_case_and_the_sources_give(id_: str) -> None:
    text = (STORE / id_ / "repro.py").read_text(encoding="utf-8")
    assert text == script(read(STORE, id_)), (
        "python -m reproducers script brings it up to date"
    )


COLLISIONS: dict[str, tuple[dict[str, str | None], str]] = {
    "a name defined twice": (
        {"fuzz/targets/toy.py": "def judge():\n    pass\n"},
        r"'judge' is defined .* in invariants.toy and defined .* in fuzz.targets.toy",
    ),
    "a name imported from two places": (
        {"fuzz/targets/toy.py": "from collections import abc as dataclass\n"},
        r"'dataclass' is .* in one file they need distinct names",
    ),
    "a name bound by a with": (
        {"fuzz/targets/toy.py": "with open('x') as encode:\n    pass\n"},
        r"'encode' is defined \(invariants.model\)",
    ),
    "a name bound by a loop in a condition": (
        {"fuzz/targets/toy.py": "if 1:\n    for encode in ():\n        pass\n"},
        r"'encode' is defined \(invariants.model\)",
    ),
    "a builtin hidden": (
        {"fuzz/targets/toy.py": "def sum(values):\n    pass\n"},
        "fuzz.targets.toy hides Python's own 'sum'",
    ),
    "a module imported whole": (
        {"fuzz/targets/toy.py": "import invariants.model\n"},
        "fuzz.targets.toy:2: `import invariants.model`; write `from",
    ),
    "a name imported otherwise": (
        {"fuzz/targets/toy.py": "from invariants.model import encode as text\n"},
        "without `as`",
    ),
    "all names imported": (
        {"fuzz/targets/toy.py": "from invariants.model import *\n"},
        r"without `as` or `\*`",
    ),
    "a module from its package": (
        {"fuzz/targets/toy.py": "from invariants import model\n"},
        "must be of the form",
    ),
    "a relative import": (
        {"fuzz/targets/toy.py": "from . import boot\n"},
        "a relative import; name the module in full",
    ),
    "two statements on a line": (
        {"fuzz/targets/toy.py": "from invariants.model import encode; x = 1\n"},
        "two statements on one line",
    ),
    "a module that is not there": (
        {"fuzz/targets/toy.py": "from invariants.none import encode\n"},
        "there is no module invariants.none",
    ),
    "no Python": ({"fuzz/targets/toy.py": "def\n"}, "invalid syntax"),
    "no runtime": ({"fuzz/targets/toy.py": None}, "assigns no RUNTIME"),
}


@pytest.mark.parametrize("name", COLLISIONS)
def test_modules_that_cannot_stand_in_one_file_are_refused(
    tmp_path: Path, rooms: Rooms, name: str
) -> None:
    saved = read(tmp_path / "store", save_toy(tmp_path / "store", rooms).name)
    files, message = COLLISIONS[name]
    for file, text in files.items():
        path = tmp_path / "root" / file
        path.parent.mkdir(parents=True)
        runtime = "RUNTIME = 1\n" if text is not None else ""
        path.write_text(f"{runtime}{text or ''}", encoding="utf-8")
    with pytest.raises(ScriptError, match=message):
        script(saved, roots=(tmp_path / "root", *project_roots()))


def test_imports_of_the_project_are_cut_wherever_they_stand(
    tmp_path: Path, rooms: Rooms
) -> None:
    saved = read(tmp_path / "store", save_toy(tmp_path / "store", rooms).name)
    text = """\
from typing import TYPE_CHECKING

from invariants.model import (
    encode,
    digest,
)
from fuzz.runtime import Runtime

if TYPE_CHECKING:
    from invariants.toy import Case

RUNTIME = Runtime(isolated=True)


def later() -> None:
    from invariants.model import decode  # noqa

    decode("", int)


def run(case: Case) -> str:
    if case:
        from fuzz.edits import applied
    return \'\'\'text


from fuzz.edits import applied



blank lines\'\'\'
"""
    path = tmp_path / "root" / "fuzz" / "targets" / "toy.py"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    made = script(saved, roots=(tmp_path / "root", *project_roots()))
    assert "if TYPE_CHECKING:\n    pass\n" in made
    assert "def later() -> None:\n\n    decode" in made
    assert "    if case:\n        pass\n    return" in made
    assert "text\n\n\nfrom fuzz.edits import applied\n\n\n\nblank lines" in made
    assert made.count("from invariants") == 0
