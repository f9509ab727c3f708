"""Trees whose import harms its process, refused before a run meets them itself."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fuzz.preflight import check_imports
from fuzz.trees import Tree, TreeError
from tests.saved_faults import toy_rooms
from tests.toy_tree import GOOD, Home, write_tree
from tests.toys import TOYS, marked, toy_tree


@pytest.fixture(autouse=True, scope="module")
def _rooms() -> Iterator[None]:
    with toy_rooms():
        yield


TARGETS = ("page_size", "toy")

HANG = "import time\ntime.sleep(600)\n"
SEGFAULT = "import ctypes\nctypes.string_at(0)\n"
EXIT = """
import os, sys
sys.stderr.write("no such device\\n")
sys.stderr.flush()
os._exit(0)
"""


def importing(folder: Path, source: str) -> Tree:
    """The toy's tree, with this in the module that only the toy target imports."""
    tree = toy_tree(folder)
    math_utils = folder / "site-packages/vllm/utils/math_utils.py"
    with math_utils.open("a", encoding="utf-8") as file:
        file.write(source)
    return tree


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (EXIT, r"importing target toy ended its process \(exit 0\);.*no such device"),
        (SEGFAULT, r"importing target toy ended its process \(signal 11\)"),
        ("import sys\nsys.exit()\n", r"target toy ended its process \(exit 0\)"),
    ],
)
def test_an_import_that_ends_its_process_is_refused(
    tmp_path: Path, source: str, told: str
) -> None:
    tree = importing(tmp_path, source)
    with pytest.raises(TreeError, match=told):
        check_imports(tree, targets=TARGETS, target_folders=(TOYS,))


def test_an_import_that_hangs_is_refused_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFUZZ_TEST_MARK", str(tmp_path))
    tree = importing(tmp_path, HANG)
    waits: list[str] = []
    with pytest.raises(TreeError, match="importing target toy took over 15 s"):
        check_imports(
            tree,
            targets=TARGETS,
            target_folders=(TOYS,),
            timeout_s=15.0,
            on_wait=lambda what, _seconds: waits.append(what),
        )
    assert waits[-1] == "target toy"
    assert marked(tmp_path) == set()


def test_an_import_that_raises_is_left_to_whoever_needs_it(tmp_path: Path) -> None:
    check_imports(
        importing(tmp_path, "raise ImportError('no operator')\n"),
        targets=TARGETS,
        target_folders=(TOYS,),
    )


def test_targets_that_a_run_leaves_out_are_not_imported(tmp_path: Path) -> None:
    tree = importing(tmp_path, EXIT)
    waits: list[str] = []
    check_imports(
        tree,
        targets=("page_size",),
        target_folders=(TOYS,),
        on_wait=lambda what, _seconds: waits.append(what),
    )
    assert set(waits) <= {"torch and triton", "target page_size"}


def test_a_release_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFUZZ_CACHE", str(tmp_path / "cache"))
    release = replace(toy_tree(tmp_path), kind="release")
    check_imports(release, targets=TARGETS)
    init = tmp_path / "site-packages/vllm/__init__.py"
    init.write_text(EXIT, encoding="utf-8")
    check_imports(release, targets=TARGETS)
    # A changed tree, and targets of one's own, are another matter.
    with pytest.raises(TreeError, match="ended its process"):
        check_imports(replace(release, digest="0" * 64), targets=TARGETS)
    with pytest.raises(TreeError, match="ended its process"):
        check_imports(release, targets=TARGETS, target_folders=(TOYS,))
    # What was refused is tried again.
    with pytest.raises(TreeError, match="ended its process"):
        check_imports(replace(release, digest="0" * 64), targets=TARGETS)


def test_a_release_in_a_cache_that_cannot_be_written_is_tried_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = replace(toy_tree(tmp_path), kind="release")
    not_a_folder = tmp_path / "file"
    not_a_folder.write_text("", encoding="utf-8")
    monkeypatch.setenv("KVFUZZ_CACHE", str(not_a_folder))
    check_imports(release, targets=TARGETS)
    init = tmp_path / "site-packages/vllm/__init__.py"
    init.write_text(EXIT, encoding="utf-8")
    with pytest.raises(TreeError, match="ended its process"):
        check_imports(release, targets=TARGETS)


@pytest.mark.parametrize("options", [(), ("-n", "1")])
def test_a_run_on_a_tree_that_ends_its_process_exits_2(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    home = Home(folder=tmp_path / "home")
    tree = write_tree(tmp_path / "tree", cdiv=GOOD + EXIT)
    done = home.run(tree, "--cases", "10", *options)
    assert done.returncode == 2, done.stdout
    assert "importing target toy ended its process (exit 0)" in done.stdout
    assert "no such device" in done.stdout
    report = json.loads((home.latest / "report.json").read_text())
    (problem,) = report["problems"]
    assert problem["where"] == "tree"
    assert "INTERNALERROR" not in done.stdout
