"""Cases per second and core of each target, and what the harness adds to a case.

Three things are timed in one run, in turns, and medians are printed: Hypothesis drawing
the strategy and doing nothing else, the same with the target and its judge called
directly, and the same cases through the search and the executor. The difference of the
last two is the harness's own share.

    python -m benchmarks.rates [--vllm TREE] [--target T]... [--cases N] [--json]
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import hypothesis
from hypothesis import HealthCheck, Phase

from fuzz import rooms
from fuzz.campaign import import_rooms
from fuzz.execution import Executor
from fuzz.rooms import Rooms, target_module
from fuzz.search import search
from fuzz.trees import activate, resolve
from invariants.model import ORIGINS, Origin

ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Medians of one property, in seconds per case.

    Attributes:
        direct_s: 0.0 for an isolated target, which cannot be called directly.
    """

    target: str
    origin: Origin
    isolated: bool
    cases: int
    draw_s: float
    direct_s: float
    search_s: float

    @property
    def overhead(self) -> float:
        """The harness's own share of a case, beside drawing it."""
        return (self.search_s - self.direct_s) / self.draw_s


def bare(
    loaded: Rooms, *, origin: Origin, cases: int, body: Callable[[object], None]
) -> None:
    """Draw as the search does, with nothing of ours around."""

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=cases,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=loaded.cases(origin=origin))
    def drawn(case: object) -> None:
        body(case)

    drawn()


def per_case_s(run: Callable[[], None], *, cases: int) -> float:
    """Seconds for each case of a run."""
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) / cases


def rate(executor: Executor, target: str, origin: Origin, *, cases: int) -> Rate:
    """Time one property."""
    loaded = rooms.load(target)
    module = target_module(target)
    isolated = module.RUNTIME.isolated or module.RUNTIME.triton != "jit"
    every = frozenset(_ids_of(executor, loaded, origin, cases=cases))

    def through_search() -> None:
        search(
            cases=loaded.cases(origin=origin),
            judge=lambda case: executor.judge(loaded, case, silenced=every),
            seed=0,
            budget=cases,
            silenced=every,
        )

    def directly(case: object) -> None:
        loaded.judge(case, module.run(case))

    times: dict[str, list[float]] = {"draw": [], "direct": [], "search": []}
    for _ in range(ROUNDS):
        times["draw"].append(
            per_case_s(
                lambda: bare(loaded, origin=origin, cases=cases, body=lambda _: None),
                cases=cases,
            )
        )
        if not isolated:
            times["direct"].append(
                per_case_s(
                    lambda: bare(loaded, origin=origin, cases=cases, body=directly),
                    cases=cases,
                )
            )
        times["search"].append(per_case_s(through_search, cases=cases))
    medians = {
        name: statistics.median(values or [0.0]) for name, values in times.items()
    }
    return Rate(
        target=target,
        origin=origin,
        isolated=isolated,
        cases=cases,
        draw_s=medians["draw"],
        direct_s=medians["direct"],
        search_s=medians["search"],
    )


def _ids_of(
    executor: Executor, loaded: Rooms, origin: Origin, *, cases: int
) -> set[str]:
    """Ids of the faults that these cases show: silenced, so that nothing is shrunk."""
    result = search(
        cases=loaded.cases(origin=origin),
        judge=lambda case: executor.judge(loaded, case),
        seed=0,
        budget=cases,
        shrink_cases=0,
    )
    return {fault.violation.key.id for fault in result.faults}


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rates")
    parser.add_argument("--vllm", metavar="TREE")
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--isolated-cases", type=int, default=20)
    parser.add_argument("--target", action="append", metavar="NAME")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    tree = resolve(options.vllm, progress=lambda line: print(line, file=sys.stderr))
    activate(tree)
    import_rooms()
    if not options.json:
        print(f"vLLM {tree.version}, medians of {ROUNDS} rounds, one process, one core")
        heads = ("cases/s", "draw ms", "case ms", "overhead")
        print(f"{'property':32} " + " ".join(f"{head:>9}" for head in heads))
    rates = []
    with Executor(tree=tree) as executor:
        for target in options.target or rooms.discover():
            module = target_module(target)
            if module.absent() is not None:
                continue
            slow = module.RUNTIME.isolated or module.RUNTIME.triton != "jit"
            for origin in ORIGINS:
                print(f"measuring {target}/{origin}", file=sys.stderr)
                cases = options.isolated_cases if slow else options.cases
                rates.append(rate(executor, target, origin, cases=cases))
                if not options.json:
                    print(_row(rates[-1]), flush=True)
    if options.json:
        print(json.dumps([asdict(each) for each in rates], indent=2))


def _row(each: Rate) -> str:
    overhead = "isolated" if each.isolated else f"{each.overhead:.0%}"
    return (
        f"{each.target + '/' + each.origin:32} {1 / each.search_s:9.1f} "
        f"{each.draw_s * 1e3:9.2f} {each.search_s * 1e3:9.2f} {overhead:>9}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
