"""Pieces of text that several renderings share: safe words, times, pretty cases.

Causes, sites and cases come from code under test and from files, so nothing in them may
steer a terminal or a page: control characters are shown, not sent.
"""

import json
import textwrap
import unicodedata
from collections.abc import Iterator, Sequence

from reports.document import Finding, Report

EXIT_WORDS = {
    0: "passed: no new finding breaks, and what was selected was exercised",
    1: "failed: something is certainly wrong",
    2: "could not tell",
}
# How `invariants.model.Death.cause` begins.
_DEATHS = ("signal ", "exit ", "timed out", "memory limit")


def printable(text: str) -> str:
    """The text on one line, with control and direction characters made visible."""
    return "".join(
        char
        if unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
        else char.encode("unicode_escape").decode("ascii")
        for char in " ".join(text.split())
    )


def cut(text: str, length_max: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= length_max else text[: length_max - 1] + "…"


def counted(count: int, noun: str) -> str:
    """``1 shard``, ``12,400 cases``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration(seconds: float) -> str:
    """``9.4 s``, ``3 min 20 s``, ``7 h 5 min``."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest_s} s"


def headline(report: Report) -> str:
    """Subject, profile, seed and amount of a run, in one line."""
    parts = ["unknown tree"]
    if report.tree is not None:
        parts = [f"vLLM {report.tree.version}", f"{report.profile}"]
        parts.append(f"seed {report.seed}")
    parts += [
        counted(report.cases, "case"),
        counted(sum(each.shards for each in report.properties), "shard"),
    ]
    if report.times.seconds is not None:
        parts.append(duration(report.times.seconds))
    return printable(" · ".join(parts))


def subject_lines(report: Report) -> Iterator[str]:
    """The exact tree with its patches and notes, and what it ran with."""
    if report.tree:
        tree = report.tree
        yield printable(f"tree {tree.spec}, digest {tree.digest[:16]}")
        for patch in tree.patches:
            yield printable(f"patch {patch}")
        for note in tree.notes:
            yield printable(note)
    for machine in report.machines:
        part = (
            f"machine {machine.shard_id + 1} of {report.num_shards}: "
            if report.num_shards > 1
            else ""
        )
        yield printable(
            f"{part}Python {machine.python}, torch {machine.torch}, triton "
            f"{machine.triton}, Hypothesis {machine.hypothesis}, platform "
            f"{machine.platform}"
        )
    startups = [each.startup_s for each in report.times.startups]
    if startups:
        isolations = [each.isolation_s for each in report.times.startups]
        isolated = (
            f", isolating processes {_span(isolations)}" if any(isolations) else ""
        )
        yield (
            f"start-up {_span(startups)}{isolated} on "
            f"{counted(len(startups), 'worker')}"
        )


def _span(seconds: Sequence[float]) -> str:
    quickest, slowest = duration(min(seconds)), duration(max(seconds))
    return quickest if quickest == slowest else f"{quickest} to {slowest}"


def news(report: Report) -> list[Finding]:
    """Findings that the ledger does not expect here, the wired ones first."""
    new = [each for each in report.findings if each.standing != "known"]
    return sorted(new, key=lambda finding: (finding.origin != "wired", finding.id))


def known(report: Report) -> list[tuple[Finding, str]]:
    """Findings that the ledger expects here, each with the ledger's words for it."""
    words = {each.id: f"{each.summary} {each.link}" for each in report.ledger}
    return [
        (each, words[each.id]) for each in report.findings if each.standing == "known"
    ]


def fix_status(finding: Finding) -> str:
    """What is known of the fixed implementation, as a sentence."""
    if finding.fix == "verified":
        return "verified: the fixed implementation passes on this case"
    if finding.fix in {"", "none"}:
        return "none known" if finding.fix else "not tried"
    return printable(finding.fix)


def remarks(finding: Finding) -> Iterator[str]:
    """What a reader must be told besides the cause."""
    if finding.exception.startswith(_DEATHS):
        yield "a killed process is the expected outcome of a tree without the fix"
    if not finding.shrunk:
        yield "as first seen: its shrinking was not finished"
    if finding.standing == "regressed":
        yield f"the ledger says that this tree has the fix: {printable(finding.link)}"
    if 0 < finding.before_characters < len(finding.case):
        yield (
            f"the saved case is another one, of {finding.before_characters:,} "
            "characters, and was not seen to fail in this run"
        )
    if finding.case and not finding.saved:
        yield "not saved; the command below runs the same cases again"


def pretty_case(case: str, *, width: int, lines_max: int) -> list[str]:
    """A case's JSON in lines of at most ``width`` columns.

    Whatever fits into one line stays on it; a longer string is cut. At most
    ``lines_max`` lines come back, and the last one says how many are left out.
    """
    try:
        value = json.loads(case)
    except (ValueError, RecursionError):
        lines = textwrap.wrap(printable(case), width)
    else:
        lines = [
            cut(_printable_indented(each), width)
            for each in _laid_out(value, "", "", width)
        ]
    if len(lines) <= lines_max:
        return lines
    left_out = len(lines) - lines_max + 1
    return [*lines[: lines_max - 1], f"… {left_out:,} more lines"]


def _printable_indented(line: str) -> str:
    """`printable` that keeps the indentation."""
    return " " * (len(line) - len(line.lstrip(" "))) + printable(line)


def _laid_out(value: object, head: str, indent: str, width: int) -> Iterator[str]:
    """Lines of a JSON value that follows ``head`` at this indentation.

    Members share a line as long as they fit on it whole.
    """
    flat = head + json.dumps(value, ensure_ascii=False)
    if len(indent + flat) < width or not isinstance(value, dict | list):
        yield indent + flat
        return
    members = (
        [(f"{json.dumps(key)}: ", each) for key, each in value.items()]
        if isinstance(value, dict)
        else [("", each) for each in value]
    )
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    yield indent + head + opening
    deeper = indent + "  "
    line = ""
    for number, (key, each) in enumerate(members, start=1):
        comma = "," if number < len(members) else ""
        *block, last = _laid_out(each, key, deeper, width)
        joined = f"{line} {last.strip()}{comma}" if line else f"{last}{comma}"
        if not block and len(joined) <= width:
            line = joined
            continue
        if line:
            yield line
        yield from block
        line = "" if block else f"{last}{comma}"
        if block:
            yield f"{last}{comma}"
    if line:
        yield line
    yield indent + closing
