"""The README's recipes for CI services: whatever came before, the gate says why.

The shell lines are run as they stand there, beside stand-ins for what a service has.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.report_events import machine, write

ROOT = Path(__file__).parents[1]


def recipe(word: str) -> Any:
    """The YAML of the one recipe that has this word."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (block,) = (block for block in blocks if word in block)
    return msgspec.yaml.decode(block)


def stand_in(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def run(
    script: str, place: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run lines as both services do: one that fails ends them."""
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=place,
        env=os.environ
        | {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("machines", "code", "told"),
    [
        (2, 0, "kvfuzz passed"),
        (1, 2, "1 of 2 machines' runs are missing (--shard-id 1)"),
        (0, 2, "no report at merged"),
    ],
)
def test_the_gate_of_several_machines_says_why(
    tmp_path: Path, machines: int, code: int, told: str
) -> None:
    _, wait, gate = recipe("buildkite-agent")["steps"]
    assert wait["continue_on_failure"] is True
    # As the service does it: nothing found is an error.
    stand_in(tmp_path / "bin/buildkite-agent", "test -d reports/runs")
    stand_in(tmp_path / "bin/make", "")
    stand_in(tmp_path / ".venv/bin/python", f'exec {sys.executable} "$@"')
    for number in range(machines):
        write(tmp_path / f"reports/runs/run{number}", machine(number))
    done = run("\n".join(gate["command"]), tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert told in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("pull", "told"), [("true", "gate --base ../base --summary"), ("false", "gate --")]
)
def test_the_gate_runs_after_a_fuzzing_run_that_failed(
    tmp_path: Path, pull: str, told: str
) -> None:
    steps = recipe("actions/checkout")["jobs"]["fuzz"]["steps"]
    (script,) = (s["run"] for s in steps if s.get("working-directory") == "kvfuzz")
    stand_in(tmp_path / "bin/make", "")
    stand_in(tmp_path / ".venv/bin/pytest", "exit 1")
    stand_in(tmp_path / ".venv/bin/python", 'echo "$@"; exit 2')
    done = run(script, tmp_path, PULL=pull, GITHUB_STEP_SUMMARY="summary")
    assert done.returncode == 2
    assert done.stdout.startswith(f"-m reports {told}")


def test_a_machine_of_several_that_finds_something_does_not_end_its_step() -> None:
    fuzz, _, _ = recipe("buildkite-agent")["steps"]
    # A finding is the gate's to tell; an option that pytest refused leaves no report.
    assert fuzz["command"][-1].endswith("|| [ $$? -ne 4 ]")
