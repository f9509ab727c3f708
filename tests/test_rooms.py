"""Finding targets, loading them, and letting a user's own folder join."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fuzz.targets
import invariants
import reproducers.fixes
import strategies
from fuzz.rooms import RoomsError, add_folder, check_name, discover, load
from tests.toys import TOYS

ROOMS = (invariants, strategies, fuzz.targets, reproducers.fixes)


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the toy's folder; rooms and modules are as before afterwards."""
    for room in ROOMS:
        monkeypatch.setattr(room, "__path__", list(room.__path__))
    before = set(sys.modules)
    yield Path(shutil.copytree(TOYS, tmp_path / "toys"))
    for name in set(sys.modules) - before:
        if name.rpartition(".")[0] in {room.__name__ for room in ROOMS}:
            del sys.modules[name]


def paths() -> list[list[str]]:
    return [list(room.__path__) for room in ROOMS]


def test_targets_are_the_public_modules_sorted() -> None:
    names = discover()
    assert list(names) == sorted(names)
    assert not any(name.startswith("_") for name in names)
    folder = Path(fuzz.targets.__file__ or "").parent
    assert set(names) == {
        path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")
    }


def test_a_name_that_no_fault_id_could_hold_is_none(toys: Path) -> None:
    for place in ("invariants/", "strategies/", "fuzz/targets/", "fuzz/test_"):
        (toys / f"{place}toy.py").rename(toys / f"{place}toy__2.py")
    with pytest.raises(RoomsError, match=r"has no target: .*single underscores"):
        add_folder(toys)


def test_a_folder_joins_once(toys: Path) -> None:
    before = discover()
    assert add_folder(toys) == ("toy",)
    assert set(discover()) == {*before, "toy"}
    after = paths()
    assert add_folder(toys) == ("toy",)
    assert paths() == after
    rooms = load("toy")
    assert [law.id for law in rooms.invariants] == ["TOY-BLOCKS", "TOY-ALIVE"]
    assert rooms.case.__module__ == "invariants.toy"
    assert rooms.observation.__name__ == "Observation"


def test_loading_imports_no_subject() -> None:
    program = (
        "import sys; from pathlib import Path; from fuzz import rooms;"
        "rooms.add_folder(Path(sys.argv[1])); rooms.load('toy');"
        "print({'vllm', 'torch', 'fuzz.targets.toy'} & set(sys.modules))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program, str(TOYS)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert printed.strip() == "set()"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("invariants/toy.py", "lacks invariants/toy.py$"),
        ("strategies/toy.py", "lacks strategies/toy.py$"),
        ("fuzz/test_toy.py", "lacks fuzz/test_toy.py$"),
        ("fuzz/targets/toy.py", "has no target: expected fuzz/targets/<name>.py"),
    ],
)
def test_a_missing_file_is_named(toys: Path, file: str, message: str) -> None:
    before = paths()
    (toys / file).unlink()
    with pytest.raises(RoomsError, match=message):
        add_folder(toys)
    assert paths() == before


def test_a_target_without_a_fix_may_join(toys: Path) -> None:
    shutil.rmtree(toys / "reproducers")
    assert add_folder(toys) == ("toy",)


@pytest.mark.parametrize("room", ["invariants", "strategies", "fuzz/targets"])
def test_a_name_that_is_taken_is_refused(toys: Path, tmp_path: Path, room: str) -> None:
    before = paths()
    other = Path(shutil.copytree(toys, tmp_path / "other"))
    for each in ("invariants", "strategies", "fuzz/targets", "reproducers/fixes"):
        (other / each / "toy.py").rename(other / each / "toy2.py")
    (other / "fuzz/test_toy.py").rename(other / "fuzz/test_toy2.py")
    (other / room / "toy.py").touch()
    if room == "fuzz/targets":
        for each in ("invariants/toy.py", "strategies/toy.py", "fuzz/test_toy.py"):
            (other / each).touch()
    add_folder(toys)
    joined = paths()
    assert joined != before
    with pytest.raises(RoomsError, match=r"names that are taken: toy; rename"):
        add_folder(other)
    assert paths() == joined


def test_a_module_of_ours_is_not_hidden(toys: Path) -> None:
    (toys / "invariants/model.py").touch()
    with pytest.raises(RoomsError, match=r"invariants/ has modules .* taken: model"):
        add_folder(toys)


def test_a_path_that_is_no_folder_is_refused(toys: Path) -> None:
    with pytest.raises(RoomsError, match="nowhere is not a folder"):
        add_folder(toys / "nowhere")


@pytest.mark.parametrize(
    "name",
    ["", "model", "_private", "toy.run", "../toy", "Toy", "toy\n", "a" * 500, "toy_"],
)
def test_a_name_from_a_file_is_checked(toys: Path, name: str) -> None:
    add_folder(toys)
    with pytest.raises(RoomsError, match=r"no target .*; known: .*toy"):
        check_name(name)
    assert check_name("toy") == "toy"


@pytest.mark.parametrize(
    ("file", "old", "message"),
    [
        ("invariants/toy.py", "class Observation", "lacks Observation$"),
        ("invariants/toy.py", "INVARIANTS = ", "lacks INVARIANTS$"),
        ("strategies/toy.py", "def cases", "lacks cases$"),
        ("invariants/toy.py", 'target="toy"', "laws of another target: TOY-BLOCKS"),
    ],
)
def test_what_a_file_lacks_is_named(
    toys: Path, file: str, old: str, message: str
) -> None:
    path = toys / file
    content = path.read_text(encoding="utf-8")
    renamed = old.replace("Observation", "Other").replace('"toy"', '"joy"')
    renamed = renamed.replace("INVARIANTS", "LAWS").replace("cases", "draws")
    content = content.replace("Observation |", "object |").replace(
        "isinstance(observation, Death)", "True"
    )
    path.write_text(content.replace(old, renamed), encoding="utf-8")
    add_folder(toys)
    with pytest.raises(RoomsError, match=message):
        load("toy")
