"""Which targets there are, and their values and functions from the rooms' files.

A target is one file of the same name in each room. A folder of the user's in the same
form joins by lengthening the rooms' package paths. Only `target_module` imports vLLM.
"""

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, cast

import fuzz.targets
import invariants
import reproducers.fixes
import strategies
from fuzz.runtime import Control, Runtime
from invariants.model import Invariant, Judgement

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

# A name becomes part of module names, of fault IDs and of paths, and may come from a
# file.
TARGET_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")


class RoomsError(Exception):
    """A target that is not there or not complete; says what is missing where."""


class TargetModule(Protocol):
    """What `fuzz/targets/<t>.py` offers; importing it imports vLLM."""

    RUNTIME: Runtime
    CONTROLS: tuple[Control, ...]

    @property
    def absent(self) -> Callable[[], str | None]:
        """Says why the activated tree has no such path, None when it has."""

    @property
    def run(self) -> Callable[[Any], Any]:
        """Runs the real code on a case and gives the observation."""


@dataclass(frozen=True, kw_only=True)
class Rooms:
    """A target without its vLLM side.

    Attributes:
        name: The target's module name in every room.
        case: Type of its cases.
        observation: Type of its observations.
        invariants: Its laws.
        judge: Checks an observation of a case; a `Death` too where it is isolated.
        cases: Strategy of cases, with keyword-only bounds and ``origin``.
        control_cases: Strategy of cases that carry a planted fault themselves, None
            where the target has none.
    """

    name: str
    case: type[Any]
    observation: type[Any]
    invariants: tuple[Invariant, ...]
    judge: Callable[[Any, Any], Judgement]
    cases: "Callable[..., SearchStrategy[Any]]"
    control_cases: "Callable[[], SearchStrategy[Any]] | None" = None


def _room_paths() -> dict[str, list[str]]:
    """Each room's folder below a targets folder, and its package's search path."""
    packages: dict[str, ModuleType] = {
        "invariants": invariants,
        "strategies": strategies,
        "fuzz/targets": fuzz.targets,
        "reproducers/fixes": reproducers.fixes,
    }
    return {
        room: cast("list[str]", package.__path__) for room, package in packages.items()
    }


def _modules(paths: Iterable[str | Path]) -> set[str]:
    return {found.name for found in pkgutil.iter_modules([str(path) for path in paths])}


def discover() -> tuple[str, ...]:
    """Names of all targets, sorted; nothing is imported for it."""
    names = _modules(fuzz.targets.__path__)
    return tuple(sorted(name for name in names if TARGET_NAME.fullmatch(name)))


def add_folder(path: Path) -> tuple[str, ...]:
    """Let the targets of a user's folder join; give their names.

    The folder has the rooms' form: ``invariants/<t>.py``, ``strategies/<t>.py``,
    ``fuzz/targets/<t>.py``, ``fuzz/test_<t>.py`` and, where there is a fix,
    ``reproducers/fixes/<t>.py``. Shared modules of its own may stand beside them.
    Adding a folder again changes nothing.

    Raises:
        RoomsError: When the folder is not in that form, or a module of it has the
            name of one that is there already; then nothing is added.
    """
    folder = path.resolve()
    if not folder.is_dir():
        raise RoomsError(f"targets folder {path} is not a folder")
    rooms = _room_paths()
    names = sorted(filter(TARGET_NAME.fullmatch, _modules([folder / "fuzz/targets"])))
    if not names:
        raise RoomsError(
            f"targets folder {path} has no target: expected fuzz/targets/<name>.py in "
            "it (words of lower-case letters and digits, a letter first, joined by "
            "single underscores), beside "
            "invariants/<name>.py, strategies/<name>.py and fuzz/test_<name>.py"
        )
    needed = [
        f"{place}{name}.py"
        for name in names
        for place in ("invariants/", "strategies/", "fuzz/test_")
    ]
    missing = [file for file in needed if not (folder / file).is_file()]
    if missing:
        raise RoomsError(f"targets folder {path} lacks {', '.join(missing)}")
    for room, present in rooms.items():
        others = [place for place in present if Path(place) != folder / room]
        clash = _modules(others) & _modules([folder / room])
        if clash:
            raise RoomsError(
                f"targets folder {path}: {room}/ has modules of names that are taken: "
                f"{', '.join(sorted(clash))}; rename them"
            )
    for room, present in rooms.items():
        own = folder / room
        if own.is_dir() and str(own) not in present:
            present.append(str(own))
    importlib.invalidate_caches()
    return tuple(names)


def check_name(name: str) -> str:
    """The name itself, when it is a target's; it may come from a file.

    Raises:
        RoomsError: When it is not; nothing was imported.
    """
    known = discover()
    # The pattern first: a name must be harmless whatever a folder holds.
    if TARGET_NAME.fullmatch(name) is None or name not in known:
        raise RoomsError(
            f"no target {name[:80]!r}; known: {', '.join(known)}. Targets of your own "
            "join with --targets FOLDER"
        )
    return name


def _attributes(module: ModuleType, names: tuple[str, ...]) -> tuple[Any, ...]:
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise RoomsError(
            f"module {module.__name__} ({module.__file__}) lacks {', '.join(missing)}"
        )
    return tuple(getattr(module, name) for name in names)


def _imported(name: str) -> ModuleType:
    """A target's module that imports no vLLM; it may be a user's, and unfinished."""
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise RoomsError(
            f"module {name} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def value_types(name: str) -> tuple[type[Any], type[Any]]:
    """A target's case and observation types; imports its invariants only.

    Raises:
        RoomsError: When there is no such target, or its file lacks them.
    """
    module = _imported(f"invariants.{check_name(name)}")
    case, observation = _attributes(module, ("Case", "Observation"))
    return case, observation


def load(name: str) -> Rooms:
    """A target without its vLLM side; imports its invariants and strategies.

    Raises:
        RoomsError: When there is no such target, or a file of it lacks something.
    """
    case, observation = value_types(name)
    laws = _imported(f"invariants.{name}")
    drawing = _imported(f"strategies.{name}")
    catalogue, judge = _attributes(laws, ("INVARIANTS", "judge"))
    (cases,) = _attributes(drawing, ("cases",))
    strays = [law.id for law in catalogue if law.target != name]
    if strays:
        raise RoomsError(
            f"invariants.{name} declares laws of another target: {', '.join(strays)}; "
            f"their target must be {name!r}"
        )
    return Rooms(
        name=name,
        case=case,
        observation=observation,
        invariants=tuple(catalogue),
        judge=judge,
        cases=cases,
        control_cases=getattr(drawing, "control_cases", None),
    )


def target_module(name: str) -> TargetModule:
    """A target's vLLM side; the tree must be activated, for this imports vLLM.

    Raises:
        RoomsError: When there is no such target, or its file lacks something.
    """
    module = importlib.import_module(f"fuzz.targets.{check_name(name)}")
    _attributes(module, ("RUNTIME", "CONTROLS", "absent", "run"))
    return cast("TargetModule", module)


def import_everywhere(name: str) -> None:
    """Import a target's module of every room, and what its `absent` imports late.

    Raises:
        RoomsError: When there is no such target, or a file of it lacks something.
        Exception: What an import raises; the tree must be activated, as for
            `target_module`.
    """
    load(name)
    target_module(name).absent()
    if name in _modules(reproducers.fixes.__path__):
        importlib.import_module(f"reproducers.fixes.{name}")
