"""The exit code: every line of the table, what wins, and the words of each reason."""

import pytest

from reports.decide import Decision, decide
from reports.events import (
    Absent,
    Event,
    LedgerRecord,
    Outcome,
    Problem,
    RunStarted,
    WorkerStarted,
)
from reports.report import fold
from tests.report_events import (
    FAULT,
    SHARDS,
    a_run,
    control,
    found,
    in_ledger,
    replayed,
    shard_finished,
    started,
)

SHOWN = f"{FAULT}, PAGE-ONE-SIZE (wired)"
NEW_CONTRACT = f"new finding: {FAULT}, PAGE-ONE-SIZE (contract)"
LINK = "https://example.org/1"
SELDOM = "never met its boundary often enough"
PROMOTE = (
    f"{FAULT} no longer fails on this tree, and the ledger says that it does: promote "
    "it (record this release as fixed)"
)
PART = (
    "1 of 2 machines: coverage is judged when all are merged (python -m reports merge)"
)


def decision_of(
    *events: Event,
    start: RunStarted | None = None,
    strict: bool = False,
    whole: bool = True,
    finished: bool = True,
    without_shards: tuple[str, ...] = (),
) -> Decision:
    run = a_run(*events, start=start, finished=finished, without_shards=without_shards)
    return decide(fold(run), strict=strict, whole=whole)


def texts(decision: Decision) -> list[str]:
    return [reason.text for reason in decision.reasons]


def ledger_run(expected: str, outcome: Outcome) -> Decision:
    start = started(ledger=(in_ledger(expected=expected),), replays=(FAULT,))
    return decision_of(replayed(outcome), start=start)


def test_all_held_and_exercised_is_0() -> None:
    assert decision_of() == Decision(exit=0, reasons=(), notes=())


def test_a_new_wired_finding_is_1() -> None:
    decision = decision_of(found())
    assert decision.exit == 1
    assert texts(decision) == [f"new finding: {FAULT}, PAGE-ONE-SIZE (wired)"]
    assert decision.reasons[0].id == FAULT


def test_a_new_contract_finding_is_a_note() -> None:
    decision = decision_of(found(origin="contract"))
    assert decision.exit == 0
    assert decision.notes == (f"reported, breaks only with --strict: {NEW_CONTRACT}",)


def test_a_new_contract_finding_is_1_when_strict() -> None:
    assert decision_of(found(origin="contract"), strict=True).exit == 1


def test_a_saved_fault_that_reproduces_outside_the_ledger_is_1() -> None:
    start = started(replays=(FAULT,))
    decision = decision_of(replayed("REPRODUCED"), start=start)
    assert decision.exit == 1
    assert texts(decision) == [f"new finding: {FAULT}, PAGE-ONE-SIZE (wired)"]


def test_a_fault_found_and_replayed_is_one_reason() -> None:
    start = started(replays=(FAULT,))
    assert len(decision_of(replayed("REPRODUCED"), found(), start=start).reasons) == 1


def test_a_saved_fault_that_is_fixed_is_0() -> None:
    assert decision_of(replayed("FIXED"), start=started(replays=(FAULT,))).exit == 0


@pytest.mark.parametrize("expected", ["affected", "unknown"])
def test_a_known_fault_that_still_fails_is_0(expected: str) -> None:
    assert ledger_run(expected, "REPRODUCED").exit == 0


def test_a_known_fault_that_no_longer_fails_is_1() -> None:
    decision = ledger_run("affected", "FIXED")
    assert decision.exit == 1
    assert decision.reasons[0].kind == "promote"
    assert texts(decision) == [
        PROMOTE,
    ]


def test_a_known_fault_whose_saved_case_passes_but_that_lives_is_no_promotion() -> None:
    start = started(ledger=(in_ledger(),), replays=(FAULT,))
    decision = decision_of(replayed("FIXED"), found(), start=start)
    assert decision.exit == 0
    assert decision.notes == (
        f"{FAULT}: its saved case passes, and the search found it again",
    )


def test_a_fault_that_fails_again_where_it_was_fixed_is_1() -> None:
    decision = ledger_run("fixed", "REPRODUCED")
    assert decision.exit == 1
    assert texts(decision) == [
        f"fails again, recorded as fixed on this tree ({LINK}): {SHOWN}"
    ]


def test_a_fixed_fault_that_stays_fixed_is_0() -> None:
    assert ledger_run("fixed", "FIXED").exit == 0


@pytest.mark.parametrize(
    ("outcome", "fate"), [("REPRODUCED", "fails"), ("FIXED", "does not fail")]
)
def test_a_tree_that_the_ledger_does_not_know_is_a_note(
    outcome: Outcome, fate: str
) -> None:
    decision = ledger_run("unknown", outcome)
    assert decision.exit == 0
    assert decision.notes == (
        f"{FAULT} {fate} here, and the ledger does not speak of this tree",
    )


def test_a_vacuous_row_is_2_and_names_its_labels() -> None:
    seen = {"drafter": 2, "mamba-beside-attention": 9}
    decision = decision_of(
        *(shard_finished(f"page_size/wired/{i}", labels=seen) for i in (0, 1))
    )
    assert decision.exit == 2
    assert texts(decision) == [
        f"vacuous: PAGE-ONE-SIZE (wired) {SELDOM}: drafter (4 of 5)"
    ]


def test_a_row_judged_in_no_case_is_2() -> None:
    nothing = [
        shard_finished(name, judged={"PAGE-ONE-SIZE": 100})
        for name in SHARDS
        if name.startswith("page_size/contract")
    ]
    decision = decision_of(*nothing)
    assert decision.exit == 2
    assert texts(decision) == ["vacuous: PAGE-PURE (contract) was judged in no case"]


def test_a_row_with_a_contract_finding_must_be_exercised_too() -> None:
    blind = [shard_finished(f"page_size/contract/{i}", labels={}) for i in (0, 1)]
    decision = decision_of(found(origin="contract"), *blind)
    assert decision.exit == 2
    assert texts(decision) == [
        f"vacuous: PAGE-ONE-SIZE (contract) {SELDOM}: mamba-beside-attention (0 of 5)"
    ]


def test_a_control_that_was_not_found_is_2() -> None:
    decision = decision_of(
        control("canary", found=False, message="not found within 100 cases")
    )
    assert decision.exit == 2
    assert texts(decision) == ["control not found: canary: not found within 100 cases"]


def test_a_control_that_nobody_looked_for_is_2() -> None:
    events = [event for event in a_run() if event != control("canary")]
    decision = decide(fold(events), strict=False)
    assert (decision.exit, texts(decision)) == (2, ["control not run: canary"])


def test_a_saved_fault_that_could_not_run_is_2() -> None:
    start = started(replays=(FAULT,))
    decision = decision_of(replayed("ERRORED", message="no module"), start=start)
    assert decision.exit == 2
    assert texts(decision) == [f"saved fault {FAULT} could not be replayed: no module"]


def test_a_planned_replay_that_never_came_is_2() -> None:
    decision = decision_of(start=started(replays=(FAULT,)), whole=False)
    assert decision.exit == 2
    assert texts(decision) == [f"saved fault {FAULT} was not replayed"]


def test_a_saved_fault_whose_path_the_tree_lacks_is_a_note() -> None:
    start = started(replays=(FAULT,))
    decision = decision_of(replayed("NOT_APPLICABLE"), start=start)
    assert decision.exit == 0
    assert decision.notes == (
        f"saved faults whose code path is not in this tree: {FAULT}",
    )


def test_a_ledger_that_expects_a_fault_where_there_is_no_such_path_is_2() -> None:
    decision = ledger_run("affected", "NOT_APPLICABLE")
    assert decision.exit == 2
    assert "has no such code path: correct its entry" in texts(decision)[0]


def test_a_problem_is_2_and_told_by_its_error() -> None:
    message = "worker 'gw1' crashed\nE   KeyError: 'layer'\nfuzz/x.py:3: KeyError"
    decision = decision_of(Problem(where="fuzz/test_x.py", message=message))
    assert decision.exit == 2
    assert texts(decision) == ["problem in fuzz/test_x.py: KeyError: 'layer'"]
    plain = decision_of(Problem(where="x", message="first\nlast\n \n"))
    assert texts(plain) == ["problem in x: last"]
    assert texts(decision_of(Problem(where="x", message=""))) == ["problem in x: "]


def test_an_unfinished_shard_is_2_and_named() -> None:
    decision = decision_of(without_shards=("page_size/wired/1",))
    assert decision.exit == 2
    assert texts(decision) == [
        "1 of 2 shards of page_size/wired never finished: page_size/wired/1"
    ]


def test_a_property_of_which_nothing_was_heard_is_2() -> None:
    lacking = ("page_size/wired/0", "page_size/wired/1")
    decision = decision_of(without_shards=lacking)
    assert decision.exit == 2
    (text,) = texts(decision)
    assert text.startswith("2 of 2 shards of page_size/wired never finished: ")


def test_a_target_that_ran_is_not_absent_when_a_shard_is_unfinished() -> None:
    absent = Absent(target="page_size", reason="no such function")
    decision = decision_of(absent, without_shards=("page_size/wired/1",))
    assert decision.exit == 2


def test_a_row_that_may_still_be_filled_is_not_called_vacuous() -> None:
    blind = shard_finished("page_size/contract/0", labels={})
    decision = decision_of(
        found(origin="contract"), blind, without_shards=("page_size/contract/1",)
    )
    assert texts(decision) == [
        "1 of 2 shards of page_size/contract never finished: page_size/contract/1"
    ]


def test_a_row_that_only_a_replay_reached_is_not_called_vacuous() -> None:
    start = started(
        properties=("page_size/wired",),
        shards=("page_size/wired/0",),
        replays=(FAULT,),
    )
    fault = replayed("REPRODUCED", origin="contract")
    decision = decision_of(fault, start=start, whole=False)
    assert (decision.exit, decision.reasons) == (0, ())


def test_a_run_that_did_not_end_is_2() -> None:
    decision = decision_of(finished=False, whole=False)
    assert decision.exit == 2
    assert texts(decision) == ["the run did not end by itself: no run-finished event"]


def test_nothing_at_all_is_2() -> None:
    decision = decide(fold([]), strict=False)
    assert decision.exit == 2
    assert any(text.startswith("nothing ran") for text in texts(decision))


def test_a_run_in_which_nothing_was_selected_is_2() -> None:
    start = started(properties=(), shards=(), controls=())
    decision = decision_of(start=start, whole=False)
    assert (decision.exit, texts(decision)) == (
        2,
        ["nothing ran: no case of any property, no saved fault"],
    )


def test_a_run_of_shards_without_cases_is_2() -> None:
    empty = [shard_finished(name, cases=0) for name in SHARDS]
    assert "nothing ran" in " ".join(texts(decision_of(*empty)))


def test_a_replay_alone_is_something() -> None:
    start = started(properties=(), shards=(), controls=(), replays=(FAULT,))
    assert decision_of(replayed("FIXED"), start=start, whole=False).exit == 0


def test_a_tree_that_lacks_all_that_was_selected_is_2() -> None:
    start = started(properties=(), shards=(), controls=(), replays=(FAULT,))
    decision = decision_of(
        Absent(target="page_size", reason="no such function"),
        replayed("NOT_APPLICABLE"),
        start=start,
        whole=False,
    )
    assert decision.exit == 2
    assert texts(decision) == ["nothing ran: no case of any property, no saved fault"]


def test_a_new_finding_wins_and_the_other_reasons_are_listed() -> None:
    decision = decision_of(found(), control("canary", found=False), finished=False)
    assert decision.exit == 1
    assert [reason.exit for reason in decision.reasons] == [1, 2, 2]


def test_a_selection_is_0_for_a_person_and_2_for_a_gate() -> None:
    names = tuple(name for name in SHARDS if name.startswith("page_size/wired"))
    start = started(properties=("page_size/wired",), shards=names)
    assert decision_of(start=start, whole=False).exit == 0
    decision = decision_of(start=start, whole=True)
    assert decision.exit == 2
    assert texts(decision) == [
        "not run: mamba_block_table/wired (1 row) was not selected",
        "not run: mamba_block_table/contract (1 row) was not selected",
        "not run: page_size/contract (2 rows) was not selected",
    ]


def half() -> RunStarted:
    names = tuple(name for name in SHARDS if name.endswith("/0"))
    return started(num_shards=2, shard_id=0, shards=names)


def test_one_of_two_machines_is_0_for_itself_and_2_for_a_gate() -> None:
    blind = shard_finished("page_size/wired/0", labels={})
    decision = decision_of(blind, start=half(), whole=False)
    assert decision.exit == 0
    assert decision.notes == (PART,)
    gate = decision_of(blind, start=half(), whole=True)
    assert gate.exit == 2
    assert gate.notes == ()
    assert texts(gate) == [
        "1 of 2 machines' runs are missing (--shard-id 1): merge them first"
    ]


def test_a_gate_wants_a_control() -> None:
    decision = decision_of(start=started(controls=()))
    assert decision.exit == 2
    assert texts(decision) == [
        "no control was looked for: nothing shows that faults are found"
    ]


@pytest.mark.parametrize(
    ("record", "exit_code"),
    [(in_ledger(), 2), (in_ledger(expected="unknown"), 0)],
)
def test_a_gate_wants_every_affected_ledger_entry_replayed(
    record: LedgerRecord, exit_code: int
) -> None:
    assert decision_of(start=started(ledger=(record,))).exit == exit_code
    assert decision_of(start=started(ledger=(record,)), whole=False).exit == 0


@pytest.mark.parametrize("told", [True, False])
def test_an_absent_target_is_a_note_but_not_for_a_gate(*, told: bool) -> None:
    lacking = tuple(name for name in SHARDS if name.startswith("page_size"))
    empty = [shard_finished(name, cases=0, labels={}) for name in lacking if told]
    events = a_run(
        Absent(target="page_size", reason="no such function"),
        *empty,
        without_shards=lacking,
    )
    events = [event for event in events if event != control("page_size")]
    decision = decide(fold(events), strict=False)
    assert decision.exit == 0
    assert decision.notes == ("absent in this tree: page_size: no such function",)
    gate = decide(fold(events), strict=False, whole=True)
    assert gate.exit == 2
    assert "absent in this tree: page_size" in gate.reasons[0].text


def test_workers_that_started_are_not_something_that_ran() -> None:
    decision = decide(fold([WorkerStarted(worker="a", startup_s=1)]), strict=True)
    assert decision.exit == 2
