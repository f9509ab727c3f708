"""Pieces of text: cases laid out and cut, remarks, times, harmless words."""

import json

import pytest

from reports.document import Report
from reports.events import Event, RunStarted
from reports.report import fold
from reports.text import cut, duration, news, pretty_case, printable, remarks
from tests.report_events import LARGE_CASE, a_run, found, in_ledger, replayed, started


def report_of(*events: Event, start: RunStarted | None = None) -> Report:
    return fold(a_run(*events, start=start))


def test_a_case_that_fits_stays_on_one_line() -> None:
    assert pretty_case('{"a":[1,2]}', width=40, lines_max=5) == ['{"a": [1, 2]}']


def test_members_share_lines_and_blocks_stand_alone() -> None:
    case = '{"a":1,"b":2,"rows":[[1,2,3,4,5],[6,7,8,9]],"z":"end"}'
    assert pretty_case(case, width=24, lines_max=20) == [
        "{",
        '  "a": 1, "b": 2,',
        '  "rows": [',
        "    [1, 2, 3, 4, 5],",
        "    [6, 7, 8, 9]",
        "  ],",
        '  "z": "end"',
        "}",
    ]


def test_a_laid_out_case_is_the_same_value_at_every_width() -> None:
    for width in range(40, 200):
        lines = pretty_case(LARGE_CASE, width=width, lines_max=10_000)
        assert json.loads("\n".join(lines)) == json.loads(LARGE_CASE)
        assert max(map(len, lines)) <= width
        assert "" not in lines


def test_a_case_is_cut_only_when_it_has_more_lines() -> None:
    case = json.dumps({"rows": [[1] * 9, [2] * 9, [3] * 9]})
    whole = pretty_case(case, width=40, lines_max=7)
    assert (len(whole), whole[-1]) == (7, "}")
    shorter = pretty_case(case, width=40, lines_max=6)
    assert shorter == [*whole[:5], "… 2 more lines"]


def test_text_is_cut_only_when_it_is_longer() -> None:
    assert cut("12345", 5) == "12345"
    assert cut("123456", 5) == "1234…"


def remarks_of(*events: Event, start: RunStarted | None = None) -> list[str]:
    return list(remarks(report_of(*events, start=start).findings[0]))


def test_a_finding_is_remarked_on_only_where_something_is_odd() -> None:
    assert remarks_of(found()) == []
    assert remarks_of(replayed("REPRODUCED")) == []
    assert remarks_of(found(saved="")) == [
        "not saved; the command below runs the same cases again"
    ]
    fixed = started(ledger=(in_ledger(expected="fixed"),))
    assert remarks_of(found(), start=fixed) == [
        "the ledger says that this tree has the fix: https://example.org/1"
    ]


def test_wired_findings_come_first_and_known_ones_not_at_all() -> None:
    known = "page-size-77777777"
    events = [
        found("a-1", origin="contract"),
        found("b-1"),
        found("c-1", origin="contract"),
        found(known),
    ]
    report = report_of(*events, start=started(ledger=(in_ledger(known),)))
    assert [finding.id for finding in news(report)] == ["b-1", "a-1", "c-1"]


def test_a_long_string_is_cut() -> None:
    lines = pretty_case(json.dumps({"a": "x" * 500}), width=40, lines_max=9)
    assert lines == ["{", '  "a": "' + "x" * 31 + "…", "}"]


def test_a_case_that_is_no_json_is_shown_all_the_same() -> None:
    assert pretty_case("{broken\x1b", width=40, lines_max=9) == [r"{broken\x1b"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (9.44, "9.4 s"),
        (59.96, "1 min 0 s"),
        (200, "3 min 20 s"),
        (25_500, "7 h 5 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_printable_keeps_words_of_any_language() -> None:
    assert printable("prüfe 页 №5\tx\ny") == "prüfe 页 №5 x y"
