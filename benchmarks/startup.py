"""Start-up times: collecting tests, a worker's first case, an isolating process.

python -m benchmarks.startup [--vllm TREE]
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROUNDS = 3
WORKER = """
from fuzz.campaign import import_rooms
from fuzz.execution import Executor
from fuzz.trees import activate, resolve
from fuzz import rooms
tree = resolve({tree!r})
activate(tree)
import_rooms()
for name in rooms.discover():
    module = rooms.target_module(name)
    assert module.absent() is None, name
"""


def median_s(command: Sequence[str]) -> float:
    """Median wall-clock seconds of a command."""
    times = []
    for _ in range(ROUNDS):
        started = time.monotonic()
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        times.append(time.monotonic() - started)
    return statistics.median(times)


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup")
    parser.add_argument("--vllm", metavar="TREE")
    options = parser.parse_args(arguments)
    python = sys.executable
    collect = [python, "-m", "pytest", "fuzz", "--collect-only", "-q"]
    rows = {
        "pytest fuzz/ --collect-only": collect,
        "pytest --help": [python, "-m", "pytest", "--help"],
        "python -m reports schema": [python, "-m", "reports", "schema"],
        "a worker, to its first case": [python, "-c", WORKER.format(tree=options.vllm)],
    }
    for name, command in rows.items():
        print(f"{name:32} {median_s(command):6.2f} s (median of {ROUNDS})")


if __name__ == "__main__":
    main(sys.argv[1:])
