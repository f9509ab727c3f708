"""Runs vLLM's `cdiv`, and misbehaves as the case says.

Isolated, for most of the deeds end the process or do it harm.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from invariants.toy import Case, Observation
from vllm.utils import math_utils

from fuzz.edits import SourceEdit
from fuzz.runtime import Control, Runtime

RUNTIME = Runtime(isolated=True, timeout_s=3.0, memory_bytes=1 << 29)

CONTROLS = (
    Control(
        name="toy: aborts",
        origin="contract",
        edits=(
            SourceEdit(
                modules=("vllm.utils.math_utils",),
                function="cdiv",
                old="-(a // -b)",
                new="__import__('os').abort()",
            ),
        ),
        # Tests put faults of the other law into the ledger, which prove no control.
        invariant="TOY-ALIVE",
        cases=10,
    ),
)

# What earlier cases of this process left behind: poison kills the next case that does
# nothing else, a stain makes its result wrong.
harm: set[str] = set()


def absent() -> str | None:
    """Every tree has it so far."""
    return None if hasattr(math_utils, "cdiv") else "vllm.utils.math_utils has no cdiv"


def run(case: Case) -> Observation:
    """Do the deed, then divide."""
    deed = DEEDS.get(case.deed)
    text = deed() if deed else ""
    if case.deed == "divide" and "poison" in harm:
        _segfault()
    blocks = math_utils.cdiv(case.tokens, case.block_size)
    if case.deed == "divide" and "stain" in harm:
        blocks += 1
    return Observation(blocks=blocks, text=text)


def _segfault() -> str:
    return str(ctypes.string_at(0))


def _exit() -> str:
    sys.stderr.write("about to leave\n")
    sys.stderr.flush()
    os._exit(3)


def _system_exit() -> str:
    sys.exit(4)


def _slow() -> str:
    time.sleep(1.0)
    return "at last"


def _hang() -> str:
    while True:
        time.sleep(60)


def _hang_in_c() -> str:
    # PyDLL keeps the interpreter's lock, as a hung extension does.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    return str(ctypes.PyDLL(None).sleep(600))


def _hog() -> str:
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))


def _error() -> str:
    raise LookupError("the harness's own fault: ünïcode")


def _noise() -> str:
    for file in (sys.stdout, sys.stderr):
        file.write('{"not": "a result"}\n' * 50_000)
        file.flush()
    os.write(1, b"\xff\x00\n")
    return sys.stdin.read()


def _large() -> str:
    return "ü\n😀" * 2_000_000


def _last_words() -> str:
    for number in range(100_000):
        sys.stderr.write(f"line {number}\n")
    sys.stderr.flush()
    os._exit(5)


def _poison() -> str:
    harm.add("poison")
    return ""


def _stain() -> str:
    harm.add("stain")
    return ""


def _offspring() -> str:
    """Two grandchildren, one of them in a session of its own."""
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    near = subprocess.Popen(sleeper)
    far = subprocess.Popen(sleeper, start_new_session=True)
    return f"{near.pid} {far.pid}"


def _patricide() -> str:
    os.kill(os.getppid(), signal.SIGKILL)
    return _hang()


def _inspect() -> str:
    """Ids of this process and its zygote, its threads, and Triton's mode."""
    native = len(list(Path("/proc/self/task").iterdir()))
    mode = os.environ["TRITON_INTERPRET"]
    return f"{os.getpid()} {os.getppid()} {threading.active_count()} {native} {mode}"


DEEDS = {
    "segfault": _segfault,
    "exit": _exit,
    "system_exit": _system_exit,
    "slow": _slow,
    "hang": _hang,
    "hang_in_c": _hang_in_c,
    "hog": _hog,
    "error": _error,
    "noise": _noise,
    "large": _large,
    "last_words": _last_words,
    "poison": _poison,
    "stain": _stain,
    "offspring": _offspring,
    "patricide": _patricide,
    "inspect": _inspect,
}
