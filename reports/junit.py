"""The report as JUnit XML: a test case for each invariant and origin, one for the run.

What makes the exit code 1 is a failure, what makes it 2 an error, so that a CI server
shows the same verdict as the exit code.
"""

import re
from xml.etree import ElementTree as ET

from reports.decide import Decision
from reports.document import Report, Row

# What XML 1.0 cannot carry even escaped.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNTOLD = ("vacuous", "incomplete")


def junit_xml(report: Report, decision: Decision) -> bytes:
    """The document, one suite for each target and one for the run as a whole."""
    root = ET.Element("testsuites", name="kvfuzz")
    breaking = {r.id for r in decision.reasons if r.kind == "finding"}
    for target in dict.fromkeys(row.target for row in report.rows):
        suite = ET.SubElement(root, "testsuite", name=target)
        for row in report.rows:
            if row.target == target:
                _add_row(suite, row, report, breaking=breaking)
        _count(suite)
    suite = ET.SubElement(root, "testsuite", name="run")
    if report.times.seconds is not None:
        suite.set("time", f"{report.times.seconds:.3f}")
    _add_run(suite, decision)
    _count(suite)
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _add_row(
    suite: ET.Element, row: Row, report: Report, *, breaking: set[str]
) -> None:
    case = ET.SubElement(
        suite,
        "testcase",
        classname=f"{row.target}.{row.origin}",
        name=f"{row.invariant} ({row.origin})",
    )
    told = [row.statement, f"verdict: {row.verdict}; judged in {row.cases} cases"]
    told += [f"label {name}: {count}" for name, count in row.labels.items()]
    for finding in report.findings:
        if finding.id not in row.findings:
            continue
        text = f"{finding.cause}\nreplay: {finding.command}"
        text += f"\nsite: {finding.site}\nsmallest case: {finding.case}"
        if finding.id in breaking:
            _add(case, "failure", f"{finding.id}: {finding.cause}", text)
        else:
            told.append(f"{finding.standing} finding {finding.id}: {text}")
    if row.verdict in _UNTOLD:
        missing = ", ".join(row.labels_missing)
        message = f"{row.verdict}: judged in {row.cases} cases"
        _add(case, "error", message + (f"; labels missing: {missing}" * bool(missing)))
    elif row.verdict in {"not run", "absent"}:
        reasons = [a.reason for a in report.absences if a.target == row.target]
        absent = row.verdict == "absent"
        _add(case, "skipped", "; ".join(reasons) if absent else "not selected")
    out = ET.SubElement(case, "system-out")
    out.text = _xml("\n".join(told))


def _add_run(suite: ET.Element, decision: Decision) -> None:
    """One test case with every reason that no row shows."""
    case = ET.SubElement(suite, "testcase", classname="run", name="verdict")
    for reason in decision.reasons:
        if reason.kind == "untold":
            _add(case, "error", reason.text)
        elif reason.kind == "promote":
            _add(case, "failure", reason.text)


def _add(case: ET.Element, tag: str, message: str, text: str = "") -> None:
    element = ET.SubElement(case, tag, message=_xml(message), type=tag)
    element.text = _xml(text) or None


def _count(suite: ET.Element) -> None:
    cases = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for name, tag in (
        ("failures", "failure"),
        ("errors", "error"),
        ("skipped", "skipped"),
    ):
        suite.set(name, str(sum(case.find(tag) is not None for case in cases)))


def _xml(text: str) -> str:
    return _NOT_XML.sub("�", text)
