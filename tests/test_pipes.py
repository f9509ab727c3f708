"""Commands whose reader has gone, as behind `head`: no verdict, and no traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "command", [("fuzz.trees", "list"), ("reproducers", "list"), ("reports", "schema")]
)
def test_a_closed_pipe_ends_a_command_quietly(
    command: tuple[str, str], tmp_path: Path
) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env=os.environ | {"KVFUZZ_CACHE": str(tmp_path)},
            stdout=write_end,
            stderr=subprocess.PIPE,
            check=False,
            text=True,
        )
    finally:
        os.close(write_end)
    assert done.returncode == -signal.SIGPIPE
    assert done.stderr == ""
