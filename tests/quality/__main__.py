"""Publish the kill rate: `python -m tests.quality [--target T] [--cases N] [--json]`.

Hunts every written and every mechanical fault of each target and prints how many were
found, after how many cases, and each survivor with its explanation.
"""

import argparse
import json
import statistics
import sys
from dataclasses import asdict

from fuzz.campaign import import_rooms
from fuzz.execution import Executor
from fuzz.trees import activate, resolve
from tests.quality.suite import (
    STOPPED,
    Hunt,
    cases_of,
    explained_survivors,
    hunt_mechanical,
    hunt_written,
    mechanical_of,
    mutant_targets,
    written,
)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def hunts(
    executor: Executor, target: str, *, cases: int
) -> tuple[list[Hunt], list[Hunt]]:
    """All hunts of a target: those of written faults, those of mechanical ones."""
    by_hand = []
    for mutant in written(target):
        by_hand.append(hunt_written(executor, target, mutant))
        _say(f"{target} written: {mutant.name}: {by_hand[-1].cases} cases")
    mechanically = []
    every = mechanical_of(target)
    for number, fault in enumerate(every, start=1):
        hunt = hunt_mechanical(executor, target, fault, cases=cases)
        mechanically.append(hunt)
        verdict = "found" if hunt.found else "SURVIVES"
        _say(f"{target} {number}/{len(every)} {fault.name}: {verdict}, {hunt.cases}")
    return by_hand, mechanically


def _print(
    target: str, by_hand: list[Hunt], mechanically: list[Hunt], *, cases: int
) -> None:
    found = [hunt for hunt in by_hand if hunt.found]
    killed = [hunt for hunt in mechanically if hunt.found]
    print(f"{target}")
    print(f"  written     {len(found)}/{len(by_hand)} found")
    for hunt in by_hand:
        size = f"{len(hunt.shrunk)} characters" if hunt.found else "NOT FOUND"
        print(f"    {hunt.cases:5} cases  {size:16} {hunt.name}")
    median = statistics.median(hunt.cases for hunt in killed) if killed else 0
    stopped = sum(hunt.invariant.startswith(STOPPED) for hunt in killed)
    rate = len(killed) / len(mechanically) if mechanically else 0
    print(
        f"  mechanical  {len(killed)}/{len(mechanically)} found ({rate:.0%}), "
        f"within {cases} cases of each origin, median {median:.0f}; "
        f"{stopped} of them stopped the run (exit 2)"
    )
    explained = explained_survivors()
    for hunt in mechanically:
        if not hunt.found:
            why = explained.get(hunt.name, "NOT EXPLAINED")
            print(f"    survives: {hunt.name}\n              {why}")


def main(arguments: list[str]) -> None:
    """Hunt and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.quality")
    parser.add_argument("--vllm", metavar="TREE")
    parser.add_argument("--target", action="append", choices=mutant_targets())
    parser.add_argument(
        "--cases",
        type=int,
        help="of each origin, in which a mechanical fault is sought",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    tree = resolve(options.vllm, progress=_say)
    activate(tree)
    import_rooms()
    cases: dict[str, int] = {}
    results = {}
    with Executor(tree=tree) as executor:
        for target in options.target or mutant_targets():
            cases[target] = options.cases or cases_of(target)
            results[target] = hunts(executor, target, cases=cases[target])
    if options.json:
        plain = {
            target: [asdict(hunt) for hunt in (*by_hand, *mechanically)]
            for target, (by_hand, mechanically) in results.items()
        }
        print(json.dumps(plain, indent=2))
        return
    print(f"vLLM {tree.version}")
    for target, (by_hand, mechanically) in results.items():
        _print(target, by_hand, mechanically, cases=cases[target])


if __name__ == "__main__":
    main(sys.argv[1:])
