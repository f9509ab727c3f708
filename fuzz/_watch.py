"""The parent's side of isolation: a zygote, its present child, and watching both.

The child's memory and time are looked at from here; to kill it is the zygote's work,
for only a process that has not reaped a child yet can be sure of its id.
"""

import os
import re
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from fuzz._protocol import (
    PACKET_BYTES,
    Ended,
    Failed,
    Forked,
    Order,
    Report,
    Request,
    Setup,
)
from fuzz.launch import module_command, project_environment
from invariants.model import Death, ending

# How often a running child's memory is looked at.
POLL_S = 0.02
# Starting: importing torch, the tree and a target. Ending: killing and reaping.
START_TIMEOUT_S = 600.0
END_TIMEOUT_S = 30.0
# Lines of /proc/PID/status (man 5 proc_pid_status).
OWN_MEMORY = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)
STDERR_KEPT_BYTES = 16_384
DETAIL_LINES = 12


class IsolationError(Exception):
    """The harness, not the tree, failed: a target's own error, or a broken zygote."""


class ZygoteDied(Exception):
    """The zygote is gone, and its child with it."""


class Child:
    """The parent's side of a child: its socket, stderr and what it has answered."""

    def __init__(
        self,
        forked: Forked,
        *,
        target: str,
        channel: socket.socket,
        stderr_fd: int,
    ) -> None:
        self.pid = forked.pid
        self.target = target
        self.timeout_s = forked.timeout_s
        self.memory_bytes = forked.memory_bytes
        self.channel = channel
        self.stderr_fd = stderr_fd
        self.answered: list[Request] = []
        self.exit_code: int | None = None
        self._received = bytearray()
        self._stderr = bytearray()

    def send(self, request: Request) -> None:
        """Send a request; where nobody takes it, the child's end or the time tells."""
        self.channel.settimeout(self.timeout_s)
        with suppress(BrokenPipeError, ConnectionResetError, TimeoutError):
            self.channel.sendall(msgspec.json.encode(request) + b"\n")
        self.channel.setblocking(False)  # noqa: FBT003 - the name of the method says it

    def read_stderr(self) -> None:
        """Take what the child wrote to stderr, and keep the end of it."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.stderr_fd, 65_536):
                self._stderr += chunk
                del self._stderr[:-STDERR_KEPT_BYTES]

    def read_answer(self) -> bytes | None:
        """One whole answer, None while it is not all there."""
        with suppress(BlockingIOError, ConnectionResetError):
            while chunk := self.channel.recv(1 << 20):
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
        return telling_lines(text)

    def resident_bytes(self) -> int:
        """Resident memory of the child's process, 0 when it is gone.

        Files that it maps are left out: with a CUDA build of torch its libraries alone
        are gigabytes, and the system can take their pages back.
        """
        try:
            status = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return sum(1024 * int(kibibytes) for kibibytes in OWN_MEMORY.findall(status))

    def cause(self) -> str:
        """What ended it, once its exit code is known."""
        assert self.exit_code is not None
        return ending(self.exit_code)

    def close(self) -> None:
        """Close the descriptors."""
        self.channel.close()
        os.close(self.stderr_fd)


def telling_lines(text: str) -> str:
    """The last lines of a stderr, or the innermost frames of a crash in it.

    What differs between machines and runs (addresses, folders) is taken out, for the
    same death must read the same.
    """
    _, fatal, after = text.rpartition("Fatal Python error: ")
    lines = (fatal + after).splitlines()
    if fatal:
        # Innermost frames first, and those of the harness at the end.
        ours = [n for n, line in enumerate(lines) if "/fuzz/_zygote.py" in line]
        lines = lines[: ours[0] if ours else None][:DETAIL_LINES]
    lines = lines[-DETAIL_LINES:]
    kept = "\n".join(lines).strip()
    kept = re.sub(r"0x[0-9a-f]+", "0x…", kept)
    kept = re.sub(r'File "[^"]*/site-packages/', 'File "', kept)
    return re.sub(r'File "/[^"]*/(?=[^/"]+/[^/"]+")', 'File "', kept)


class Zygote:
    """The parent's side of one zygote process and of its present child."""

    def __init__(self, setup_parts: Setup) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - see close
        self.control, theirs = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
        )
        setup = msgspec.structs.replace(
            setup_parts, control_fd=theirs.fileno(), parent_pid=os.getpid()
        )
        self._process = subprocess.Popen(
            module_command("fuzz._zygote", setup.text()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr,
            pass_fds=(theirs.fileno(),),
            env=project_environment(),
            start_new_session=True,
        )
        theirs.close()
        self.child: Child | None = None
        self.imported: set[str] = set()

    def report(self, timeout_s: float) -> Report:
        """The next report of the zygote.

        Raises:
            ZygoteDied: When it is gone.
            IsolationError: When none comes in time, or it reports a failure.
        """
        self.control.settimeout(timeout_s)
        try:
            packet = self.control.recv(PACKET_BYTES)
        except TimeoutError as error:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise IsolationError(
                f"the isolating process said nothing for {timeout_s:.0f} s; its last "
                f"words: {self.last_words()}"
            ) from error
        except ConnectionResetError as error:
            raise ZygoteDied from error
        if not packet:
            raise ZygoteDied
        report: Report = msgspec.json.decode(packet, type=Report)
        if isinstance(report, Failed):
            raise IsolationError(f"in the isolating process:\n{report.text}")
        return report

    def order(
        self, target: str | None, fds: Sequence[int] = (), *, trial: bool = False
    ) -> None:
        """See `Order`."""
        packet = msgspec.json.encode(Order(target=target, trial=trial))
        try:
            socket.send_fds(self.control, [packet], fds)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ZygoteDied from error

    def fork(self, target: str) -> Child:
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
        self.imported.add(target)
        self.child = Child(report, target=target, channel=ours, stderr_fd=stderr_fd)
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

    def await_end(self, child: Child) -> None:
        """Wait for the report of a child's end."""
        report = self.report(END_TIMEOUT_S)
        assert isinstance(report, Ended), report
        assert report.pid == child.pid, (report, child.pid)
        child.exit_code = report.exit_code

    def answer(self, child: Child, request: Request) -> bytes | Death:
        """Send a request and wait for its answer, or for the child's end."""
        began = looked = time.monotonic()
        poller = select.poll()
        for fd in (child.channel, child.stderr_fd, self.control):
            poller.register(fd, select.POLLIN)
        child.send(request)
        while True:
            events = dict(poller.poll(POLL_S * 1_000))
            if child.stderr_fd in events:
                child.read_stderr()
            if child.channel.fileno() in events:
                answer = child.read_answer()
                if answer is not None:
                    return answer
            if self.control.fileno() in events:
                self.await_end(child)
                return Death(cause=child.cause(), detail=child.detail())
            for fd, event in events.items():
                if event & select.POLLHUP:
                    poller.unregister(fd)
            now = time.monotonic()
            if now - began > child.timeout_s:
                return self._kill(child, "timed out", f"after {child.timeout_s:g} s")
            if now - looked >= POLL_S:
                looked = now
                if child.resident_bytes() > child.memory_bytes:
                    limit = f"above {child.memory_bytes >> 20} MiB resident"
                    return self._kill(child, "memory limit", limit)

    def _kill(self, child: Child, cause: str, why: str) -> Death:
        self.order(None)
        self.await_end(child)
        return Death(cause=cause, detail=f"{why}\n{child.detail()}".rstrip())

    def last_words(self) -> str:
        """The end of what the zygote wrote to its own stderr."""
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - STDERR_KEPT_BYTES))
        return telling_lines(self._stderr.read().decode(errors="replace"))

    def close(self, *, ending_itself: bool = False) -> str:
        """End the zygote and its child, and say how it ended.

        Args:
            ending_itself: Whether it was seen to end, which may take it seconds.
        """
        self.control.close()
        # Without a child it has nothing to end, and may be in an import.
        busy = self.child is not None or ending_itself
        try:
            self._process.wait(timeout=END_TIMEOUT_S if busy else 1.0)
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
        return ending(code) if code < 0 else f"{ending(code)}: {words}"
