"""The renderings: what a reader is told, and what hostile text cannot do."""

import io
import json
import re
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt
from rich.console import Console

from reports.decide import Decision, decide
from reports.document import Report
from reports.events import (
    Absent,
    CatalogueEntry,
    Event,
    Problem,
    RunStarted,
    Skipped,
    TreeRecord,
    WorkerFinished,
    WorkerStarted,
)
from reports.junit import junit_xml
from reports.markdown import SIZE_MAX_BYTES, code, markdown, prose
from reports.report import fold
from reports.terminal import CASE_LINES, REASONS_SHOWN, render
from tests.report_events import (
    CASE,
    FAULT,
    LARGE_CASE,
    SHARDS,
    a_run,
    control,
    found,
    in_ledger,
    replayed,
    shard_finished,
    started,
)


def judged(*events: Event, start: RunStarted | None = None) -> tuple[Report, Decision]:
    report = fold(a_run(*events, start=start))
    return report, decide(report, strict=False)


def screen(
    *events: Event,
    start: RunStarted | None = None,
    width: int = 80,
    terminal: bool = False,
    colour: bool = False,
) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=terminal, no_color=not colour
    )
    render(*judged(*events, start=start), console)
    return out.getvalue()


def page(*events: Event, start: RunStarted | None = None) -> str:
    return markdown(*judged(*events, start=start))


def junit(*events: Event, start: RunStarted | None = None) -> ET.Element:
    return ET.fromstring(junit_xml(*judged(*events, start=start)))  # noqa: S314 (ours)


def test_the_screen_lists_all_that_a_person_needs_of_a_finding() -> None:
    text = screen(found())
    (line,) = [each for each in text.splitlines() if each.startswith("new finding 1")]
    assert FAULT in line
    assert "PAGE-ONE-SIZE (wired, crash)" in line
    assert "law      After unification all layers" in text
    assert "cause    page 4,456,448 bytes beside 2,228,224 bytes" in text
    assert "site     unify_kv_cache_spec_page_size, AssertionError" in text
    assert "fix      verified: the fixed implementation passes on this case" in text
    assert f"saved    reproducers/cases/{FAULT}" in text
    assert '"kind": "mamba", "page": 2228224' in text
    assert f"replay python -m reproducers replay {FAULT}" in text


def test_the_screen_ends_with_exit_code_and_reasons() -> None:
    text = screen(found(), control("canary", found=False))
    *_, last = text.split("\n\n")
    lines = [line.strip() for line in last.splitlines()]
    assert lines[0] == "exit 1: failed: something is certainly wrong"
    assert re.split(r"\s{2,}", lines[1])[0] == "1"
    assert lines[2].split() == ["2", "control", "not", "found:", "canary"]


def test_the_screen_of_a_clean_run_says_what_it_stands_on() -> None:
    text = screen()
    assert "vLLM 0.20.1 · quick · seed 7 · 800 cases · 8 shards · 1 min 1 s\n" in text
    assert "tree 0.20.1, digest 5a1e5a1e5a1e5a1e" in text
    assert "Python 3.11.9, torch 2.13.0, triton 3.7.1" in text
    assert "start-up 9.5 s on 1 worker\n" in text
    assert "start-up 9.5 s to 12.0 s on 2 workers\n" in screen(
        WorkerStarted(worker="gw1", startup_s=12.0)
    )
    assert "start-up 9.5 s, isolating processes 7.0 s on 1 worker\n" in screen(
        WorkerFinished(worker="gw0-11", isolation_s=7.0)
    )
    assert re.search(r"controls +2 of 2 found", text)
    assert re.search(r"TABLE-WINDOW +held +200 +1/1 held +200 +1/1", text)
    assert re.search(r"saved faults +none", text)
    assert "not selected" not in text
    assert "exit 0: passed" in text


def test_a_patched_tree_is_shown_with_its_patches_and_notes() -> None:
    tree = TreeRecord(
        spec="0.33.0",
        version="0.33.0",
        digest="ab",
        patches=("0001-cast.patch",),
        notes=("the series changes none of the functions under test",),
    )
    for text in (screen(start=started(tree=tree)), page(start=started(tree=tree))):
        assert "patch 0001-cast.patch" in text
        assert "the series changes none of the functions under test" in text


def test_a_killed_process_is_explained() -> None:
    remark = "a killed process is the expected outcome of a tree without the fix"
    dead = found(exception="signal 11")
    assert remark in screen(dead)
    assert remark in page(dead)
    assert remark not in screen(found())


def test_an_unfinished_finding_is_not_passed_off_as_shrunk() -> None:
    text = screen(found(shrunk=False))
    assert "as first seen: its shrinking was not finished" in text
    assert "not saved; the command below runs the same cases again" in text
    assert "fix      not tried" in text
    assert "replay pytest fuzz/ -n 2 --seed 7" in text


def test_a_case_that_took_a_saved_one_s_place_is_told_with_both_sizes() -> None:
    told = f"reproducers/cases/{FAULT}: a smaller case of the same fault took the saved"
    sizes = f"place, {len(CASE)} characters instead of {len(CASE) + 1_000:,}"
    for text in (
        " ".join(screen(found(before_characters=len(CASE) + 1_000)).split()),
        page(found(before_characters=len(CASE) + 1_000)),
    ):
        assert told in text
        assert sizes in text
    for before in (0, len(CASE)):
        assert "took the saved" not in screen(found(before_characters=before))


def test_a_saved_case_other_than_the_one_shown_is_told() -> None:
    remark = f"the saved case is another one, of {len(CASE) - 1} characters"
    assert remark in screen(found(before_characters=len(CASE) - 1))
    assert "another one" not in screen(found(before_characters=len(CASE)))


@pytest.mark.parametrize(
    ("fix", "shown"),
    [
        ("none", "fix      none known"),
        ("does not hold: max error 3", "fix      does not hold: max error 3"),
    ],
)
def test_a_fix_that_is_none_is_not_called_verified(fix: str, shown: str) -> None:
    assert shown in screen(found(fix=fix))


def test_known_findings_take_a_line_and_name_their_link() -> None:
    start = started(ledger=(in_ledger(),), replays=(FAULT,))
    text = screen(replayed("REPRODUCED"), start=start)
    assert re.search(rf"known +{FAULT} PAGE-ONE-SIZE \(wired\): pages differ", text)
    assert "https://example.org/1" in text
    assert re.search(r"saved faults +1 REPRODUCED", text)
    assert "new finding 1" not in text
    assert re.search(r"PAGE-ONE-SIZE +known +200", text)


def test_skips_and_problems_are_told_in_full() -> None:
    text = screen(
        Skipped(what="fp8", reason="no fp8 here"),
        Skipped(what="fp8", reason="no fp8 here"),
        Problem(where="fuzz/test_x.py", message="first\nE   KeyError: 'layer'"),
    )
    assert re.search(r"skipped +fp8: no fp8 here \(2 cases\)", text)
    assert re.search(
        r"problem +fuzz/test_x.py *\n +first *\n +E KeyError: 'layer'", text
    )


def test_what_was_not_selected_takes_one_line() -> None:
    names = tuple(name for name in SHARDS if name.startswith("page_size"))
    start = started(properties=("page_size/wired", "page_size/contract"), shards=names)
    text = screen(start=start)
    assert "not selected: mamba_block_table\n" in text
    assert "TABLE-WINDOW" not in text


def test_an_absent_target_is_told_with_its_reason() -> None:
    text = screen(Absent(target="page_size", reason="no such function"))
    assert re.search(r"note +absent in this tree: page_size: no such function", text)


@pytest.mark.parametrize("width", [80, 100, 140, 200])
def test_no_line_of_the_screen_is_wider_than_the_terminal(width: int) -> None:
    message = "page of layer " + "x" * 150 + " too small"
    text = screen(found(case=LARGE_CASE, message=message), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert ("statement" in text) == (width >= 140)


def test_a_large_case_is_cut_and_says_by_how_much() -> None:
    text = screen(found(case=LARGE_CASE))
    case = text.split("smallest case")[1].split("replay")[0].strip().splitlines()[1:]
    assert len(case) == CASE_LINES
    assert re.fullmatch(r" *… \d+ more lines", case[-1].rstrip())


def test_many_reasons_are_cut_and_counted() -> None:
    problems = [Problem(where=f"test{n}", message="x") for n in range(50)]
    text = screen(*problems)
    last = text.split("exit 2")[1]
    assert last.count("problem in test") == REASONS_SHOWN
    assert f"… {50 - REASONS_SHOWN} more reasons like these: see report.md" in last


def test_colour_is_for_terminals_that_want_it() -> None:
    assert "\x1b[" in screen(found(), terminal=True, colour=True)
    assert "\x1b[" not in screen(found())
    assert "\x1b[31" not in screen(found(), terminal=True, colour=False)


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    render(*judged(found()), Console(file=out, force_terminal=True, width=80))
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", out.getvalue())


HOSTILE = "\x1b[2J\x07 [bold]x[/bold] \u202e @octocat #12 </details> | ``` \x00"


def test_hostile_text_cannot_steer_the_terminal() -> None:
    text = screen(
        found(message=HOSTILE, fix=HOSTILE, case=json.dumps({HOSTILE: HOSTILE})),
        Problem(where=HOSTILE, message=HOSTILE),
        Skipped(what=HOSTILE, reason=HOSTILE),
        start=started(command=HOSTILE),
    )
    assert not set(text) & {"\x1b", "\x07", "\x00", "\u202e"}
    assert r"\x1b[2J\x07 [bold]x[/bold] \u202e" in text


def test_hostile_text_cannot_steer_the_page() -> None:
    case = json.dumps({HOSTILE: HOSTILE})
    title = f"smallest case, {len(case)} characters"
    text = page(
        found(message=HOSTILE, fix=HOSTILE, case=case),
        Problem(where=HOSTILE, message=HOSTILE),
        start=started(command=HOSTILE),
    )
    blocks = MarkdownIt("commonmark").enable("table").parse(text)
    inlines = [token for block in blocks for token in block.children or ()]
    html = [t.content for t in (*blocks, *inlines) if t.type.startswith("html")]
    assert [re.sub(r"\s+", " ", each).strip() for each in html] == [
        f"<details><summary>{title}</summary>",
        "</details>",
        "<details><summary>4 rows held</summary>",
        "</details>",
    ]
    # Outside code nobody is called and no issue is linked.
    prose_shown = " ".join(t.content for t in inlines if t.type == "text")
    assert "octocat" in prose_shown
    assert "@octocat" not in prose_shown
    assert "#12" not in prose_shown
    (fence,) = [block for block in blocks if block.type == "fence"]
    assert fence.content.startswith("{\n")
    assert fence.content.endswith("\n}\n")
    assert "link_open" not in {token.type for token in inlines}
    assert "\x1b" not in text


def test_prose_is_shown_as_it_is() -> None:
    assert prose("a_b *c* <d> [e] | `f`") == r"a\_b \*c\* \<d\> \[e\] \| \`f\`"
    assert prose("see #12, @me") == "see #\u206012, @\u2060me"


def test_code_takes_backticks() -> None:
    assert code("plain") == "`plain`"
    assert code("a `b` c") == "`` a `b` c ``"
    assert code("a|b") == r"`a\|b`"


def test_the_page_lists_verdict_reasons_findings_and_rows() -> None:
    text = page(found(), control("canary", found=False))
    lines = text.splitlines()
    assert lines[0] == "## kvfuzz failed: something is certainly wrong (exit 1)"
    assert f"- **1** new finding: {FAULT}, PAGE-ONE-SIZE (wired)" in lines
    assert "- **2** control not found: canary" in lines
    assert f"**{FAULT}** · `PAGE-ONE-SIZE` · wired · new" in lines
    assert f"- replay: `python -m reproducers replay {FAULT}`" in lines
    assert "- fix: verified: the fixed implementation passes on this case" in lines
    rows = [line for line in lines if line.startswith("| `")]
    assert rows[0].startswith("| `PAGE-ONE-SIZE` | wired | violated | 200 | 2/2 | ")
    assert len(rows) == 5
    assert "| invariant | origin | verdict | cases | labels | statement |" in lines
    pure = "| `PAGE-PURE` | contract | held | 200 |  | Unification leaves its input"
    assert rows[-1].startswith(pure)
    assert "- site: `unify_kv_cache_spec_page_size, AssertionError`" in lines
    titles = [line for line in lines if line.startswith("#")]
    assert titles[1:] == ["### Findings", "### Invariants", "### Run"]
    assert "- command `pytest fuzz/ -n 2`" in lines


def test_the_page_names_missing_labels_and_links_known_findings() -> None:
    seen = {"drafter": 2, "mamba-beside-attention": 9}
    shards = [shard_finished(f"page_size/wired/{i}", labels=seen) for i in (0, 1)]
    known = "page-size-77777777"
    start = started(ledger=(in_ledger(known),), replays=(known,))
    reproduced = replayed("REPRODUCED", known, origin="contract")
    text = page(*shards, reproduced, start=start)
    assert "| vacuous | 200 | 1/2, missing drafter |" in text
    assert f"- **{known}** · `PAGE-ONE-SIZE` · contract · pages differ" in text
    assert "<https://example.org/1>" in text


def test_a_link_that_is_none_is_not_made_one() -> None:
    record = in_ledger(link="javascript:alert(1)> <b>")
    start = started(ledger=(record,), replays=(FAULT,))
    text = page(replayed("REPRODUCED"), start=start)
    assert "<javascript" not in text
    assert r"\<b\>" in text


def test_the_page_fits_into_a_comment_and_counts_what_it_left_out() -> None:
    findings = [
        found(f"page-size-{n:08x}", case=LARGE_CASE, message="ü" * 3_000)
        for n in range(200)
    ]
    problems = [Problem(where=f"test{n}", message="ü" * 3_000) for n in range(200)]
    skips = [Skipped(what=f"part{n}", reason="ü" * 3_000) for n in range(200)]
    text = page(*findings, *problems, *skips)
    assert len(text.encode()) < SIZE_MAX_BYTES
    shown = len(re.findall(r"^\*\*page-size-", text, re.MULTILINE))
    (left_out,) = re.findall(
        r"… and (\d+) more: see report.json in reports/runs/20260101T000000Z-aaaa$",
        text.split("### Invariants")[0].rstrip(),
    )
    assert 0 < shown == 200 - int(left_out)
    for title in ("### Findings", "### Invariants", "### Run"):
        assert title in text


def test_the_page_of_a_finding_without_case_or_exception_has_neither() -> None:
    assert "smallest case" not in page(replayed("REPRODUCED"))
    text = page(found(exception=""))
    assert "- site: `unify_kv_cache_spec_page_size`\n" in text


def test_a_page_with_room_leaves_nothing_out() -> None:
    findings = [found(f"page-size-{n:08x}", case=LARGE_CASE) for n in range(8)]
    assert "see report.json" not in page(*findings)


def test_invariants_that_held_are_folded_away() -> None:
    text = page(found())
    opened, _, folded = text.partition("<details><summary>4 rows held</summary>\n\n")
    folded, _, after = folded.partition("\n\n</details>\n\n")
    assert [verdict(row) for row in rows_of(opened)] == ["violated"]
    assert [verdict(row) for row in rows_of(folded)] == ["held"] * 4
    assert after.startswith("### Run")
    assert "### Invariants" not in page()
    assert "5 rows held" in page()


def test_a_fold_is_closed_whatever_had_to_be_left_out() -> None:
    catalogue = tuple(
        CatalogueEntry(
            id=f"PAGE-{n}",
            target="page_size",
            statement="ü" * 300,
            severity="crash",
            wired=(),
            contract=(),
        )
        for n in range(500)
    )
    judged = {entry.id: 100 for entry in catalogue}
    shards = [shard_finished(name, judged=judged) for name in SHARDS]
    text = page(*shards, start=started(catalogue=catalogue))
    assert len(text.encode()) < SIZE_MAX_BYTES
    folded = text.partition("<details><summary>1,000 rows held</summary>")[2]
    folded, _, after = folded.partition("\n</details>\n")
    assert re.search(r"\n\n… and \d+ more: see report.json in [^\n]+\n$", folded)
    assert after.lstrip().startswith("### Run")


def rows_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| `")]


def verdict(row: str) -> str:
    return row.split(" | ")[2]


def test_junit_has_a_case_for_each_row_and_one_for_the_run() -> None:
    root = junit()
    names = [case.get("name") for case in root.iter("testcase")]
    assert names == [
        "TABLE-WINDOW (wired)",
        "TABLE-WINDOW (contract)",
        "PAGE-ONE-SIZE (wired)",
        "PAGE-ONE-SIZE (contract)",
        "PAGE-PURE (contract)",
        "verdict",
    ]
    for suite in root.iter("testsuite"):
        assert suite.get("tests") == str(len(suite.findall("testcase")))
        assert suite.get("failures") == suite.get("errors") == "0"
        assert suite.get("skipped") == "0"
    assert root[-1].get("time") == "61.000"
    assert not list(root.iter("skipped"))
    (held,) = root.findall(".//testcase[@name='TABLE-WINDOW (wired)']")
    assert held.findtext("system-out") == (
        "Each request gets the 1 + k entries of its own window.\n"
        "verdict: held; judged in 200 cases\nlabel last-column: 50"
    )


def test_junit_of_an_unfinished_run_errs() -> None:
    report = fold(a_run(finished=False))
    root = ET.fromstring(junit_xml(report, decide(report, strict=False)))  # noqa: S314
    assert root[-1].get("time") is None
    assert root[-1].get("errors") == "1"


def test_junit_fails_what_breaks() -> None:
    (suite,) = [s for s in junit(found()) if s.get("name") == "page_size"]
    assert suite.get("failures") == "1"
    (failure,) = suite.iter("failure")
    assert failure.get("message", "").startswith(f"{FAULT}: page 4,456,448")
    assert f"python -m reproducers replay {FAULT}" in (failure.text or "")
    assert f"smallest case: {CASE}" in (failure.text or "")
    assert failure.get("type") == "failure"


def test_junit_tells_of_a_contract_finding_without_failing() -> None:
    root = junit(found(origin="contract"))
    assert not list(root.iter("failure"))
    assert any(FAULT in (out.text or "") for out in root.iter("system-out"))


def test_junit_errs_on_vacuous_and_skips_what_was_not_run() -> None:
    names = ("page_size/wired/0",)
    start = started(properties=("page_size/wired",), shards=names)
    blind = shard_finished("page_size/wired/0", labels={})
    root = junit(blind, start=start)
    cases = {case.get("name"): case for case in root.iter("testcase")}
    error = cases["PAGE-ONE-SIZE (wired)"].find("error")
    assert error is not None
    assert error.get("message") == (
        "vacuous: judged in 100 cases; labels missing: drafter, mamba-beside-attention"
    )
    skipped = cases["TABLE-WINDOW (wired)"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "not selected"


def test_junit_skips_what_is_absent_with_its_reason() -> None:
    lacking = [name for name in SHARDS if name.startswith("page_size")]
    absent = Absent(target="page_size", reason="no such function")
    report = fold(a_run(absent, without_shards=lacking))
    root = ET.fromstring(junit_xml(report, decide(report, strict=False)))  # noqa: S314
    messages = {each.get("message") for each in root.iter("skipped")}
    assert messages == {"no such function"}


def test_junit_of_the_run_shows_what_no_row_does() -> None:
    start = started(ledger=(in_ledger(),), replays=(FAULT,))
    root = junit(replayed("FIXED"), control("canary", found=False), start=start)
    (verdict,) = [c for c in root.iter("testcase") if c.get("name") == "verdict"]
    assert [(e.tag, (e.get("message") or "")[:20]) for e in verdict] == [
        ("failure", "page-size-1a2b3c4d n"),
        ("error", "control not found: c"),
    ]


def test_junit_carries_no_character_that_xml_cannot() -> None:
    root = junit(found(message=HOSTILE, case=json.dumps({HOSTILE: HOSTILE})))
    (failure,) = root.iter("failure")
    assert "�[2J� [bold]x" in failure.get("message", "")


def test_machines_are_told_apart() -> None:
    assert "machine" not in screen()
    names = tuple(name for name in SHARDS if name.endswith("/0"))
    start = started(num_shards=2, shard_id=0, shards=names)
    assert "machine 1 of 2: Python 3.11.9" in screen(start=start)


def test_of_nothing_there_is_a_screen_and_a_page_too() -> None:
    report = fold([])
    decision = decide(report, strict=False)
    out = io.StringIO()
    render(report, decision, Console(file=out, width=80))
    text = markdown(report, decision)
    for each in (out.getvalue(), text):
        assert "unknown tree · 0 cases · 0 shards\n" in each
        assert "no run-started event" in each
        assert "start-up" not in each
    assert "exit 2: could not tell" in out.getvalue()
    assert "###" not in text
