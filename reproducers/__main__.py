"""The command for people: list, show, replay, regenerate and prune saved faults."""

import argparse
import os
import signal
import sys
from pathlib import Path

from fuzz.rooms import RoomsError, add_folder, check_name
from fuzz.trees import TreeError
from invariants.model import CaseError
from reproducers.case_file import Refused, Saved
from reproducers.commands import Trial, prune, replayed, show
from reproducers.display import Display
from reproducers.flatten import ScriptError
from reproducers.ledger import KNOWN, Ledger, LedgerError
from reproducers.store import STORE, entries, rewrite

FIX_WORDS = {
    "does not hold": "fails",
    "does not fit this tree": "unfit",
    "cannot be told": "untold",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m reproducers",
        description="Saved faults: their smallest cases, fixes and replays.",
    )
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--store",
        type=Path,
        default=Path(os.environ.get("KVFUZZ_CASES") or STORE),
        metavar="DIR",
        help="saved cases (default: KVFUZZ_CASES, else this checkout's)",
    )
    shared.add_argument(
        "--ledger",
        type=Path,
        default=Path(os.environ.get("KVFUZZ_LEDGER") or KNOWN),
        metavar="FILE",
        help="known findings (default: KVFUZZ_LEDGER, else this checkout's)",
    )
    shared.add_argument(
        "--targets",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a folder of targets of your own, laid out like this repository",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", parents=[shared], help="show all saved faults")
    one = commands.add_parser("show", parents=[shared], help="show all about one")
    one.add_argument("id", metavar="ID", help="a saved fault's, as list shows it")
    again = commands.add_parser(
        "replay",
        parents=[shared],
        help="run saved faults again, as they are and fixed",
        description="Exit status, the worst of all: 0 FIXED or NOT_APPLICABLE, "
        "1 REPRODUCED (or another fault shows on the case), 2 ERRORED.",
    )
    again.add_argument(
        "ids", nargs="+", metavar="ID", help="saved faults', as list shows them"
    )
    again.add_argument(
        "--vllm",
        metavar="TREE",
        help="a release (0.20.1), 'installed' or a path; default: the tree on which "
        "each fault was found",
    )
    again.add_argument(
        "--vllm-patches", type=Path, metavar="DIR", help="apply a patch series"
    )
    again.add_argument(
        "--across",
        metavar="TREE,TREE,...",
        help="replay on each of these trees and show which are affected",
    )
    again.add_argument(
        "--json", action="store_true", help="one JSON object a line, nothing else"
    )
    script = commands.add_parser(
        "script", parents=[shared], help="generate repro.py anew from case.json"
    )
    script.add_argument("ids", nargs="*", metavar="ID", help="default: all")
    old = commands.add_parser(
        "prune",
        parents=[shared],
        help="remove cases that no longer reproduce where they were found, or are "
        "refused; never those of the ledger",
    )
    choice = old.add_mutually_exclusive_group()
    choice.add_argument("--dry-run", action="store_true", help="only say which")
    choice.add_argument("--yes", action="store_true", help="remove without asking")
    return parser


def _list(options: argparse.Namespace, ledger: Ledger, display: Display) -> int:
    rows: list[tuple[str, ...]] = []
    refused: list[tuple[str, str]] = []
    for each in entries(options.store):
        if isinstance(each, Refused):
            refused.append((each.id, each.reason))
            continue
        try:
            check_name(each.target)
        except RoomsError as error:
            refused.append((each.id, str(error)))
        else:
            rows.append(_row(each, ledger))
    if rows:
        headings = ("ID", "severity", "origin", "found on", "fix", "ledger", "cause")
        display.table(headings, rows)
    elif not refused:
        display.line(f"no saved cases in {options.store}")
    for id_, reason in refused:
        display.line(f"refused: {id_}: {reason}", style="red")
    return 0


def _row(saved: Saved, ledger: Ledger) -> tuple[str, ...]:
    entry = ledger.get(saved.id)
    # What follows the colon is why; `show` has it.
    status = saved.fix.partition(":")[0]
    fix = FIX_WORDS.get(status, status)
    known = "new" if entry is None else entry.link.rsplit("/", 1)[-1] or "known"
    version = f"{saved.found_on.version}{' patched' if saved.found_on.patches else ''}"
    return (
        saved.id,
        saved.severity,
        saved.origin,
        version,
        fix,
        known,
        saved.message,
    )


def _run(options: argparse.Namespace, display: Display) -> int:
    for folder in options.targets:
        add_folder(folder)
    ledger = Ledger.load(options.ledger)
    if options.command == "list":
        return _list(options, ledger, display)
    if options.command == "show":
        return show(options.id, store=options.store, ledger=ledger, display=display)
    if options.command == "script":
        usable = [e.id for e in entries(options.store) if isinstance(e, Saved)]
        for id_ in options.ids or usable:
            display.line(str(rewrite(options.store, id_)))
        return 0
    trial = Trial(
        store=options.store, target_folders=tuple(options.targets), display=display
    )
    if options.command == "prune":
        confirmed = None if sys.stdin.isatty() else False
        if options.yes or options.dry_run:
            confirmed = options.yes
        return prune(trial, ledger=ledger, confirmed=confirmed)
    return replayed(
        trial,
        tuple(dict.fromkeys(options.ids)),
        spec=options.vllm,
        patches=options.vllm_patches,
        across=None if options.across is None else tuple(options.across.split(",")),
        ledger=ledger,
        as_json=options.json,
    )


def main(arguments: list[str] | None = None) -> int:
    """Run a command; 2 when it cannot be carried out."""
    options = _parser().parse_args(arguments)
    display = Display()
    try:
        return _run(options, display)
    except (CaseError, LedgerError, RoomsError, ScriptError, TreeError) as error:
        display.error(str(error))
        return 2
    finally:
        display.done_waiting()


if __name__ == "__main__":
    # A reader that closes the pipe early (head) ends this as it ends any filter.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
