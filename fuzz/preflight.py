"""Whether a tree can be imported at all, tried in a process that may die of it.

A tree whose import ends its process, or hangs, would take the run along, and with it
the verdict. So a throwaway zygote imports the run's targets first, with a time limit.
"""

import hashlib
import importlib.metadata
import platform
import select
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fuzz._protocol import Setup
from fuzz._watch import IsolationError, Zygote, ZygoteDied
from fuzz.runtime import Runtime
from fuzz.trees import Tree, TreeError
from fuzz.trees.tree import default_cache

# For all imports together; those of a release take about 10 s on a quiet machine.
IMPORT_TIMEOUT_S = 180.0
POLL_S = 0.5
PROJECT = Path(__file__).parents[1]
# Whose files are imported with a tree.
SOURCES = ("fuzz", "invariants", "strategies", "reproducers/fixes")


def check_imports(
    tree: Tree,
    *,
    targets: tuple[str, ...],
    target_folders: tuple[Path, ...] = (),
    timeout_s: float = IMPORT_TIMEOUT_S,
    on_wait: Callable[[str, float], None] = lambda _what, _seconds: None,
) -> None:
    """Import targets on a tree, in a process of its own.

    An import that raises is let pass: it harms nobody, and whoever needs that target
    tells of it. A release that could be imported is not tried again until the harness
    or an installed package changes; other trees have files that no digest covers.

    Args:
        tree: What is to be imported.
        targets: Names of the targets that the run needs; others cost it nothing.
        target_folders: Folders of the user's own targets, added before.
        timeout_s: For all imports together.
        on_wait: Told twice a second what is being imported, and how many seconds all
            has taken so far.

    Raises:
        TreeError: When an import ended the process, or was not over in time.
    """
    record: Path | None = None
    if tree.kind == "release" and not target_folders:
        record = default_cache() / "imported" / _circumstances(tree, targets)
        if record.exists():
            return
    _try_imports(tree, targets, target_folders, timeout_s, on_wait)
    if record is not None:
        # A cache that was filled for others to read still serves; without a record,
        # its releases are tried at every run.
        with suppress(OSError):
            record.parent.mkdir(parents=True, exist_ok=True)
            record.touch()


def _try_imports(
    tree: Tree,
    targets: tuple[str, ...],
    target_folders: tuple[Path, ...],
    timeout_s: float,
    on_wait: Callable[[str, float], None],
) -> None:
    here = Runtime()
    setup = Setup(
        control_fd=-1,
        parent_pid=0,
        tree=tree,
        platform=here.platform,
        triton=here.triton,
        target_folders=tuple(str(folder.resolve()) for folder in target_folders),
    )
    began = time.monotonic()
    what = "torch and triton"
    error: ZygoteDied | TimeoutError | None = None
    zygote = Zygote(setup)

    def answered() -> None:
        while not select.select([zygote.control], [], [], POLL_S)[0]:
            seconds = time.monotonic() - began
            if seconds > timeout_s:
                raise TimeoutError
            on_wait(what, seconds)
        with suppress(IsolationError):
            zygote.report(timeout_s)

    try:
        answered()
        for name in targets:
            what = f"target {name}"
            zygote.order(name, trial=True)
            answered()
    except (ZygoteDied, TimeoutError) as raised:
        error = raised
    finally:
        words = zygote.last_words() or "none"
        ended = isinstance(error, ZygoteDied)
        how, _, _ = zygote.close(ending_itself=ended).partition(":")
    if error is None:
        return
    trouble = f"ended its process ({how})" if ended else f"took over {timeout_s:g} s"
    raise TreeError(
        f"the tree {tree.spec} cannot be tested: importing {what} {trouble}; last "
        f"lines of stderr: {words}"
    ) from error


def _circumstances(tree: Tree, targets: tuple[str, ...]) -> str:
    """A hash of what decides how importing targets on a release goes."""
    installed = sorted(
        f"{each.name} {each.version}" for each in importlib.metadata.distributions()
    )
    lines = (tree.digest, platform.python_version(), *targets, *installed)
    digest = hashlib.sha256("\n".join(lines).encode())
    for room in SOURCES:
        for path in sorted((PROJECT / room).rglob("*.py")):
            digest.update(path.relative_to(PROJECT).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:32]
