"""Where cases run, and that a verdict is the case's own; see executor_scenarios."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.executor_scenarios import SCENARIOS


@pytest.mark.parametrize("name", [each.__name__ for each in SCENARIOS])
def test_scenario(name: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.executor_scenarios", name, str(tmp_path)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
