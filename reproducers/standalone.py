"""The main part of every repro.py: run one case on the real code, as it is and fixed.

Each arm runs in a child process of the same script, so that a killed process is an
observation like any other. Its source is inlined: it may use the standard library and
the shared values only.
"""

import argparse
import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuzz.edits import Edit, Replacement, applied
from fuzz.runtime import Runtime
from invariants.model import Death, FaultKey, Judgement, decode, encode, ending
from reproducers.fix import Fix
from reproducers.fixing import NoFix, fitting_fix
from reproducers.outcome import Arm, judged_arm

ARM_OPTION = "--arm"
STARTUP_LIMIT_S = 600.0
POLL_S = 0.05
STDERR_LINES = 12

EXIT_HOLDS, EXIT_FAILS, EXIT_ERRORED = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a script claims: this case breaks this law on an unfixed tree.

    Attributes:
        case: The target's `Case`.
        runtime: Limits of an arm; where it is isolated, the death of its process is an
            expected outcome.
        judge: Judges what was observed of the case.
    """

    key: FaultKey
    case: Any
    runtime: Runtime
    judge: Callable[[Any, Any], Judgement]


def is_arm(arguments: list[str]) -> bool:
    """Whether this process is the child that runs one arm."""
    return ARM_OPTION in arguments


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Run one case on vLLM's real code, as it is and with a fix. Exit "
        "status: 1 when the fault shows, 0 when it does not, 2 when neither is known."
    )
    parser.add_argument(
        "--vllm",
        type=Path,
        metavar="PATH",
        help="a folder that contains vllm/ (default: vLLM as installed)",
    )
    parser.add_argument(ARM_OPTION, choices=("broken", "fixed"), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def put_tree_first(arguments: list[str]) -> None:
    """Make `import vllm` mean the tree that was asked for."""
    tree = _options(arguments).vllm
    if tree is not None:
        sys.path.insert(0, str(tree.resolve()))


def run_both(claim: Claim, arguments: list[str]) -> int:
    """Run both arms, print what they show, and give the exit status."""
    options = _options(arguments)
    put_tree_first(arguments)
    if (
        options.vllm is not None
        and not (options.vllm / "vllm" / "__init__.py").is_file()
    ):
        print(f"--vllm {options.vllm}: no vllm/__init__.py in this folder; give the")
        print("folder that contains vllm/, of a checkout or an unpacked release")
        return EXIT_ERRORED
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here; install it, or give --vllm PATH, a folder")
        print("that contains vllm/")
        return EXIT_ERRORED
    print(f"{claim.key.id}: {claim.key.invariant} at {claim.key.site}", flush=True)
    broken = _shown("BROKEN ARM", _in_child("broken", claim, options.vllm))
    if broken.status in ("absent", "unproven"):
        return EXIT_HOLDS
    fixed = _shown("FIXED ARM", _in_child("fixed", claim, options.vllm))
    if broken.status == "fails":
        return EXIT_FAILS
    sound = broken.status == "holds" and fixed.status in ("holds", "unfit")
    return EXIT_HOLDS if sound else EXIT_ERRORED


def _shown(name: str, arm: Arm) -> Arm:
    print(f"{name}: {arm.status}: {arm.message}", flush=True)
    for line in arm.others:
        print(f"  another fault shows on this case: {line}", flush=True)
    return arm


def _in_child(arm: str, claim: Claim, tree: Path | None) -> Arm:
    """Run one arm in a process of its own and read what it observed."""
    with tempfile.TemporaryDirectory(prefix="repro-") as name:
        out = Path(name)
        command = [sys.executable, *(["-I"] if sys.flags.isolated else [])]
        command += [str(Path(sys.argv[0]).resolve()), ARM_OPTION, arm, "--out", name]
        # What vLLM remembers of model classes belongs to the tree it saw them in.
        environment = {**os.environ, "VLLM_CACHE_ROOT": str(out / "cache")}
        if tree is not None:
            command += ["--vllm", str(tree.resolve())]
            # vLLM starts processes of its own, which are to find the same tree.
            inherited = [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
            paths = [str(tree.resolve()), *inherited]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        with (out / "log").open("wb") as log:
            child = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                cause = _awaited(child, out, claim.runtime)
            finally:
                _kill(child)
        if (out / "result").exists():
            return decode((out / "result").read_text(encoding="utf-8"), Arm)
        lines = (out / "log").read_text(encoding="utf-8", errors="replace").splitlines()
        detail = "\n".join(lines[-STDERR_LINES:])
        if claim.runtime.isolated and (out / "ready").exists():
            death = Death(cause=cause, detail=detail)
            return judged_arm(claim.judge(claim.case, death), claim.key)
        return Arm(status="errored", message=f"the process ended ({cause}):\n{detail}")


def _awaited(child: "subprocess.Popen[bytes]", out: Path, runtime: Runtime) -> str:
    """Wait for a child within its limits; the cause of its end."""
    deadline = time.monotonic() + STARTUP_LIMIT_S
    ready = False
    while child.poll() is None:
        if not ready and (out / "ready").exists():
            ready = True
            deadline = time.monotonic() + runtime.timeout_s
        if time.monotonic() > deadline:
            return "timed out"
        if ready and _resident_bytes(child.pid) > runtime.memory_bytes:
            return "memory limit"
        time.sleep(POLL_S)
    return ending(child.returncode)


def _resident_bytes(pid: int) -> int:
    """Resident memory of a process, mapped files (libraries) left out.

    0 where the system does not tell, or the process ended.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    sizes = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.MULTILINE)
    return sum(1024 * int(kibibytes) for kibibytes in sizes)


def _kill(child: "subprocess.Popen[bytes]") -> None:
    """End a child and what it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def run_arm(
    claim: Claim,
    arguments: list[str],
    *,
    run: Callable[[Any], object],
    absent: Callable[[], str | None],
    fixes: tuple[Fix, ...],
    home: str,
) -> None:
    """Run one arm in this process and leave its result in the folder ``--out``.

    Args:
        claim: The case and its fault.
        arguments: Command line.
        run: Runs the real code on the case.
        absent: Why this tree has no such code, else None.
        fixes: The first whose site and edits fit is the fixed arm's.
        home: Module in which the functions that fixes name are found.
    """
    options = _options(arguments)
    (options.out / "ready").touch()
    try:
        reason = absent()
        if reason is not None:
            result = Arm(status="absent", message=f"not applicable: {reason}")
        elif options.arm == "broken":
            result = judged_arm(claim.judge(claim.case, run(claim.case)), claim.key)
        else:
            result = _fixed(claim, run, fixes, home)
    except Exception:  # noqa: BLE001 - reported to the parent as the arm's outcome
        result = Arm(status="errored", message=traceback.format_exc())
    partial = options.out / "result.partial"
    partial.write_text(encode(result), encoding="utf-8")
    partial.rename(options.out / "result")


def _fixed(
    claim: Claim, run: Callable[[Any], object], fixes: tuple[Fix, ...], home: str
) -> Arm:
    here = tuple(
        replace(fix, edits=tuple(_at_home(edit, home) for edit in fix.edits))
        for fix in fixes
    )
    try:
        fix = fitting_fix(here, claim.key.site)
    except NoFix as error:
        return Arm(status="unfit", message=str(error))
    with applied(*fix.edits):
        observation = run(claim.case)
    arm = judged_arm(claim.judge(claim.case, observation), claim.key)
    return replace(arm, message=f"{arm.message} ({fix.name})")


def _at_home(edit: Edit, home: str) -> Edit:
    """The same edit, its function looked up in the module that holds everything."""
    if isinstance(edit, Replacement):
        name = edit.implementation.partition(":")[2]
        return replace(edit, implementation=f"{home}:{name}")
    return edit
