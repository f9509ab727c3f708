"""Runs Mamba block-table cases on one tree and prints what was found, as JSON.

A process has one vLLM tree, so tests that look at several start this:
``python -m tests.mamba_table_trees RELEASE ORIGIN CASES [--fixed] [--patches DIR]``.
"""

import argparse
import json
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from fuzz.edits import Edit, applied
from fuzz.trees import activate, resolve
from invariants.mamba_block_table import judge
from invariants.mamba_table_values import Case
from invariants.model import encode
from reproducers.fixing import NoFix, fitting_fix
from strategies.mamba_block_table import cases


def main() -> None:
    """Draw cases, judge them, print faults by ID with counts and the labels seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("release")
    parser.add_argument("origin", choices=("contract", "wired"))
    parser.add_argument("cases", type=int)
    parser.add_argument("--fixed", action="store_true", help="apply all fixes that fit")
    parser.add_argument("--patches", type=Path, help="a series to apply on a copy")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    activate(resolve(options.release, patches=options.patches))
    with ExitStack() as fixes:
        if options.fixed:
            for edit in _fixes():
                fixes.enter_context(applied(edit))
        found = _search(options)
    json.dump(found, sys.stdout)


def _fixes() -> list[Edit]:
    """Each site's first fix that fits, every edit once."""
    from reproducers.fixes.mamba_block_table import FIXES

    edits: list[Edit] = []
    for site in dict.fromkeys(site for fix in FIXES for site in fix.sites):
        try:
            fix = fitting_fix(FIXES, site)
        except NoFix:
            continue
        edits += [edit for edit in fix.edits if edit not in edits]
    return edits


def _search(options: argparse.Namespace) -> dict[str, Any]:
    from fuzz.targets.mamba_block_table import absent, run

    faults: dict[str, dict[str, Any]] = {}
    labels: Counter[str] = Counter()
    count = Counter[str]()

    @seed(options.seed)
    @settings(
        max_examples=options.cases,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases(origin=options.origin))
    def each(case: Case) -> None:
        count["cases"] += 1
        judgement = judge(case, run(case))
        labels.update(judgement.labels)
        for violation in judgement.violations:
            fault = faults.setdefault(
                violation.key.id,
                {
                    "invariant": violation.invariant,
                    "site": violation.site,
                    "exception": violation.exception,
                    "branches": [],
                    "count": 0,
                    "hybrid": 0,
                },
            )
            fault["count"] += 1
            groups = case.engine.attention_block_sizes if case.engine else ()
            fault["hybrid"] += bool(groups)
            fault["branches"] = sorted({*fault["branches"], case.branch})
            fault |= {"message": violation.message, "case": encode(case)}

    missing = absent()
    if missing is None:
        each()
    return {
        "absent": missing,
        "cases": count["cases"],
        "faults": faults,
        "labels": labels,
    }


if __name__ == "__main__":
    main()
