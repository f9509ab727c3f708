"""Has the kernels of a tree lowered in processes that may die or take too long.

Each worker takes one task after the other. What one was at when it ended, or when its
time was over, is given up; a new worker goes on with what is left of the task.
"""

from __future__ import annotations

import select
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from fuzz.kernels.protocol import Answer, Began, Done, Report, Setup, Task, Trouble
from fuzz.launch import module_command, project_environment
from fuzz.trees import Tree
from invariants.model import ending

# Importing may take long on a busy machine; a kernel takes a second, a few take ten.
START_TIMEOUT_S = 180.0
IMPORT_TIMEOUT_S = 60.0
KERNEL_TIMEOUT_S = 20.0
LAUNCH_TIMEOUT_S = 60.0
# How often the clock is looked at.
_POLL_S = 0.2
_WORKER = "fuzz.targets._kernel_survey"


@dataclass(eq=False)
class _Worker:
    """A worker process, its task, and what it is at since when."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    task: Task | None = None
    at: str = "starting"
    since: float = field(default_factory=time.monotonic)
    received: bytearray = field(default_factory=bytearray)
    answered: set[str] = field(default_factory=set)

    def send(self, task: Task) -> None:
        self.task = task
        self.answered.clear()
        self._note("starting" if self.at == "starting" else f"importing {task.module}")
        # One that has ended is seen by its closed channel.
        try:
            self.channel.sendall(msgspec.json.encode(task) + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return

    def reports(self) -> Iterator[Report]:
        """What it has said since; raises EOFError once it has ended."""
        try:
            chunk = self.channel.recv(1 << 20)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            raise EOFError
        self.received += chunk
        whole, newline, rest = self.received.rpartition(b"\n")
        self.received = rest
        for line in (whole + newline).splitlines():
            report = msgspec.json.decode(line, type=Report)
            if isinstance(report, Began):
                self._note(report.what)
            elif isinstance(report, Answer):
                self.answered.add(report.key)
            yield report

    def _note(self, what: str) -> None:
        self.at, self.since = what, time.monotonic()

    @property
    def timeout_s(self) -> float:
        """How long it may be at what it is at."""
        limits = {"starting": START_TIMEOUT_S, "importing": IMPORT_TIMEOUT_S}
        limits |= {"lowering": KERNEL_TIMEOUT_S, "launch": LAUNCH_TIMEOUT_S}
        return limits[self.at.split()[0]]

    def end(self) -> str:
        """Kill it, if it has not ended, and say how it ended."""
        self.process.kill()
        self.channel.close()
        return ending(self.process.wait())


def survey(
    tree: Tree,
    tasks: Sequence[Task],
    *,
    jobs: int,
    on_answer: Callable[[Answer], None],
    on_trouble: Callable[[str], None],
) -> None:
    """Work on tasks until all are done or given up.

    Args:
        tree: The tree that the workers activate.
        tasks: Those begun first are the first ones.
        jobs: Workers at a time.
        on_answer: Told of each kernel once; a launched one, of each launch.
        on_trouble: Told of launches of the catalogue that did not come to their end.

    Raises:
        RuntimeError: A worker cannot start; says what it wrote.
    """
    queue = deque(tasks)
    workers: list[_Worker] = []
    try:
        while queue or any(each.task for each in workers):
            for worker in workers:
                if worker.task is None and queue:
                    worker.send(queue.popleft())
            while queue and len(workers) < jobs:
                worker = _started(tree)
                worker.send(queue.popleft())
                workers.append(worker)
            for worker in _ready(workers):
                rest = _heard(worker, on_answer, on_trouble)
                if rest is not None:
                    workers.remove(worker)
                    if rest.kernels:
                        queue.appendleft(rest)
    finally:
        for worker in workers:
            worker.end()


def _started(tree: Tree) -> _Worker:
    ours, theirs = socket.socketpair()
    with theirs:
        setup = Setup(channel_fd=theirs.fileno(), tree=tree)
        process = subprocess.Popen(
            module_command(_WORKER, setup.text()),
            env=project_environment(),
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    return _Worker(process=process, channel=ours)


def _ready(workers: list[_Worker]) -> list[_Worker]:
    """Workers that have said something, have ended, or have no time left."""
    heard, _, _ = select.select([each.channel for each in workers], [], [], _POLL_S)
    now = time.monotonic()
    return [
        each
        for each in workers
        if each.channel in heard or (each.task and now - each.since > each.timeout_s)
    ]


def _heard(
    worker: _Worker,
    on_answer: Callable[[Answer], None],
    on_trouble: Callable[[str], None],
) -> Task | None:
    """Take in what a worker says; what is left of its task once it has ended."""
    if select.select([worker.channel], [], [], 0)[0]:
        try:
            for report in worker.reports():
                if isinstance(report, Answer):
                    on_answer(report)
                elif isinstance(report, Trouble):
                    on_trouble(report.what)
                elif isinstance(report, Done):
                    worker.task = None
        except EOFError:
            return _given_up(worker, "its process ended", on_answer, on_trouble)
        return None
    return _given_up(worker, f"over {worker.timeout_s:g} s", on_answer, on_trouble)


def _given_up(
    worker: _Worker,
    trouble: str,
    on_answer: Callable[[Answer], None],
    on_trouble: Callable[[str], None],
) -> Task:
    """End a worker; give up what it was at, and say what is left."""
    task = worker.task
    how = worker.end()
    if worker.at == "starting":
        raise RuntimeError(
            f"a worker for kernels did not start ({trouble}, {how}); "
            f"`{_WORKER}` imports vLLM: try `python -m pytest fuzz/` on this tree"
        )
    if task is None:
        return Task(module="")
    reason = f"{worker.at}: {trouble}" + (f" ({how})" if "ended" in trouble else "")
    if task.launching:
        on_trouble(f"{task.module}, {reason}; its other launches are left out")
    left = [each for each in task.kernels if each.key not in worker.answered]
    lost = left if worker.at.startswith("importing") else left[:1]
    for kernel in lost:
        on_answer(Answer(key=kernel.key, reason=reason))
    return Task(module=task.module, kernels=tuple(left[len(lost) :]))
