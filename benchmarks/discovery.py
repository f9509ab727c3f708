"""Cases and seconds until each known fault is found from scratch, over many seeds.

Each release runs in a process of its own. For every seed the property is searched with
nothing known until the fault's id turns up; then it is shrunk. Medians and the worst of
all seeds are printed, with the sizes of the shrunk cases. With `--plain` no size that
comes from a deployment, and so from a report, is among those that are drawn.

    python -m benchmarks.discovery [--seeds 20] [--id ID]... [--plain] [--json]
"""

import argparse
import inspect
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from fuzz import rooms
from fuzz.campaign import import_rooms
from fuzz.execution import Executor
from fuzz.profiles import derived_seed
from fuzz.search import search
from fuzz.trees import activate, resolve
from invariants.model import Judgement, Origin, encode
from reproducers import store
from reproducers.case_file import Saved

BUDGET = 20_000


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """How one fault was found with one seed; cases is 0 where it was not."""

    id: str
    release: str
    seed: int
    cases: int
    seconds: float
    size: int


def discover(
    executor: Executor, saved: Saved, *, release: str, seed: int, plain: bool
) -> Discovery:
    """Search one property until one fault is found, then shrink it."""
    loaded = rooms.load(saved.target)
    origin: Origin = saved.origin
    bounds: dict[str, bool] = {}
    if plain and "deployed" in inspect.signature(loaded.cases).parameters:
        bounds["deployed"] = False

    def only_this(case: object) -> Judgement:
        judgement = executor.judge(loaded, case)
        kept = tuple(v for v in judgement.violations if v.key.id == saved.id)
        return Judgement(
            judged=judgement.judged, violations=kept, labels=judgement.labels
        )

    started = time.monotonic()
    seen_s: list[float] = []
    result = search(
        cases=loaded.cases(origin=origin, **bounds),
        judge=only_this,
        seed=derived_seed(seed, "discovery", saved.id),
        budget=BUDGET,
        first_only=True,
        shrink_cases=600,
        on_fault=lambda _: seen_s.append(time.monotonic() - started),
    )
    return Discovery(
        id=saved.id,
        release=release,
        seed=seed,
        cases=result.cases if result.faults else 0,
        seconds=seen_s[0] if seen_s else 0.0,
        size=len(encode(result.faults[0].case)) if result.faults else 0,
    )


def discoveries(
    release: str, ids: list[str], *, seeds: int, plain: bool
) -> list[Discovery]:
    """Every fault with every seed on one release, in this process."""
    tree = resolve(release)
    activate(tree)
    import_rooms()
    found = []
    with Executor(tree=tree) as executor:
        for fault_id in ids:
            saved = store.read(store.STORE, fault_id)
            for seed in range(seeds):
                print(f"{release} {fault_id} seed {seed}", file=sys.stderr)
                found.append(
                    discover(executor, saved, release=release, seed=seed, plain=plain)
                )
    return found


def main(arguments: list[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.discovery")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--id", action="append", help="only these saved faults")
    parser.add_argument("--plain", action="store_true", help="no deployment's sizes")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--release", help="only this release, in this process")
    options = parser.parse_args(arguments)
    wanted: dict[str, list[str]] = {}
    for saved in store.entries(store.STORE):
        if isinstance(saved, Saved) and saved.id in (options.id or [saved.id]):
            wanted.setdefault(saved.found_on.version, []).append(saved.id)
    if options.release:
        found = discoveries(
            options.release,
            wanted[options.release],
            seeds=options.seeds,
            plain=options.plain,
        )
        print(json.dumps([asdict(each) for each in found]))
        return
    rows: list[Discovery] = []
    for release in sorted(wanted):
        command = [sys.executable, "-m", "benchmarks.discovery", "--release", release]
        command += ["--seeds", str(options.seeds)]
        command += ["--plain"] if options.plain else []
        for each in options.id or []:
            command += ["--id", each]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows += [Discovery(**each) for each in json.loads(done.stdout)]
    if options.json:
        print(json.dumps([asdict(each) for each in rows], indent=2))
        return
    print(f"{options.seeds} seeds, budget {BUDGET} cases; median (worst)")
    print(f"{'fault':28} {'release':8} {'found':>6} {'cases':>14} {'seconds':>16} size")
    for key in dict.fromkeys((each.id, each.release) for each in rows):
        print(_line(key, [each for each in rows if (each.id, each.release) == key]))


def _line(key: tuple[str, str], rows: list[Discovery]) -> str:
    found = [each for each in rows if each.cases]
    if not found:
        return f"{key[0]:28} {key[1]:8} {0:>3}/{len(rows)}"
    cases = [each.cases for each in found]
    seconds = [each.seconds for each in found]
    sizes = [each.size for each in found]
    return (
        f"{key[0]:28} {key[1]:8} {len(found):>3}/{len(rows)} "
        f"{statistics.median(cases):6.0f} ({max(cases):5}) "
        f"{statistics.median(seconds):7.2f} ({max(seconds):6.2f}) "
        f"{statistics.median(sizes):.0f} ({max(sizes)})"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
