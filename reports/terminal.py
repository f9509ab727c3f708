"""The last screen of a run: a line for each invariant, each finding, the verdict.

Every word is told by text; colour only repeats it, and rich leaves it out where there
is no terminal or NO_COLOR is set.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reports.decide import Decision, Reason
from reports.document import Finding, Report, Row
from reports.events import ORIGINS, Origin
from reports.text import (
    EXIT_WORDS,
    counted,
    cut,
    fix_status,
    headline,
    known,
    news,
    pretty_case,
    printable,
    remarks,
    subject_lines,
)

WIDTH_MIN, WIDTH_MAX = 80, 200
STATEMENT_WIDTH_MIN = 40  # in a narrower column statements say too little
CASE_LINES = 24
REASONS_SHOWN = 20

VERDICT_STYLES = {
    "violated": "bold red",
    "incomplete": "magenta",
    "vacuous": "magenta",
    "known": "yellow",
    "held": "green",
    "not run": "dim",
    "absent": "dim",
}
EXIT_STYLES = {0: "bold green", 1: "bold red", 2: "bold magenta"}


def render(report: Report, decision: Decision, console: Console) -> None:
    """Print the report and what it means."""
    width = max(WIDTH_MIN, min(WIDTH_MAX, console.width))
    console.print(Text.assemble(("kvfuzz", "bold"), "  ", headline(report)))
    for line in subject_lines(report):
        console.print(Text(line, style="dim"))
    _print_rows(report, console, width=width)
    _print_checks(report, console)
    new = news(report)
    for number, finding in enumerate(new, start=1):
        place = f"{number} of {len(new)}"
        _print_finding(finding, report, console, place=place, width=width)
    _print_decision(decision, console)


def _print_rows(report: Report, console: Console, *, width: int) -> None:
    unselected = {
        row.target
        for row in report.rows
        if all(r.verdict == "not run" for r in report.rows if r.target == row.target)
    }
    shown = [row for row in report.rows if row.target not in unselected]
    if shown:
        console.print()
        bare = _rows_table(shown, statement_width=0)
        room = width - console.measure(bare).maximum
        console.print(
            _rows_table(shown, statement_width=room)
            if room >= STATEMENT_WIDTH_MIN
            else bare
        )
    if unselected:
        names = ", ".join(sorted(unselected))
        console.print(Text(f"not selected: {names}", style="dim"))


def _rows_table(rows: Sequence[Row], *, statement_width: int) -> Table:
    """A line for each invariant; a statement width of 0 leaves statements out."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", expand=False)
    table.add_column("invariant", overflow="fold")
    for origin in ORIGINS:
        table.add_column(origin, no_wrap=True)
        table.add_column("cases", justify="right", no_wrap=True)
        table.add_column("labels", justify="right", no_wrap=True)
    if statement_width:
        table.add_column("statement", no_wrap=True, style="dim")
    target = ""
    for invariant in dict.fromkeys((row.target, row.invariant) for row in rows):
        if invariant[0] != target:
            target = invariant[0]
            table.add_row(Text(target, style="bold"))
        both: dict[Origin, Row] = {
            row.origin: row for row in rows if (row.target, row.invariant) == invariant
        }
        cells = [Text(f"  {invariant[1]}")]
        for origin in ORIGINS:
            cells += _row_cells(both.get(origin))
        if statement_width:
            statement = printable(next(iter(both.values())).statement)
            cells.append(Text(cut(statement, statement_width - 1)))
        table.add_row(*cells)
    return table


def _row_cells(row: Row | None) -> list[Text]:
    """Verdict, cases, and how many of the needed labels were seen often enough."""
    if row is None:
        return [Text("-", style="dim"), Text(), Text()]
    seen = len(row.labels) - len(row.labels_missing)
    return [
        Text(row.verdict, style=VERDICT_STYLES[row.verdict]),
        Text(f"{row.cases:,}"),
        Text(
            f"{seen}/{len(row.labels)}" if row.labels else "",
            style="magenta" if row.labels_missing else "",
        ),
    ]


def _print_checks(report: Report, console: Console) -> None:
    """Controls, saved faults, what is known, what was skipped, what went wrong."""
    console.print()
    found = sum(each.outcome == "found" for each in report.controls)
    lines = [("controls", f"{found} of {len(report.controls)} found")]
    outcomes: dict[str, int] = {}
    for replay in report.replays:
        outcomes[replay.outcome] = outcomes.get(replay.outcome, 0) + 1
    told = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
    lines.append(("saved faults", told or "none"))
    lines += [
        ("skipped", f"{each.what}: {each.reason} ({counted(each.count, 'case')})")
        for each in report.skips
    ]
    lines += [
        ("known", f"{each.id} {each.invariant} ({each.origin}): {words}")
        for each, words in known(report)
    ]
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, line in lines:
        table.add_row(name, Text(printable(line)))
    for problem in report.problems:
        where = [problem.where, *problem.message.splitlines()]
        table.add_row("problem", Text("\n".join(printable(line) for line in where)))
    console.print(table)


def _print_finding(
    finding: Finding, report: Report, console: Console, *, place: str, width: int
) -> None:
    row = next(
        (
            row
            for row in report.rows
            if (row.invariant, row.origin) == (finding.invariant, finding.origin)
        ),
        None,
    )
    severity = f", {row.severity}" if row else ""
    console.print()
    console.print(
        Text.assemble(
            (f"{finding.standing} finding {place}: ", "red"),
            (finding.id, "bold red"),
            f"  {finding.invariant} ({finding.origin}{severity})",
        )
    )
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    if row:
        table.add_row("law", Text(printable(row.statement)))
    table.add_row("cause", Text(printable(finding.cause), style="bold"))
    if finding.site:
        raised = f", {finding.exception}" if finding.exception else ""
        table.add_row("site", Text(printable(f"{finding.site}{raised}")))
    for remark in remarks(finding):
        table.add_row("note", Text(remark))
    table.add_row("fix", Text(fix_status(finding)))
    if finding.saved:
        table.add_row("saved", Text(printable(finding.saved)))
    console.print(table)
    if finding.case:
        console.print(Text(f"  smallest case, {len(finding.case):,} characters", "dim"))
        lines = pretty_case(finding.case, width=width - 6, lines_max=CASE_LINES)
        console.print(Padding(Text("\n".join(lines)), (0, 0, 0, 4)))
    # Never wrapped by us: a command is there to be copied.
    command = Text.assemble(("  replay ", "dim"), (printable(finding.command), "bold"))
    console.print(command, soft_wrap=True)


def _print_decision(decision: Decision, console: Console) -> None:
    console.print()
    style = EXIT_STYLES[decision.exit]
    console.print(Text(f"exit {decision.exit}: {EXIT_WORDS[decision.exit]}", style))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number in (1, 2):
        reasons: list[Reason] = [r for r in decision.reasons if r.exit == number]
        for reason in reasons[:REASONS_SHOWN]:
            mark = Text(str(number), style=EXIT_STYLES[number])
            table.add_row(mark, Text(printable(reason.text)))
        if len(reasons) > REASONS_SHOWN:
            more = f"… {len(reasons) - REASONS_SHOWN} more reasons like these"
            table.add_row(str(number), Text(f"{more}: see report.md", style="dim"))
    for note in decision.notes:
        table.add_row(Text("note", style="dim"), Text(printable(note)))
    console.print(table)
