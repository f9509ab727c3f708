"""The subcommands of `python -m reports` and their exit codes.

Whatever cannot be read, merged or compared ends with 2 and a message that says what to
do: a gate fails closed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from reports.base import Replayer, against_base, replay_in_process
from reports.decide import decide
from reports.document import Report
from reports.markdown import markdown
from reports.store import ReportError, load, located, merge
from reports.terminal import render


def main(arguments: Sequence[str], *, replay: Replayer = replay_in_process) -> int:
    """Run a command line; give the exit code.

    Args:
        arguments: Without the program's name.
        replay: How `gate --base` replays a fault on the base.
    """
    options = _parser().parse_args(arguments)
    try:
        match options.command:
            case "show":
                return _show(options.report)
            case "merge":
                return _merge(options.runs, options.out)
            case "gate":
                return _gate(options, replay)
            case _:
                return _schema()
    except (ReportError, OSError) as error:
        print(f"python -m reports {options.command}: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reports", description="Reports of fuzzing runs."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser("show", help="show a run's report on the terminal")
    show.add_argument(
        "report",
        nargs="?",
        help="a run's id or folder, or a report.json (default: the latest run); a run "
        "whose controller died is shown from its events",
    )
    merging = commands.add_parser(
        "merge",
        help="make one run of the runs of several machines",
        description="Exit code 0: complete; 2: parts missing, or not parts of one run.",
    )
    merging.add_argument(
        "runs", nargs="+", metavar="RUN", type=Path, help="folders of runs"
    )
    merging.add_argument(
        "-o",
        "--out",
        metavar="DIR",
        type=Path,
        help="the folder to make (default: a new run)",
    )
    gate = commands.add_parser(
        "gate",
        help="decide whether a merge may go on; prints a markdown summary",
        description="Exit code 0: go on; 1: something is wrong; 2: could not tell.",
    )
    gate.add_argument(
        "report",
        nargs="?",
        help="a run's id or folder, or a report.json (default: the latest run)",
    )
    gate.add_argument(
        "--strict", action="store_true", help="findings on contract input break too"
    )
    gate.add_argument(
        "--base",
        metavar="TREE",
        help="fail only on findings that do not reproduce on this tree (a release, "
        "'installed' or a path)",
    )
    gate.add_argument(
        "--targets",
        metavar="DIR",
        action="append",
        help="for --base: a folder of targets of your own (default: those of the run, "
        "where they lay on its machine)",
    )
    gate.add_argument(
        "--summary", metavar="FILE", type=Path, help="write the summary there as well"
    )
    commands.add_parser("schema", help="print the JSON schema of report.json")
    return parser


def _show(name: str | None) -> int:
    report = load(located(name))
    render(report, decide(report, strict=report.strict), Console(highlight=False))
    return 0


def _merge(runs: Sequence[Path], out: Path | None) -> int:
    report, folder = merge(runs, out=out)
    print(f"merged {len(runs)} runs: {folder / 'report.json'}")
    lacking = _lacking(report)
    for line in lacking:
        print(f"incomplete: {line}", file=sys.stderr)
    return 2 if lacking else 0


def _lacking(report: Report) -> list[str]:
    """What a merged report still lacks to be that of the whole run."""
    lacking = [
        f"the run of --shard-id {each} of {report.num_shards} is missing"
        for each in report.machines_missing
    ]
    lacking += [
        f"shard {shard} never finished"
        for totals in report.properties
        for shard in totals.unfinished
    ]
    if not report.finished:
        lacking.append("a machine's run did not end by itself")
    return lacking


def _gate(options: argparse.Namespace, replay: Replayer) -> int:
    report = load(located(options.report))
    strict = options.strict or report.strict
    decision = decide(report, strict=strict, whole=True)
    if options.base is not None:
        unsaved = {
            each.id
            for each in report.findings
            if not each.saved and "replay" not in each.sources
        }
        recorded = {
            folder for each in report.machines for folder in each.target_folders
        }
        decision = against_base(
            decision,
            options.base,
            target_folders=options.targets or sorted(recorded),
            unsaved=frozenset(unsaved),
            replay=replay,
        )
    summary = markdown(report, decision)
    print(summary, end="")
    if options.summary is not None:
        # Written through links and into devices: the name is a person's, not ours.
        options.summary.write_text(summary, encoding="utf-8")
    return decision.exit


def _schema() -> int:
    schema = msgspec.json.encode(msgspec.json.schema(Report))
    print(msgspec.json.format(schema, indent=2).decode())
    return 0
