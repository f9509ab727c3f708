"""How a Python process of ours is started: it finds this project, and the same tree."""

import os
import sys
from pathlib import Path


def module_command(module: str, argument: str) -> list[str]:
    """Runs a module of this project with one argument."""
    # -P: a `vllm` folder where the user stands must not be imported.
    return [sys.executable, "-P", "-m", module, argument]


def project_environment() -> dict[str, str]:
    """This process's, in which the project is found wherever the user stands."""
    root = str(Path(__file__).resolve().parents[1])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
