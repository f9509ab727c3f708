"""The report as GitHub markdown that fits into a comment on a merge.

What decides comes first: verdict, reasons, findings; then invariants, the worst first,
those that held folded away. Each section has a size of its own, and what had to be left
out is counted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from reports.decide import Decision
from reports.document import Finding, Report, Row, Verdict
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

# GitHub refuses comments above 65,536 characters; the sections' sizes add up to less.
SIZE_MAX_BYTES = 60_000
CASE_LINES = 40
CASE_WIDTH = 96
WORDS_MAX = 400

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
    reasons = [f"- **{each.exit}** {prose(each.text)}" for each in decision.reasons]
    held = [row for row in report.rows if row.verdict == "held"]
    others = [row for row in report.rows if row.verdict != "held"]
    sections = (
        _Section("", reasons, 14_000),
        _Section("Notes", [f"- {prose(note)}" for note in decision.notes], 5_000),
        _Section("Findings", [_finding(each) for each in news(report)], 22_000),
        _Section("Known findings", _known(report), 5_000),
        _Section("Invariants", _rows(others), 6_000, lead=_ROWS_LEAD),
        _Section(
            "",
            _rows(held),
            3_000,
            lead=f"<details><summary>{counted(len(held), 'row')} held</summary>\n\n"
            + _ROWS_LEAD,
            end="\n</details>",
        ),
        _Section("Run", _run(report), 3_000),
    )
    parts = [
        f"## kvfuzz {EXIT_WORDS[decision.exit]} (exit {decision.exit})",
        prose(headline(report)),
    ]
    rest = _place(report)
    spare = 0
    for section in sections:
        if section.items:
            size_max = section.size_max + spare
            parts.append(_text(section, size_max=size_max, rest=rest))
        size = len(parts[-1].encode()) if section.items else 0
        spare = max(0, spare + section.size_max - size)
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True)
class _Section:
    """Items under a title; ``size_max`` bytes are theirs, and what others left."""

    title: str
    items: Sequence[str]
    size_max: int
    lead: str = ""
    end: str = ""


def _place(report: Report) -> str:
    """Where everything is that a page has no room for."""
    runs = [each.run for each in report.machines]
    folder = f"reports/runs/{runs[0]}" if len(runs) == 1 else "the merged run's folder"
    return prose(f"report.json in {folder}")


def _text(section: _Section, *, size_max: int, rest: str) -> str:
    shown = [f"### {section.title}\n"] if section.title else []
    shown += [section.lead] if section.lead else []
    size = sum(len(each.encode()) + 1 for each in (*shown, section.end))
    for number, item in enumerate(section.items):
        size += len(item.encode()) + 1
        if size > size_max:
            left_out = len(section.items) - number
            shown.append(f"\n… and {left_out:,} more: see {rest}")
            break
        shown.append(item)
    return "\n".join([*shown, section.end] if section.end else shown)


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
            f"\n<details><summary>{title}</summary>\n",
            f"{fence}json\n{case}\n{fence}\n</details>",
        ]
    return "\n".join(lines) + "\n"


def _known(report: Report) -> list[str]:
    return [
        f"- **{each.id}** · {code(each.invariant)} · {each.origin} · "
        f"{prose(words.removesuffix(each.link))} {_link(each.link)}".rstrip()
        for each, words in known(report)
    ]


def _run(report: Report) -> list[str]:
    """The exact subject, the environment, the commands, and what was skipped."""
    told = [f"- {prose(line)}" for line in subject_lines(report)]
    told += [f"- command {code(each.command)}" for each in report.machines]
    told += [
        f"- skipped, {counted(each.count, 'case')}: "
        + prose(f"{each.what}: {each.reason}")
        for each in report.skips
    ]
    return told


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
