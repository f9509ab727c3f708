"""Replays saved faults on one tree, in a process of its own.

A process can import one vLLM, writes what it likes to its output, and may die of a
case: so a child replays, one line of JSON for each fault, and the parent is told of
every fault whatever becomes of the child.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fuzz.execution import Executor
from fuzz.launch import module_command, project_environment
from fuzz.preflight import IMPORT_TIMEOUT_S
from fuzz.rooms import add_folder, discover, import_everywhere
from fuzz.trees import activate, resolve
from invariants.model import decode, encode, ending
from reproducers.replay import Replay, errored, replay

POLL_S = 0.1
LOG_LINES = 12


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a child is to replay; paths are strings, for it crosses as JSON."""

    spec: str
    patches: str | None
    ids: tuple[str, ...]
    store: str
    target_folders: tuple[str, ...]
    results: str


def replay_in_tree(
    spec: str,
    *,
    patches: Path | None,
    ids: tuple[str, ...],
    store: Path,
    target_folders: tuple[Path, ...] = (),
    on_wait: Callable[[float], None],
    import_timeout_s: float = IMPORT_TIMEOUT_S,
) -> Iterator[Replay]:
    """Replay saved faults on a tree, each as soon as it is known.

    Args:
        spec: The tree, resolved before: a release, ``installed`` or a path.
        patches: Folder of a patch series.
        ids: Faults to replay, in this order.
        store: Folder of saved cases.
        target_folders: Folders of users' own targets.
        on_wait: Called about ten times a second with the seconds waited so far.
        import_timeout_s: For importing the tree and all targets.
    """
    left = ids
    while left:
        lines = 0
        with tempfile.TemporaryDirectory(prefix="kvfuzz-replay-") as folder:
            results = Path(folder, "results")
            results.touch()
            order = Order(
                spec=spec,
                patches=None if patches is None else str(patches.resolve()),
                ids=left,
                store=str(store.resolve()),
                target_folders=tuple(str(each.resolve()) for each in target_folders),
                results=str(results),
            )
            with Path(folder, "log").open("w+b") as log:
                child = _start(order, log.fileno())
                try:
                    for line in _lines(results, child, on_wait, import_timeout_s):
                        lines += 1
                        if lines > 1:
                            yield decode(line, Replay)
                except TimeoutError:
                    cause = f"was still importing the tree after {import_timeout_s:g} s"
                else:
                    cause = f"ended ({ending(child.wait())})"
                finally:
                    child.kill()
                    child.wait()
                left = left[max(0, lines - 1) :]
                log.seek(0)
                words = _last_lines(log.read())
        if left:
            # A process that could not even begin will not do better for the others.
            count = 1 if lines else len(left)
            for id_ in left[:count]:
                yield errored(id_, f"its process {cause}: {words}")
            left = left[count:]


def _start(order: Order, log_fd: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        module_command("reproducers.in_tree", encode(order)),
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        env=project_environment(),
    )


def _lines(
    results: Path,
    child: "subprocess.Popen[bytes]",
    on_wait: Callable[[float], None],
    first_timeout_s: float,
) -> Iterator[str]:
    """Whole lines of a growing file, until its writer has ended.

    Raises:
        TimeoutError: When the first one is not there in time.
    """
    started = time.monotonic()
    begun = False
    with results.open("rb") as file:
        while True:
            ended = child.poll() is not None
            while (line := file.readline()).endswith(b"\n"):
                yield line.decode()
                started, begun = time.monotonic(), True
            file.seek(-len(line), os.SEEK_CUR)
            if ended:
                return
            if not begun and time.monotonic() - started > first_timeout_s:
                raise TimeoutError
            on_wait(time.monotonic() - started)
            time.sleep(POLL_S)


def _last_lines(log: bytes) -> str:
    lines = log.decode(errors="replace").strip().splitlines()
    return "\n".join(lines[-LOG_LINES:])


def main(order_text: str) -> None:
    """The child: an empty line when all is imported, then one for each replay."""
    order = decode(order_text, Order)
    folders = tuple(map(Path, order.target_folders))
    for folder in folders:
        add_folder(folder)
    patches = None if order.patches is None else Path(order.patches)
    tree = resolve(order.spec, patches=patches)
    activate(tree)
    with (
        Executor(tree=tree, target_folders=folders) as executor,
        Path(order.results).open("ab", buffering=0) as results,
    ):
        for name in discover():
            print(f"importing target {name}", file=sys.stderr, flush=True)
            # Whatever replay needs that target tells what its import raises.
            with suppress(Exception):
                import_everywhere(name)
        results.write(b"\n")
        for id_ in order.ids:
            outcome = replay(id_, executor, store=Path(order.store))
            results.write(msgspec.json.encode(outcome, order="sorted") + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
