"""The process that isolated cases are forked from, and the life of its children.

`python -m fuzz._zygote` activates the tree, imports a target when first asked for it,
and forks one child at a time. It has a single thread, speaks over sockets of its own
(stdout belongs to whoever prints) and leaves no process behind when its parent ends.
"""

import ctypes
import faulthandler
import fcntl
import gc
import os
import resource
import select
import signal
import socket
import sys
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec

from fuzz._protocol import (
    PACKET_BYTES,
    Ended,
    Failed,
    Forked,
    Order,
    Ready,
    Report,
    Request,
    Setup,
    WireEdit,
    edits_of,
)
from fuzz.edits import applied
from fuzz.rooms import (
    TargetModule,
    add_folder,
    import_everywhere,
    target_module,
    value_types,
)
from fuzz.trees import activate
from invariants.model import decode, encode

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl({option}, {value}): {os.strerror(code)}")


def _descendants() -> list[int]:
    """Process ids of this process's own children, zombies included."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    return [int(pid) for pid in text.split()]


class _Zygote:
    """One child at a time, its beginning and its end."""

    def __init__(self, control: socket.socket, setup: Setup) -> None:
        self._control = control
        self._setup = setup
        self._pid: int | None = None
        self._pidfd = -1
        # Processes that imports started, if any, are left in peace.
        self._own: frozenset[int] = frozenset()

    def serve(self) -> None:
        """Follow orders until the parent is gone."""
        while True:
            poller = select.poll()
            poller.register(self._control, select.POLLIN)
            if self._pid is not None:
                poller.register(self._pidfd, select.POLLIN)
            # Should something else hold the socket open, the parent's id still tells.
            ready = [fd for fd, _ in poller.poll(1_000)]
            if self._pid is not None and self._pidfd in ready:
                self._end_child()
            if os.getppid() != self._setup.parent_pid:
                break
            if self._control.fileno() in ready:
                packet, fds, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 2)
                if not packet:
                    break
                for fd in fds:
                    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
                self._follow(msgspec.json.decode(packet, type=Order), fds)
        self._end_child()

    def _follow(self, order: Order, fds: list[int]) -> None:
        self._end_child()
        if order.target is None:
            return
        try:
            if order.trial:
                import_everywhere(order.target)
                self._report(Ready())
                return
            target = _imported(order.target, self._setup)
            self._own = frozenset(_descendants())
            self._fork(order.target, target, fds)
        except Exception:  # noqa: BLE001 - reported whole; the parent raises it
            self._report(Failed(text=traceback.format_exc()[-PACKET_BYTES // 2 :]))
        for fd in fds:
            os.close(fd)

    def _fork(self, name: str, target: TargetModule, fds: list[int]) -> None:
        threads = sorted(Path("/proc/self/task").iterdir())
        if len(threads) != 1:
            names = [
                (thread / "comm").read_text(encoding="utf-8").strip()
                for thread in threads
            ]
            raise RuntimeError(
                f"the zygote has {len(threads)} threads ({names}), and a fork of a "
                "threaded process can hang: something that an import or absent() "
                "started must be kept from starting"
            )
        # Children neither collect nor copy what the imports made.
        gc.collect()
        gc.freeze()
        # The end of the parent is seen on the socket from here on, which leaves time
        # to end the child.
        _prctl(PR_SET_PDEATHSIG, 0)
        sys.stdout.flush()
        sys.stderr.flush()
        zygote_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            _live(name, target, fds, zygote_pid)
        # Done on both sides of the fork, so that it holds for whoever comes first.
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)
        self._pid = pid
        self._pidfd = os.pidfd_open(pid)
        runtime = target.RUNTIME
        self._report(
            Forked(
                pid=pid,
                timeout_s=runtime.timeout_s,
                memory_bytes=runtime.memory_bytes,
            )
        )

    def _end_child(self) -> None:
        """Kill and reap the child with all that it started, and report its end.

        The child is reaped after its group was killed: until then nobody else can
        have its id.
        """
        if self._pid is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        os.close(self._pidfd)
        ended = Ended(pid=self._pid, exit_code=os.waitstatus_to_exitcode(status))
        self._pid = None
        # Processes that left the group are ours now, for this is their subreaper.
        while strays := set(_descendants()) - self._own:
            for stray in strays:
                os.kill(stray, signal.SIGKILL)
                os.waitpid(stray, 0)
        self._report(ended)

    def _report(self, report: Report) -> None:
        with suppress(BrokenPipeError):  # the parent is gone; serve() sees that too
            self._control.send(msgspec.json.encode(report))


def _imported(name: str, setup: Setup) -> TargetModule:
    """A target, imported whole: `absent` takes along what it imports late."""
    value_types(name)
    target = target_module(name)
    runtime = target.RUNTIME
    if (runtime.platform, runtime.triton) != (setup.platform, setup.triton):
        raise RuntimeError(
            f"target {name} needs platform {runtime.platform!r} and triton "
            f"{runtime.triton!r}, and this isolation was made for {setup.platform!r} "
            f"and {setup.triton!r}: make one for the target's own RUNTIME"
        )
    target.absent()
    return target


def _live(name: str, target: TargetModule, fds: list[int], zygote_pid: int) -> None:
    """The whole life of a child: cases until its socket is closed."""
    code = 1
    try:
        os.setpgid(0, 0)
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != zygote_pid:
            os._exit(code)
        os.dup2(fds[1], 2)
        os.close(fds[1])
        # A library that vLLM imports (tvm_ffi) meets a segmentation fault with seconds
        # of symbolised frames; this process is meant to die fast.
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        faulthandler.enable(file=2)
        channel = socket.socket(fileno=fds[0])
        with ExitStack() as changes:
            _answer(channel, name, target, changes)
        code = 0
    except SystemExit as leaving:
        # What the interpreter would make of it: a case that calls exit ends it.
        code = (
            leaving.code if isinstance(leaving.code, int) else int(bool(leaving.code))
        )
    except BaseException:  # noqa: BLE001 - shown on stderr, which is the death's detail
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code & 0xFF)


def _answer(
    channel: socket.socket, name: str, target: TargetModule, changes: ExitStack
) -> None:
    """Answer each request with one line: R and the observation, or E and a traceback.

    Edits stay applied while the same come again, for a changed kernel is compiled anew.
    """
    case_type, _ = value_types(name)
    current: tuple[WireEdit, ...] = ()
    with channel.makefile("rb") as lines:
        for line in lines:
            request = msgspec.json.decode(line, type=Request)
            try:
                if request.edits != current:
                    changes.close()
                    current = ()
                    changes.enter_context(applied(*edits_of(request.edits)))
                    current = request.edits
                answer = "R" + encode(target.run(decode(request.case, case_type)))
            except Exception:  # noqa: BLE001 - sent whole; the parent raises it
                text = traceback.format_exc()
                answer = "E" + encode(text.encode(errors="replace").decode())
            channel.sendall(answer.encode() + b"\n")


def _main(argument: str) -> None:
    setup = Setup.from_text(argument)
    control = socket.socket(fileno=setup.control_fd)
    control.set_inheritable(False)
    # Imports take seconds; a parent that is killed meanwhile takes this along.
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    if os.getppid() != setup.parent_pid:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        for folder in setup.target_folders:
            add_folder(Path(folder))
        activate(setup.tree, platform=setup.platform, triton=setup.triton)
    except Exception:  # noqa: BLE001 - reported whole; the parent raises it
        text = traceback.format_exc()[-PACKET_BYTES // 2 :]
        control.send(msgspec.json.encode(Failed(text=text)))
        return
    control.send(msgspec.json.encode(Ready()))
    _Zygote(control, setup).serve()


if __name__ == "__main__":
    _main(sys.argv[1])
