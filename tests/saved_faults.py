"""Faults of the toy target, saved, and trees that show them or do not.

The toy's rooms join this process for as long as a test module runs, and no longer, for
other tests must not see them.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fuzz.rooms import Rooms, add_folder, load
from invariants.model import Death, Violation
from reproducers.case_file import FoundOn
from reproducers.store import save

TOYS = Path(__file__).parent / "targets_folder"
ROOMS = ("invariants", "strategies", "fuzz.targets", "reproducers.fixes")
GOOD = "def cdiv(a, b):\n    return -(a // -b)\n"
BAD = "def cdiv(a, b):\n    return a // b\n"


@contextmanager
def toy_rooms() -> Iterator[Rooms]:
    """The toy target, for a while."""
    packages = [importlib.import_module(name) for name in ROOMS]
    before = [list(package.__path__) for package in packages]
    add_folder(TOYS)
    try:
        yield load("toy")
    finally:
        for package, paths in zip(packages, before, strict=True):
            package.__path__[:] = paths
            vars(package).pop("toy", None)
        for name in ROOMS:
            sys.modules.pop(f"{name}.toy", None)


def write_tree(folder: Path, division: str) -> Path:
    """A vLLM of three files; gives the folder that contains `vllm/`."""
    utils = folder / "vllm" / "utils"
    utils.mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text("", encoding="utf-8")
    (utils / "__init__.py").write_text("", encoding="utf-8")
    (utils / "math_utils.py").write_text(division, encoding="utf-8")
    return folder


def found_on(spec: str = "0.33.0", *, seed: int = 7) -> FoundOn:
    """Circumstances that no test depends on."""
    return FoundOn(
        spec=spec,
        version="0.33.0",
        digest="ab" * 32,
        patches=(),
        platform="cpu",
        torch="2.13.0",
        triton="3.7.1",
        python="3.11.9",
        hypothesis="6.170.0",
        seed=seed,
    )


def violation(rooms: Rooms, case: Any, *, cause: str = "signal 11") -> Violation:
    """What the judge says of a division that rounds down, or of a death."""
    seen = (
        rooms.observation(blocks=case.tokens // case.block_size, text="")
        if case.deed == "divide"
        else Death(cause=cause, detail="")
    )
    (found,) = rooms.judge(case, seen).violations
    return found


def save_toy(
    store: Path,
    rooms: Rooms,
    *,
    tokens: int = 7,
    deed: str = "divide",
    spec: str = "0.33.0",
    fix: str = "verified",
    seed: int = 7,
    cause: str = "signal 11",
) -> Path:
    """Save a fault of the toy; its folder."""
    case = rooms.case(tokens=tokens, block_size=4, deed=deed)
    found = violation(rooms, case, cause=cause)
    (law,) = (each for each in rooms.invariants if each.id == found.invariant)
    return save(
        store=store,
        invariant=law,
        violation=found,
        case=case,
        found_on=found_on(spec, seed=seed),
        fix=fix,
    ).folder
