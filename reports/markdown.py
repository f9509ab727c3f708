"""The report as GitHub markdown that fits into a comment on a merge.

What decides comes first: verdict, reasons, findings; then invariants, the worst first.
Each section has a size of its own, and what had to be left out is counted.
"""

import re
from collections.abc import Iterator, Sequence

from reports.decide import Decision
from reports.document import Finding, Report, Row, Verdict
from reports.events import LedgerRecord
from reports.text import (
    counted,
    cut,
    fix_status,
    headline,
    pretty_case,
    printable,
    remarks,
    subject_lines,
)

# GitHub refuses comments above 65,536 characters; the sections' sizes add up to less.
SIZE_MAX_BYTES = 60_000
CASE_LINES = 40
CASE_WIDTH = 96
WORDS_MAX = 400

EXIT_WORDS = {
    0: "passed: every invariant held and was exercised",
    1: "failed",
    2: "could not tell",
}
_WORST_FIRST: tuple[Verdict, ...] = (
    "violated",
    "incomplete",
    "vacuous",
    "known",
    "held",
    "absent",
    "not run",
)
_ROWS_LEAD = (
    "| invariant | origin | verdict | cases | labels | statement |\n"
    "| --- | --- | --- | ---: | --- | --- |"
)
_SPECIAL = re.compile(r"([\\`*_\[\]<>~|&$])")
# A word joiner keeps GitHub from calling people and linking issues.
_REFERENCE = re.compile(r"([@#])(?=\w)")
_LINK = re.compile(r"https://[\w./#?=&%~+-]+")


def markdown(report: Report, decision: Decision) -> str:
    """The page, below `SIZE_MAX_BYTES` of UTF-8 whatever the report holds."""
    news = [each for each in report.findings if each.standing != "known"]
    known = [each for each in report.findings if each.standing == "known"]
    reasons = [f"- **{each.exit}** {prose(each.text)}" for each in decision.reasons]
    notes = [f"- {prose(note)}" for note in decision.notes]
    told = [f"- {prose(line)}" for line in subject_lines(report)]
    told += [f"- command {code(each.command)}" for each in report.machines]
    told += [
        f"- skipped, {counted(each.count, 'time')}: "
        + prose(f"{each.what}: {each.reason}")
        for each in report.skips
    ]
    parts = [
        f"## kvfuzz {EXIT_WORDS[decision.exit]} (exit {decision.exit})",
        prose(headline(report)),
        *_section("", reasons, size_max=14_000),
        *_section("Notes", notes, size_max=5_000),
        *_section("Findings", [_finding(each) for each in news], size_max=22_000),
        *_section("Known findings", _known(known, report.ledger), size_max=5_000),
        *_section("Invariants", _rows(report.rows), size_max=9_000, lead=_ROWS_LEAD),
        *_section("Run", told, size_max=3_000),
    ]
    return "\n\n".join(parts) + "\n"


def prose(text: str) -> str:
    """Text that GitHub shows as it is, on one line."""
    plain = _SPECIAL.sub(r"\\\1", cut(printable(text), WORDS_MAX))
    return _REFERENCE.sub("\\1\u2060", plain)


def code(text: str) -> str:
    """Text as inline code, whatever backticks and bars it holds."""
    plain = cut(printable(text), WORDS_MAX).replace("|", "\\|")
    ticks = "`" * (max(map(len, re.findall("`+", plain)), default=0) + 1)
    space = " " if len(ticks) > 1 else ""
    return f"{ticks}{space}{plain}{space}{ticks}"


def _section(
    title: str, items: Sequence[str], *, size_max: int, lead: str = ""
) -> Iterator[str]:
    """A section of as many items as fit into ``size_max`` bytes; none when empty."""
    if not items:
        return
    shown: list[str] = [lead] if lead else []
    size = 0
    for number, item in enumerate(items):
        size += len(item.encode()) + 1
        if size > size_max:
            left_out = len(items) - number
            shown.append(f"\n… and {left_out:,} more, see report.json")
            break
        shown.append(item)
    if title:
        yield f"### {title}"
    yield "\n".join(shown)


def _finding(finding: Finding) -> str:
    raised = f", {finding.exception}" if finding.exception else ""
    law = f"{code(finding.invariant)} · {finding.origin} · {finding.standing}"
    lines = [
        f"**{finding.id}** · {law}",
        "",
        f"- cause: {code(finding.cause)}",
        *([f"- site: {code(finding.site + raised)}"] if finding.site else ()),
        *(f"- note: {prose(remark)}" for remark in remarks(finding)),
        f"- fix: {prose(fix_status(finding))}",
        f"- replay: {code(finding.command)}",
    ]
    if finding.case:
        case = "\n".join(
            pretty_case(finding.case, width=CASE_WIDTH, lines_max=CASE_LINES)
        )
        fence = "`" * max(3, *(len(t) + 1 for t in re.findall("`+", f"{case}`")))
        title = f"smallest case, {len(finding.case):,} characters"
        lines += [
            f"<details><summary>{title}</summary>\n",
            f"{fence}json\n{case}\n{fence}\n</details>",
        ]
    return "\n".join(lines) + "\n"


def _known(findings: Sequence[Finding], ledger: Sequence[LedgerRecord]) -> list[str]:
    summaries = {each.id: each.summary for each in ledger}
    return [
        f"- **{each.id}** · {code(each.invariant)} · {each.origin} · "
        f"{prose(summaries.get(each.id, ''))} {_link(each.link)}"
        for each in findings
    ]


def _link(link: str) -> str:
    return f"<{link}>" if _LINK.fullmatch(link) else prose(link)


def _rows(rows: Sequence[Row]) -> list[str]:
    return [
        f"| {code(row.invariant)} | {row.origin} | {row.verdict} | {row.cases:,} | "
        f"{_labels(row)} | {prose(row.statement)} |"
        for row in sorted(rows, key=lambda row: _WORST_FIRST.index(row.verdict))
    ]


def _labels(row: Row) -> str:
    if not row.labels:
        return ""
    seen = f"{len(row.labels) - len(row.labels_missing)}/{len(row.labels)}"
    missing = ", ".join(prose(label) for label in row.labels_missing)
    return f"{seen}, missing {missing}" if missing else seen
