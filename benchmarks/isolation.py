"""Cost of isolation: `python -m benchmarks.isolation [--target NAME]... [--json]`.

Runs drawn cases of targets in a reused child and in fresh ones. The default target, the
toy of the tests, does next to nothing, so that what is left is isolation itself.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.isolation import Isolation
from fuzz.rooms import add_folder, load, target_module
from fuzz.trees import Tree, activate, resolve
from invariants.model import encode

TOYS = Path(__file__).parents[1] / "tests" / "targets_folder"

SENTENCE = (
    "{target} on vLLM {tree}: zygote started in {startup_s} s; a case takes "
    "{reused_child_ms} ms in a reused child ({cases_per_s} cases/s over {cases} "
    "cases), {fresh_child_ms} ms in a fresh one"
)


def drawn_cases(target: str, count: int) -> list[str]:
    """JSON of cases of a target, the same at every call."""
    import hypothesis

    rooms = load(target)
    cases: list[str] = []

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(rooms.cases(origin="contract"))
    def draw(case: object) -> None:
        cases.append(encode(case))

    draw()
    return cases


def median_ms(run: Callable[[str], object], cases: list[str]) -> float:
    """Median time of running one case, in milliseconds."""
    times = []
    for case in cases:
        began = time.perf_counter()
        run(case)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1_000


def measure(tree: Tree, target: str, count: int) -> dict[str, Any]:
    """Figures of one target: start-up in seconds, cases in milliseconds."""
    runtime = target_module(target).RUNTIME
    with Isolation(tree=tree, runtime=runtime, target_folders=(TOYS,)) as isolation:
        cases = drawn_cases(target, count)
        isolation.run(target, cases[0])
        began = time.perf_counter()
        isolation.run_many(target, cases)
        seconds = time.perf_counter() - began
        reused = median_ms(lambda case: isolation.run(target, case), cases)
        fresh = median_ms(
            lambda case: isolation.run(target, case, fresh=True), cases[:50]
        )
        startup_s = isolation.startup_s
    return {
        "target": target,
        "tree": tree.version,
        "cases": len(cases),
        "startup_s": round(startup_s, 2),
        "reused_child_ms": round(reused, 3),
        "fresh_child_ms": round(fresh, 3),
        "cases_per_s": round(len(cases) / seconds, 1),
    }


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.isolation")
    parser.add_argument("--vllm", help="tree to import (default: the pinned release)")
    parser.add_argument(
        "--target", action="append", help="a target to measure (default: toy)"
    )
    parser.add_argument("--cases", type=int, default=500, help="cases of each target")
    parser.add_argument("--json", action="store_true", help="print one JSON line each")
    given = parser.parse_args(arguments)
    add_folder(TOYS)
    tree = resolve(given.vllm)
    activate(tree)
    for target in given.target or ["toy"]:
        row = measure(tree, target, given.cases)
        line = json.dumps(row) if given.json else SENTENCE.format(**row)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
