"""The fold: what each event means for the document, and that order means nothing."""

import random
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reports.document import Finding, Report, Row, Startup, Times
from reports.events import (
    Absent,
    Event,
    Found,
    Problem,
    Progress,
    RunFinished,
    ShardFinished,
    Skipped,
    TreeRecord,
    WorkerStarted,
)
from reports.report import fold
from tests.report_events import (
    CASE,
    FAULT,
    SHARDS,
    TREE,
    a_run,
    control,
    found,
    in_ledger,
    replayed,
    shard_finished,
    started,
)


def row_of(report: Report, invariant: str, origin: str = "wired") -> Row:
    (row,) = [r for r in report.rows if (r.invariant, r.origin) == (invariant, origin)]
    return row


def finding_of(events: Sequence[Event]) -> Finding:
    (finding,) = fold(events).findings
    return finding


def test_the_document_says_what_ran_on_what() -> None:
    report = fold(a_run(start=started(strict=True)))
    assert (report.profile, report.seed, report.strict) == ("quick", 7, True)
    assert report.tree == TREE
    assert report.labels_min == 5
    assert report.times.seconds == 61.0
    assert report.times.started_unix_s == 1_767_225_600.0
    assert report.times.startups == (Startup(worker="gw0-11", startup_s=9.5),)
    assert set(report.times.shard_s.values()) == {3.5}
    (machine,) = report.machines
    assert (machine.python, machine.triton) == ("3.11.9", "3.7.1")
    assert fold(a_run(finished=False)).times.seconds is None


def test_rows_are_those_that_the_catalogue_can_judge() -> None:
    report = fold(a_run())
    assert [(row.invariant, row.origin) for row in report.rows] == [
        ("TABLE-WINDOW", "wired"),
        ("TABLE-WINDOW", "contract"),
        ("PAGE-ONE-SIZE", "wired"),
        ("PAGE-ONE-SIZE", "contract"),
        ("PAGE-PURE", "contract"),
    ]


def test_a_held_row_adds_up_the_shards_of_its_property() -> None:
    row = row_of(fold(a_run()), "PAGE-ONE-SIZE")
    assert row.verdict == "held"
    assert row.cases == 200
    assert row.labels == {"drafter": 24, "mamba-beside-attention": 60}
    assert row.labels_missing == ()
    assert row.severity == "crash"
    assert row.statement.startswith("After unification")


def test_labels_of_one_origin_do_not_count_for_the_other() -> None:
    blind = [
        shard_finished(f"page_size/contract/{index}", labels={}) for index in (0, 1)
    ]
    report = fold(a_run(*blind))
    assert row_of(report, "PAGE-ONE-SIZE", "contract").verdict == "vacuous"
    assert row_of(report, "PAGE-ONE-SIZE", "wired").verdict == "held"


def test_a_needed_label_seen_too_seldom_makes_a_row_vacuous() -> None:
    seen = {"drafter": 2, "mamba-beside-attention": 9}
    shards = [shard_finished(f"page_size/wired/{i}", labels=seen) for i in (0, 1)]
    row = row_of(fold(a_run(*shards)), "PAGE-ONE-SIZE")
    assert row.labels["drafter"] == 4
    assert (row.verdict, row.labels_missing) == ("vacuous", ("drafter",))
    enough = row_of(fold(a_run(*shards, start=started(labels_min=4))), "PAGE-ONE-SIZE")
    assert enough.verdict == "held"


def test_a_row_that_was_judged_in_no_case_is_vacuous() -> None:
    shards = [shard_finished(f"page_size/contract/{i}", judged={}) for i in (0, 1)]
    row = row_of(fold(a_run(*shards)), "PAGE-PURE", "contract")
    assert (row.verdict, row.cases) == ("vacuous", 0)


def test_a_row_whose_property_was_not_selected_is_not_run() -> None:
    start = started(properties=("page_size/wired",), shards=("page_size/wired/0",))
    report = fold(a_run(start=start))
    assert row_of(report, "PAGE-ONE-SIZE", "wired").verdict == "held"
    assert row_of(report, "PAGE-ONE-SIZE", "contract").verdict == "not run"


def test_a_row_with_an_unfinished_shard_is_incomplete() -> None:
    events = a_run(
        Progress(shard="page_size/wired/1", cases=30),
        Progress(shard="page_size/wired/1", cases=12),
        without_shards=("page_size/wired/1",),
        finished=False,
    )
    report = fold(events)
    assert row_of(report, "PAGE-ONE-SIZE").verdict == "incomplete"
    assert row_of(report, "TABLE-WINDOW").verdict == "held"
    (totals,) = [
        p for p in report.properties if (p.target, p.origin) == ("page_size", "wired")
    ]
    assert totals.unfinished == ("page_size/wired/1",)
    assert totals.cases == 100 + 42
    assert not report.finished


def test_progress_of_a_finished_shard_is_not_counted_twice() -> None:
    report = fold(a_run(Progress(shard="page_size/wired/1", cases=100)))
    assert report.cases == 100 * len(SHARDS)


def test_a_target_that_the_tree_lacks_is_absent_not_vacuous() -> None:
    lacking = [name for name in SHARDS if name.startswith("page_size")]
    reason = "no unify_kv_cache_spec_page_size in this tree"
    report = fold(
        a_run(
            Absent(target="page_size", reason=reason),
            Absent(target="page_size", reason=reason),
            without_shards=lacking,
        )
    )
    assert row_of(report, "PAGE-ONE-SIZE").verdict == "absent"
    assert [(a.target, a.reason) for a in report.absences] == [("page_size", reason)]


def test_a_target_that_ran_all_the_same_is_not_absent() -> None:
    report = fold(a_run(Absent(target="page_size", reason="no such function")))
    assert row_of(report, "PAGE-ONE-SIZE").verdict == "held"


def test_the_control_of_an_absent_target_is_absent() -> None:
    events = a_run(Absent(target="page_size", reason="no such function"))
    without = [e for e in events if e != control("page_size")]
    outcomes = {c.name: c.outcome for c in fold(without).controls}
    assert outcomes == {"canary": "found", "page_size": "absent"}


def test_a_new_finding_violates_its_row_only() -> None:
    report = fold(a_run(found()))
    row = row_of(report, "PAGE-ONE-SIZE")
    assert (row.verdict, row.findings) == ("violated", (FAULT,))
    assert row_of(report, "PAGE-ONE-SIZE", "contract").verdict == "held"


def test_a_finding_wins_over_an_unfinished_shard() -> None:
    report = fold(a_run(found(), without_shards=("page_size/wired/1",)))
    assert row_of(report, "PAGE-ONE-SIZE").verdict == "violated"


def test_a_row_with_ledger_findings_only_is_known() -> None:
    start = started(ledger=(in_ledger(),), replays=(FAULT,))
    report = fold(a_run(replayed("REPRODUCED"), start=start))
    row = row_of(report, "PAGE-ONE-SIZE")
    assert (row.verdict, row.findings) == ("known", (FAULT,))
    (finding,) = report.findings
    assert (finding.standing, finding.link) == ("known", "https://example.org/1")


def test_a_finding_that_the_ledger_calls_fixed_is_a_regression() -> None:
    start = started(ledger=(in_ledger(expected="fixed"),))
    report = fold(a_run(found(), start=start))
    assert report.findings[0].standing == "regressed"
    assert row_of(report, "PAGE-ONE-SIZE").verdict == "violated"


def test_a_saved_fault_that_reproduces_is_a_finding() -> None:
    finding = finding_of(a_run(replayed("REPRODUCED")))
    assert finding.standing == "new"
    assert finding.sources == ("replay",)
    assert finding.command == f"python -m reproducers replay {FAULT}"
    assert finding.case == ""


@pytest.mark.parametrize("outcome", ["FIXED", "ERRORED", "NOT_APPLICABLE"])
def test_a_saved_fault_with_another_outcome_is_no_finding(outcome: str) -> None:
    assert fold(a_run(replayed(outcome))).findings == ()  # type: ignore[arg-type]


def test_the_smallest_shrunk_case_is_shown() -> None:
    events = a_run(
        found(case='{"a":100}', source="page_size/wired/0"),
        found(case='{"a":1}', source="page_size/wired/1"),
        found(case="{}", shrunk=False),
    )
    finding = finding_of(events)
    assert (finding.case, finding.shrunk) == ('{"a":1}', True)
    assert finding.sources == ("page_size/wired/0", "page_size/wired/1")


def test_cases_of_one_size_are_told_apart_by_their_text() -> None:
    assert finding_of(a_run(found(case='{"b":1}'), found(case='{"a":1}'))).case == (
        '{"a":1}'
    )


def test_a_reproducer_that_another_shard_saved_is_named() -> None:
    finding = finding_of(a_run(found(case='{"a":10}'), found(case='{"a":1}', saved="")))
    assert finding.case == '{"a":1}'
    assert finding.saved == f"reproducers/cases/{FAULT}"
    assert finding.command == f"python -m reproducers replay {FAULT}"


@pytest.mark.parametrize(
    ("before", "length"), [((), 0), ((0, 90), 0), ((90, 120, 100), 120)]
)
def test_what_was_saved_before_the_run_is_told_by_its_length(
    before: tuple[int, ...], length: int
) -> None:
    events = [
        found(case=f'{{"a":{n}}}', before_characters=n)  # a shard each
        for n in before
    ]
    unsaved = found(shrunk=False)
    assert finding_of(a_run(unsaved, *events)).before_characters == length


def test_a_replayed_case_is_shown_where_the_search_found_a_larger_one() -> None:
    again = found(case='{"a":1}', source="replay", before_characters=7)
    larger = found(case='{"a":100}', before_characters=7)
    finding = finding_of(a_run(larger, again, replayed("REPRODUCED")))
    assert finding.case == '{"a":1}'
    assert finding.sources == ("page_size/wired/0", "replay")


def test_a_fault_that_was_replayed_is_replayed_by_its_id() -> None:
    finding = finding_of(a_run(found(shrunk=False), replayed("REPRODUCED")))
    assert finding.saved == ""
    assert finding.command == f"python -m reproducers replay {FAULT}"
    assert finding.sources == ("page_size/wired/0", "replay")


def test_a_known_fault_that_the_search_met_has_the_ledger_s_link() -> None:
    finding = finding_of(a_run(found(), start=started(ledger=(in_ledger(),))))
    assert (finding.standing, finding.link) == ("known", "https://example.org/1")


def test_an_unsaved_finding_is_run_again_by_the_machine_that_saw_it() -> None:
    first, second = halves("pytest fuzz/ --shard-id")
    seen = [found(shrunk=False, source="page_size/wired/1")]
    finding = finding_of([*first, *second, *seen])
    assert finding.command == "pytest fuzz/ --shard-id 1 --seed 7"
    nobody = finding_of([*first, *second, found(shrunk=False, source="elsewhere")])
    assert nobody.command == "pytest fuzz/ --shard-id 0 --seed 7"


def test_a_finding_that_nobody_shrank_is_kept_with_what_runs_it_again() -> None:
    finding = finding_of(a_run(found(shrunk=False), finished=False))
    assert (finding.case, finding.shrunk, finding.saved) == (CASE, False, "")
    assert finding.command == "pytest fuzz/ -n 2 --seed 7"


def test_a_command_that_names_its_seed_is_left_alone() -> None:
    start = started(command="pytest fuzz/ --seed 7")
    assert finding_of(a_run(found(shrunk=False), start=start)).command == (
        "pytest fuzz/ --seed 7"
    )


def test_a_cause_is_one_line() -> None:
    assert finding_of(a_run(found(message="first\n  second"))).cause == "first second"


def test_a_finding_outside_the_catalogue_is_a_problem() -> None:
    (problem,) = fold(a_run(found(invariant="PAGE-UNHEARD-OF"))).problems
    assert "PAGE-UNHEARD-OF (wired) is not in the catalogue" in problem.message


def test_a_judged_invariant_outside_the_catalogue_is_a_problem() -> None:
    shard = shard_finished("page_size/wired/0", judged={"PAGE-TYPO": 3})
    (problem,) = fold(a_run(shard)).problems
    assert problem.where == "page_size/wired/0"
    assert "judged PAGE-TYPO, which the catalogue does not have" in problem.message


def test_a_shard_that_nobody_planned_is_a_problem() -> None:
    (problem,) = fold(a_run(shard_finished("page_size/wired/9"))).problems
    assert problem.where == "page_size/wired/9"
    assert "no machine was to run it" in problem.message


@pytest.mark.parametrize(
    "event",
    [Progress(shard="page_size", cases=1), shard_finished("page_size/wide/0")],
)
def test_a_shard_name_without_origin_is_a_problem(event: Event) -> None:
    report = fold(a_run(event))
    assert any("is not named target/wired" in t.message for t in report.problems)
    assert row_of(report, "PAGE-ONE-SIZE").cases == 200


def test_a_shard_that_finished_twice_is_a_problem_and_counted_once() -> None:
    twice = shard_finished("page_size/wired/0", seconds=9.0)
    report = fold([*a_run(), twice])
    (problem,) = report.problems
    assert "finished 2 times" in problem.message
    assert row_of(report, "PAGE-ONE-SIZE").cases == 200


def test_controls_that_were_not_heard_of_are_not_run() -> None:
    events = [e for e in a_run() if e != control("canary")]
    outcomes = {c.name: c.outcome for c in fold(events).controls}
    assert outcomes == {"canary": "not run", "page_size": "found"}


def test_a_control_missed_by_one_machine_is_not_found() -> None:
    missed = control("canary", found=False, message="not found within 100 cases")
    report = fold([*a_run(), missed])
    (canary,) = [c for c in report.controls if c.name == "canary"]
    assert canary.outcome == "not found"
    assert canary.message == "not found within 100 cases"


def test_a_planned_replay_without_an_outcome_is_not_run() -> None:
    (replay,) = fold(a_run(start=started(replays=(FAULT,)))).replays
    assert (replay.id, replay.outcome) == (FAULT, "NOT_RUN")


def test_replays_that_disagree_are_a_problem() -> None:
    report = fold(a_run(replayed("FIXED"), replayed("REPRODUCED")))
    assert report.replays[0].outcome == "REPRODUCED"
    (problem,) = report.problems
    assert problem.message.endswith("disagree on the same tree: FIXED, REPRODUCED")


def test_skips_are_counted() -> None:
    skip = Skipped(what="fp8", reason="the interpreter has no fp8")
    more = Skipped(what="fp8", reason="the interpreter has no fp8", cases=5)
    (counted,) = fold(a_run(skip, skip, more)).skips
    assert (counted.what, counted.count) == ("fp8", 7)


def test_without_a_start_the_rest_is_kept() -> None:
    report = fold([found(), shard_finished("page_size/wired/0")])
    assert [f.id for f in report.findings] == [FAULT]
    assert (report.profile, report.tree, report.finished) == (None, None, False)
    assert report.cases == 100
    (problem,) = report.problems
    assert problem.message.startswith("no run-started event")


def test_of_nothing_there_is_a_report_too() -> None:
    report = fold([])
    assert not report.finished
    assert len(report.problems) == 1


def halves(command: str = "pytest fuzz/") -> tuple[list[Event], list[Event]]:
    """One run on two machines; their commands end with their number."""
    parts = []
    for shard_id in (0, 1):
        start = started(
            run=f"run-{shard_id}",
            num_shards=2,
            shard_id=shard_id,
            command=f"{command} {shard_id}",
            shards=tuple(name for name in SHARDS if name.endswith(str(shard_id))),
        )
        parts.append(a_run(start=start))
    return parts[0], parts[1]


def test_one_of_two_machines_is_incomplete() -> None:
    report = fold(halves()[0])
    assert report.machines_missing == (1,)
    assert {row.verdict for row in report.rows} == {"incomplete"}


def test_two_machines_make_the_rows_of_one() -> None:
    first, second = halves()
    report = fold([*first, *second])
    assert report.machines_missing == ()
    assert report.finished
    assert [m.run for m in report.machines] == ["run-0", "run-1"]
    assert report.rows == fold(a_run()).rows
    assert report.problems == ()


def test_only_runs_of_one_part_are_named_as_such() -> None:
    third = started(run="run-2", num_shards=2, shard_id=1, shards=())
    first, second = halves()
    (problem,) = fold([*first, *second, third]).problems
    assert problem.message == "--shard-id 1 ran 2 times: run-1, run-2"


def test_two_machines_of_which_one_ended_have_not_finished() -> None:
    first, second = halves()
    events = [e for e in second if not isinstance(e, RunFinished)]
    assert not fold([*first, *events]).finished


OTHER_TREE = TreeRecord(
    spec="0.33.0", version="0.33.0", digest="b" * 16, patches=(), notes=()
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"profile": "nightly"}, "machines ran different profiles: nightly, quick"),
        ({"seed": 8}, "machines ran different seeds: 7, 8"),
        ({"tree": OTHER_TREE}, "different trees: 0.20.1 (digest 5a1e5a1e5a1e5a1e), "),
        ({"num_shards": 3}, "machines ran different --num-shards: 2, 3"),
        ({"labels_min": 1}, "machines ran different label thresholds: 1, 5"),
        ({"catalogue": ()}, "different catalogues of invariants: give all of them"),
        ({"ledger": (in_ledger(),)}, "machines ran different ledgers"),
        ({"properties": ()}, "machines ran different selections of properties"),
        ({"shard_id": 0}, "--shard-id 0 ran 2 times: run-0, run-1"),
        ({"shards": SHARDS[:1]}, f"shards planned on two machines: {SHARDS[0]}"),
    ],
)
def test_machines_that_do_not_fit_are_a_problem(
    change: dict[str, object], message: str
) -> None:
    first, second = halves()
    other = msgspec.structs.replace(second[0], **change)
    report = fold([*first, other, *second[1:]])
    assert any(message in problem.message for problem in report.problems)


def without_times(report: Report) -> Report:
    nothing = Times(started_unix_s=None, seconds=None, startups=(), shard_s={})
    return msgspec.structs.replace(report, times=nothing)


_events = st.lists(
    st.one_of(
        st.builds(
            found,
            id_=st.sampled_from([FAULT, "page-size-00000000", "other-1"]),
            source=st.sampled_from(SHARDS),
            case=st.sampled_from(['{"a":1}', '{"b":1}', '{"a":10}', "{}"]),
            shrunk=st.booleans(),
            fix=st.sampled_from(["verified", "none", "max error 3"]),
            message=st.sampled_from(["one", "two"]),
        ),
        st.builds(
            replayed,
            outcome=st.sampled_from(["REPRODUCED", "FIXED", "ERRORED"]),
            id_=st.sampled_from([FAULT, "other-1"]),
            message=st.sampled_from(["one", "two"]),
        ),
        st.builds(Skipped, what=st.sampled_from("ab"), reason=st.sampled_from("cd")),
        st.builds(Problem, where=st.sampled_from("ab"), message=st.sampled_from("cd")),
        st.builds(
            Absent,
            target=st.sampled_from(["page_size", "elsewhere"]),
            reason=st.sampled_from("cd"),
        ),
        st.builds(Progress, shard=st.sampled_from(SHARDS), cases=st.integers(0, 9)),
        st.builds(
            control,
            name=st.sampled_from(["canary", "page_size"]),
            found=st.booleans(),
            message=st.sampled_from("ab"),
        ),
        st.builds(
            shard_finished, name=st.sampled_from(SHARDS), cases=st.integers(0, 99)
        ),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None, database=None)
@given(more=_events, order=st.randoms(use_true_random=False), finished=st.booleans())
def test_the_document_does_not_depend_on_the_order_of_events(
    *, more: list[Event], order: random.Random, finished: bool
) -> None:
    start = started(
        ledger=(in_ledger(), in_ledger("other-1", expected="fixed")),
        replays=(FAULT, "never-heard-of"),
    )
    events = a_run(*more, start=start, finished=finished)
    expected = msgspec.json.encode(fold(events))
    order.shuffle(events)
    assert msgspec.json.encode(fold(events)) == expected


@settings(max_examples=100, deadline=None, database=None)
@given(more=_events, workers=st.integers(1, 8), order=st.randoms())
def test_apart_from_times_the_document_does_not_depend_on_the_workers(
    more: list[Event], workers: int, order: random.Random
) -> None:
    once = [e for e in a_run(*more) if not isinstance(e, WorkerStarted)]
    again: list[Event] = [
        WorkerStarted(worker=f"gw{n}", startup_s=n + 0.5) for n in range(workers)
    ]
    for event in once:
        match event:
            case ShardFinished():
                slower = event.seconds * order.random()
                again.append(msgspec.structs.replace(event, seconds=slower))
            case RunFinished():
                again.append(RunFinished(seconds=order.random()))
            case _:
                again.append(event)
    order.shuffle(again)
    assert without_times(fold(again)) == without_times(fold(once))


def test_a_fault_found_again_by_another_machine_is_one_finding() -> None:
    first, second = halves()
    source = "page_size/wired/1"
    report = fold([*first, found(), *second, found(source=source), found()])
    (finding,) = report.findings
    assert finding.sources == ("page_size/wired/0", source)
    assert sum(isinstance(e, Found) for e in first) == 0
