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
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fuzz.execution import Executor
from fuzz.launch import module_command, project_environment
from fuzz.rooms import add_folder
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
) -> Iterator[Replay]:
    """Replay saved faults on a tree, each as soon as it is known.

    Args:
        spec: The tree, resolved before: a release, ``installed`` or a path.
        patches: Folder of a patch series.
        ids: Faults to replay, in this order.
        store: Folder of saved cases.
        target_folders: Folders of users' own targets.
        on_wait: Called about ten times a second with the seconds waited so far.
    """
    left = ids
    while left:
        answered = 0
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
                    for line in _lines(results, child, on_wait):
                        answered += 1
                        yield decode(line, Replay)
                finally:
                    child.kill()
                    child.wait()
                left = left[answered:]
                log.seek(0)
                words = _last_lines(log.read())
        if left:
            # A process that could not even begin will not do better for the others.
            count = 1 if answered or child.returncode < 0 else len(left)
            for id_ in left[:count]:
                cause = ending(child.returncode)
                yield errored(id_, f"its process ended ({cause}): {words}")
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
    results: Path, child: "subprocess.Popen[bytes]", on_wait: Callable[[float], None]
) -> Iterator[str]:
    """Whole lines of a growing file, until its writer has ended."""
    started = time.monotonic()
    with results.open("rb") as file:
        while True:
            ended = child.poll() is not None
            while (line := file.readline()).endswith(b"\n"):
                yield line.decode()
                started = time.monotonic()
            file.seek(-len(line), os.SEEK_CUR)
            if ended:
                return
            on_wait(time.monotonic() - started)
            time.sleep(POLL_S)


def _last_lines(log: bytes) -> str:
    lines = log.decode(errors="replace").strip().splitlines()
    return "\n".join(lines[-LOG_LINES:])


def main(order_text: str) -> None:
    """The child: replay what the order names, a line of results for each."""
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
        for id_ in order.ids:
            outcome = replay(id_, executor, store=Path(order.store))
            results.write(msgspec.json.encode(outcome, order="sorted") + b"\n")


if __name__ == "__main__":
    main(sys.argv[1])
