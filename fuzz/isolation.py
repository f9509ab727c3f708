"""Runs cases that may kill their process in another one, and says how it ended.

A zygote (`fuzz._zygote`, started by exec) holds the imported tree and forks a child
that runs case after case. When a child dies, the case in flight is known; whether it
or an earlier case of that child is to blame is settled in fresh children.
"""

import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import msgspec

import fuzz
from fuzz._zygote import (
    PACKET_BYTES,
    Ended,
    Failed,
    Forked,
    Order,
    Ready,
    Report,
    Request,
    Setup,
    wire_edits,
)
from fuzz.edits import Edit
from fuzz.runtime import Runtime
from fuzz.trees import Tree
from invariants.model import Death

# A child takes so many cases, which bounds the search for a culprit.
CASES_PER_CHILD = 256
# Restarts of a zygote that was killed, over an isolation's life.
RESTARTS_MAX = 3
# How often a running child's memory is looked at.
POLL_S = 0.02
# Starting: importing torch, the tree and a target. Ending: killing and reaping.
START_TIMEOUT_S = 600.0
END_TIMEOUT_S = 30.0
STDERR_KEPT_BYTES = 16_384
DETAIL_LINES = 12


class IsolationError(Exception):
    """The harness, not the tree, failed: a target's own error, or a broken zygote."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a case, and what had run before it in the same process.

    Attributes:
        result: The observation's JSON, or the end of the process.
        earlier: Requests that the process had answered before; empty where the
            process was fresh, so that nothing but the case can be to blame.
    """

    result: str | Death
    earlier: tuple[Request, ...]


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """Cases that passed, and did harm that only a later case of the process showed.

    Attributes:
        damaging: The least that was found to do it, nearly always one case; all that
            had run where it did not happen again.
        victim: The case that showed the harm, and does not show it in a fresh process.
        symptom: What was seen: a death's cause, or what the caller looked for.
        reproduced: Whether the same cases did it again in another process.
    """

    damaging: tuple[Request, ...]
    victim: Request
    symptom: str
    reproduced: bool


class _ZygoteDied(Exception):
    """The zygote is gone, and its child with it."""


class _Child:
    """The parent's side of a child: its socket, stderr and what it has answered."""

    def __init__(
        self,
        pid: int,
        *,
        channel: socket.socket,
        stderr_fd: int,
        targets: frozenset[str],
    ) -> None:
        self.pid = pid
        self.channel = channel
        self.stderr_fd = stderr_fd
        self.targets = targets
        self.answered: list[Request] = []
        self.exit_code: int | None = None
        self._received = bytearray()
        self._stderr = bytearray()

    def read_stderr(self) -> None:
        """Take what the child wrote to stderr, and keep the end of it."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.stderr_fd, 65_536):
                self._stderr += chunk
                del self._stderr[:-STDERR_KEPT_BYTES]

    def read_answer(self) -> bytes | None:
        """One whole answer, None while it is not all there."""
        with suppress(BlockingIOError, ConnectionResetError):
            while chunk := self.channel.recv(1 << 20, socket.MSG_DONTWAIT):
                self._received += chunk
                if chunk.endswith(b"\n"):  # JSON has no newline of its own
                    answer = bytes(self._received)
                    self._received.clear()
                    return answer
        return None

    def detail(self) -> str:
        """The part of the child's stderr that says most about its end."""
        self.read_stderr()
        text = self._stderr.decode(errors="replace")
        return _telling_lines(text)

    def resident_bytes(self) -> int:
        """Resident memory of the child's process, 0 when it is gone."""
        try:
            pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii")
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return int(pages.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        self.channel.close()
        os.close(self.stderr_fd)


def _telling_lines(text: str) -> str:
    """The last lines of a stderr, or the innermost frames of a crash in it.

    What differs between machines and runs (addresses, folders) is taken out, for the
    same death must read the same.
    """
    _, fatal, after = text.rpartition("Fatal Python error: ")
    lines = (fatal + after).splitlines()
    lines = [line for line in lines if not line.startswith("Extension modules: ")]
    lines = lines[:DETAIL_LINES] if fatal else lines[-DETAIL_LINES:]
    kept = "\n".join(lines).strip()
    kept = re.sub(r"0x[0-9a-f]+", "0x…", kept)
    kept = re.sub(r'File "[^"]*/site-packages/', 'File "', kept)
    return re.sub(r'File "/[^"]*/(?=[^/"]+/[^/"]+")', 'File "', kept)


class _Zygote:
    """The parent's side of one zygote process and of its present child."""

    def __init__(self, setup_parts: Setup) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self.control, theirs = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
        )
        setup = msgspec.structs.replace(
            setup_parts, control_fd=theirs.fileno(), parent_pid=os.getpid()
        )
        root = str(Path(fuzz.__file__).resolve().parents[1])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        # -P: a `vllm` folder where the user stands must not be imported.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "fuzz._zygote", setup.text()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
        )
        theirs.close()
        self.child: _Child | None = None
        self.targets: frozenset[str] = frozenset()

    def report(self, timeout_s: float) -> Report:
        """The next report of the zygote.

        Raises:
            _ZygoteDied: When it is gone.
            IsolationError: When none comes in time, or it reports a failure.
        """
        self.control.settimeout(timeout_s)
        try:
            packet = self.control.recv(PACKET_BYTES)
        except TimeoutError as error:
            raise IsolationError(
                f"the isolating process said nothing for {timeout_s:.0f} s; its last "
                f"words: {self.last_words()}"
            ) from error
        except ConnectionResetError as error:
            raise _ZygoteDied from error
        if not packet:
            raise _ZygoteDied
        report: Report = msgspec.json.decode(packet, type=Report)
        if isinstance(report, Failed):
            raise IsolationError(f"in the isolating process:\n{report.text}")
        return report

    def order(self, target: str | None, fds: Sequence[int] = ()) -> None:
        packet = msgspec.json.encode(Order(target=target))
        try:
            socket.send_fds(self.control, [packet], fds)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _ZygoteDied from error

    def fork(self, target: str) -> _Child:
        """A fresh child that can run the target; the present one is killed."""
        self.drop_child()
        ours, theirs = socket.socketpair()
        stderr_fd, their_stderr_fd = os.pipe()
        os.set_blocking(stderr_fd, False)
        try:
            self.order(target, (theirs.fileno(), their_stderr_fd))
            report = self.report(START_TIMEOUT_S)
        except BaseException:
            ours.close()
            os.close(stderr_fd)
            raise
        finally:
            theirs.close()
            os.close(their_stderr_fd)
        assert isinstance(report, Forked), report
        self.targets |= {target}
        self.child = _Child(
            report.pid, channel=ours, stderr_fd=stderr_fd, targets=self.targets
        )
        return self.child

    def drop_child(self) -> None:
        """Kill the child, if there is one, and wait for its end."""
        if self.child is None:
            return
        if self.child.exit_code is None:
            self.order(None)
            self.await_end(self.child)
        self.child.close()
        self.child = None

    def await_end(self, child: _Child) -> None:
        report = self.report(END_TIMEOUT_S)
        assert isinstance(report, Ended), report
        assert report.pid == child.pid, (report, child.pid)
        child.exit_code = report.exit_code

    def last_words(self) -> str:
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - STDERR_KEPT_BYTES))
        return _telling_lines(self._stderr.read().decode(errors="replace"))

    def close(self) -> str:
        """End the zygote and its child, and say how it ended."""
        self.control.close()
        try:
            self._process.wait(timeout=END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self.child is not None:
            # A zygote that was killed could not end what its child had started; the
            # group's id is not given to others while a member of it lives.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.child.pid, signal.SIGKILL)
            self.child.close()
            self.child = None
        code = self._process.returncode
        words = self.last_words()
        self._stderr.close()
        return f"signal {-code}" if code < 0 else f"exit {code}: {words}"


class Isolation:
    """Runs cases of one tree under one runtime in child processes; one per worker.

    The zygote is started with the first case. Not to be shared between threads.

    Args:
        tree: The tree to activate.
        runtime: Platform and Triton mode of the process, and the limits of a case.
        target_folders: Folders of the user's own targets.
    """

    def __init__(
        self, *, tree: Tree, runtime: Runtime, target_folders: tuple[Path, ...] = ()
    ) -> None:
        self._runtime = runtime
        self._setup = Setup(
            control_fd=-1,
            parent_pid=0,
            tree=tree,
            platform=runtime.platform,
            triton=runtime.triton,
            target_folders=tuple(str(folder.resolve()) for folder in target_folders),
        )
        self._zygote: _Zygote | None = None
        self._restarts = 0
        self._culprits: list[Culprit] = []
        self._startup_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def startup_s(self) -> float:
        """Seconds spent so far on starting zygotes and importing tree and targets."""
        return self._startup_s

    def run(
        self,
        target: str,
        case: str,
        *,
        edits: tuple[Edit, ...] = (),
        fresh: bool = False,
    ) -> str | Death:
        """Run a case; give its observation's JSON, or how its process ended.

        A death is always that of a process in which nothing but the case ran.

        Args:
            target: Name of the target.
            case: The case's JSON.
            edits: Changes to the tree for this case.
            fresh: Run it in a process in which nothing else ran.

        Raises:
            IsolationError: When the target raised, an edit does not fit, the tree or
                the target cannot be imported, or the zygote was killed too often.
        """
        return self.outcome(target, case, edits=edits, fresh=fresh).result

    def run_many(
        self, target: str, cases: Sequence[str], *, edits: tuple[Edit, ...] = ()
    ) -> list[str | Death]:
        """Run cases one after the other, in as few processes as they leave alive."""
        return [self.run(target, case, edits=edits) for case in cases]

    def outcome(
        self,
        target: str,
        case: str,
        *,
        edits: tuple[Edit, ...] = (),
        fresh: bool = False,
    ) -> Outcome:
        """As `run`, with what had run before in the same process."""
        request = Request(target=target, case=case, edits=wire_edits(edits))
        result, earlier = self._answer(request, fresh=fresh)
        if not isinstance(result, Death):
            return Outcome(result=result, earlier=earlier)
        # Signal 9 comes from outside: from a person, or from a full machine.
        from_outside = result.cause == "signal 9"
        if not earlier and not from_outside:
            return Outcome(result=result, earlier=())
        alone, _ = self._answer(request, fresh=True)
        # A reused process may also be slow or full through no fault of one case.
        damaged = result.cause.startswith(("signal ", "exit ")) and not from_outside
        if damaged and not isinstance(alone, Death):
            self.blame(
                earlier,
                request,
                symptom=result.cause,
                shows=lambda again: isinstance(again, Death),
            )
        return Outcome(result=alone, earlier=())

    def blame(
        self,
        earlier: tuple[Request, ...],
        victim: Request,
        *,
        symptom: str,
        shows: Callable[[str | Death], bool],
    ) -> None:
        """Find which earlier cases of a process harm the victim, and note the culprit.

        Halves the cases run before the victim in a fresh process, so that about twice
        as many cases run again as there were.

        Args:
            earlier: What the process had answered before, in order.
            victim: What showed the harm, and shows none in a fresh process.
            symptom: What was seen, in a few words.
            shows: Whether a result of the victim (or a death before it) shows it.
        """

        def harmful(cases: tuple[Request, ...]) -> bool:
            return shows(self._sequence((*cases, victim)))

        damaging, reproduced = earlier, harmful(earlier)
        if reproduced:
            first, past = 0, len(earlier)
            while past - first > 1:
                middle = (first + past) // 2
                if harmful(earlier[middle:]):
                    first = middle
                else:
                    past = middle
            damaging = earlier[first:]
            if len(damaging) > 1 and harmful(damaging[:1]):
                damaging = damaging[:1]
        self._culprits.append(
            Culprit(
                damaging=damaging,
                victim=victim,
                symptom=symptom,
                reproduced=reproduced,
            )
        )

    def take_culprits(self) -> tuple[Culprit, ...]:
        """The culprits noted since the last call."""
        culprits = tuple(self._culprits)
        self._culprits.clear()
        return culprits

    def close(self) -> None:
        """End the zygote and its child; a later case starts another."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None

    def _sequence(self, requests: tuple[Request, ...]) -> str | Death:
        """Run requests in one fresh process; the last result, or the first death."""
        result: str | Death = ""
        for position, request in enumerate(requests):
            result, _ = self._answer(request, fresh=position == 0)
            if isinstance(result, Death):
                break
        return result

    def _answer(
        self, request: Request, *, fresh: bool
    ) -> tuple[str | Death, tuple[Request, ...]]:
        """A request's result, and what its process had answered before."""
        while True:
            zygote = self._started()
            try:
                return self._attempt(zygote, request, fresh=fresh)
            except _ZygoteDied as error:
                how = zygote.close()
                self._zygote = None
                self._restarts += 1
                if self._restarts > RESTARTS_MAX:
                    raise IsolationError(
                        f"the isolating process died {self._restarts} times, at last "
                        f"with {how}; the case it was to run: {request.case[:2_000]}"
                    ) from error

    def _started(self) -> _Zygote:
        if self._zygote is None:
            began = time.monotonic()
            zygote = _Zygote(self._setup)
            try:
                report = zygote.report(START_TIMEOUT_S)
            except _ZygoteDied as error:
                raise IsolationError(
                    f"the isolating process ended at its start: {zygote.close()}"
                ) from error
            except BaseException:
                zygote.close()
                raise
            assert isinstance(report, Ready), report
            self._zygote = zygote
            self._startup_s += time.monotonic() - began
        return self._zygote

    def _attempt(
        self, zygote: _Zygote, request: Request, *, fresh: bool
    ) -> tuple[str | Death, tuple[Request, ...]]:
        child = zygote.child
        try:
            if (
                fresh
                or child is None
                or child.exit_code is not None
                or len(child.answered) >= CASES_PER_CHILD
                or request.target not in child.targets
            ):
                began = time.monotonic()
                imported = request.target in zygote.targets
                child = zygote.fork(request.target)
                if not imported:
                    self._startup_s += time.monotonic() - began
            earlier = tuple(child.answered)
            answer = self._watch(zygote, child, request)
        except KeyboardInterrupt:
            # A child in mid-case would answer the next case with this one's result.
            self.close()
            raise
        child.answered.append(request)
        if isinstance(answer, Death):
            return answer, earlier
        if answer.startswith(b"E"):
            zygote.drop_child()
            traceback = msgspec.json.decode(answer[1:], type=str)
            raise IsolationError(
                f"target {request.target} raised, which is no observation of the tree, "
                f"on {request.case[:2_000]}\n{traceback}"
            )
        return answer[1:-1].decode(), earlier

    def _watch(self, zygote: _Zygote, child: _Child, request: Request) -> bytes | Death:
        """Send a request and wait for its answer, or for the child's end."""
        limits = self._runtime
        began = looked = time.monotonic()
        poller = select.poll()
        for fd in (child.channel, child.stderr_fd, zygote.control):
            poller.register(fd, select.POLLIN)
        child.channel.settimeout(limits.timeout_s)
        # Where the child is gone, or does not read, the loop below sees it.
        with suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            child.channel.sendall(msgspec.json.encode(request) + b"\n")
        while True:
            events = dict(poller.poll(POLL_S * 1_000))
            if child.stderr_fd in events:
                child.read_stderr()
            if child.channel.fileno() in events:
                answer = child.read_answer()
                if answer is not None:
                    return answer
            if zygote.control.fileno() in events:
                zygote.await_end(child)
                return Death(cause=_ended_by(child), detail=child.detail())
            for fd, event in events.items():
                if event & select.POLLHUP:
                    poller.unregister(fd)
            now = time.monotonic()
            if now - began > limits.timeout_s:
                return self._killed(
                    zygote, child, "timed out", f"after {limits.timeout_s:g} s"
                )
            if now - looked >= POLL_S:
                looked = now
                resident = child.resident_bytes()
                if resident > limits.memory_bytes:
                    return self._killed(
                        zygote,
                        child,
                        "memory limit",
                        f"above {limits.memory_bytes >> 20} MiB resident",
                    )

    @staticmethod
    def _killed(zygote: _Zygote, child: _Child, cause: str, why: str) -> Death:
        zygote.order(None)
        zygote.await_end(child)
        return Death(cause=cause, detail="\n".join(filter(None, (why, child.detail()))))


def _ended_by(child: _Child) -> str:
    """The cause of a death, from the exit code that the zygote reported."""
    code = child.exit_code
    assert code is not None
    return f"signal {-code}" if code < 0 else f"exit {code}"
