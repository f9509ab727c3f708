"""`python -m reports`: exit codes and messages, comparison with a base, start-up."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from reports.base import BaseReplay, replay_in_process
from reports.commands import main
from reports.document import Report
from reports.events import Event, Outcome
from reports.store import finish, new_run_folder
from tests.report_events import (
    FAULT,
    SHARDS,
    a_run,
    control,
    found,
    in_ledger,
    machine,
    started,
    write,
)
from tests.report_events import replayed as replayed_event

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Reports of these tests lie elsewhere, on a terminal of 100 columns."""
    folder = tmp_path / "reports"
    monkeypatch.setenv("KVFUZZ_REPORTS", str(folder))
    monkeypatch.setenv("COLUMNS", "100")
    return folder


def a_report(*events: Event) -> Path:
    folder = write(new_run_folder(), a_run(*events))
    finish(folder)
    return folder


def never(id_: str, tree: str, _folders: Sequence[str]) -> BaseReplay:
    raise AssertionError(f"replayed {id_} on {tree}")


def test_show_prints_the_latest_report(capsys: pytest.CaptureFixture[str]) -> None:
    a_report(found())
    assert main(["show"]) == 0
    assert f"replay python -m reproducers replay {FAULT}" in capsys.readouterr().out


def test_show_takes_a_run_s_id(capsys: pytest.CaptureFixture[str]) -> None:
    older = a_report(found())
    a_report()
    assert main(["show", older.name]) == 0
    assert FAULT in capsys.readouterr().out


def test_show_of_a_run_whose_controller_died_says_incomplete(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events = a_run(found(), finished=False, without_shards=("page_size/contract/1",))
    write(new_run_folder(), events)
    assert main(["show"]) == 0
    out = capsys.readouterr().out
    assert FAULT in out
    assert "incomplete" in out
    assert "the run did not end by itself" in out
    assert "never finished: page_size/contract/1" in out


def test_show_without_a_report_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("python -m reports show: no report at ")
    assert "run pytest fuzz/ first" in error


def test_gate_passes_a_whole_clean_run(capsys: pytest.CaptureFixture[str]) -> None:
    a_report()
    assert main(["gate"]) == 0
    assert capsys.readouterr().out.startswith("## kvfuzz passed: ")


def test_gate_fails_on_a_new_finding_and_says_why(
    capsys: pytest.CaptureFixture[str],
) -> None:
    a_report(found())
    assert main(["gate"]) == 1
    out = capsys.readouterr().out
    assert "(exit 1)" in out.splitlines()[0]
    assert f"- **1** new finding: {FAULT}, PAGE-ONE-SIZE (wired)" in out


def test_gate_heeds_strict_of_the_command_and_of_the_run() -> None:
    folder = a_report(found(origin="contract"))
    assert main(["gate"]) == 0
    assert main(["gate", "--strict"]) == 1
    start = started(strict=True)
    write(folder.with_name("strict"), a_run(found(origin="contract"), start=start))
    assert main(["gate", "strict"]) == 1


def test_gate_cannot_tell_from_a_selection() -> None:
    names = tuple(name for name in SHARDS if name.startswith("page_size"))
    start = started(properties=("page_size/wired", "page_size/contract"), shards=names)
    write(new_run_folder(), a_run(start=start))
    assert main(["gate"]) == 2


def test_gate_does_not_read_an_older_report_when_the_run_died(
    capsys: pytest.CaptureFixture[str],
) -> None:
    a_report()
    died = new_run_folder()
    assert main(["gate"]) == 2
    assert "holds neither report.json nor events" in capsys.readouterr().err
    write(died, a_run(finished=False))
    assert main(["gate"]) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is damaged"),
        (b'{"format":"kvfuzz-report","format_version":7}', "format version 7"),
    ],
)
def test_gate_on_a_report_that_cannot_be_read_is_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes,
    message: str,
) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    assert main(["gate", str(path)]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_gate_writes_its_summary_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_report(control("canary", found=False))
    path = tmp_path / "summary.md"
    assert main(["gate", "--summary", str(path)]) == 2
    assert path.read_text() == capsys.readouterr().out
    assert "control not found: canary" in path.read_text()


def test_gate_writes_its_summary_through_a_link(tmp_path: Path) -> None:
    a_report()
    file, link = tmp_path / "summary.md", tmp_path / "stdout"
    file.write_text("")
    link.symlink_to(file)
    assert main(["gate", "--summary", str(link)]) == 0
    assert link.is_symlink()
    assert "kvfuzz passed" in file.read_text()


def test_gate_that_cannot_write_its_summary_is_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a_report()
    missing = tmp_path / "missing" / "summary.md"
    assert main(["gate", "--summary", str(missing)]) == 2
    assert "No such file or directory" in capsys.readouterr().err


class Base:
    """A base on which every fault fares alike; notes what was asked of it."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome: Outcome = outcome
        self.asked: list[tuple[str, str]] = []
        self.folders: list[str] = []

    def __call__(self, id_: str, tree: str, folders: Sequence[str]) -> BaseReplay:
        self.asked.append((id_, tree))
        self.folders += folders
        return BaseReplay(id=id_, outcome=self._outcome, message="no module")


def test_a_finding_that_base_has_too_does_not_break(
    capsys: pytest.CaptureFixture[str],
) -> None:
    a_report(found())
    on_base = Base("REPRODUCED")
    assert main(["gate", "--base", "0.20.1"], replay=on_base) == 0
    assert on_base.asked == [(FAULT, "0.20.1")]
    out = capsys.readouterr().out
    assert out.startswith("## kvfuzz passed")
    assert f"- already in base 0.20.1: new finding: {FAULT}" in out


def test_the_base_is_asked_with_the_run_s_own_targets() -> None:
    start = started(target_folders=("/own/targets",))
    write(new_run_folder(), a_run(found(), start=start))
    on_base = Base("REPRODUCED")
    assert main(["gate", "--base", "0.20.1"], replay=on_base) == 0
    assert on_base.folders == ["/own/targets"]
    moved = Base("REPRODUCED")
    command = ["gate", "--base", "0.20.1", "--targets", "here", "--targets", "there"]
    assert main(command, replay=moved) == 0
    assert moved.folders == ["here", "there"]


@pytest.mark.parametrize("outcome", ["FIXED", "NOT_APPLICABLE"])
def test_a_finding_that_base_lacks_breaks(
    outcome: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    a_report(found())
    assert main(["gate", "--base", "0.20.1"], replay=Base(outcome)) == 1
    assert "not in base 0.20.1 (" in capsys.readouterr().out


def test_a_base_that_cannot_be_asked_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    a_report(found())
    assert main(["gate", "--base", "0.20.1"], replay=Base("ERRORED")) == 2
    text = f"{FAULT} could not be replayed on base 0.20.1: no module"
    assert text in capsys.readouterr().out


def test_base_does_not_excuse_what_could_not_be_told() -> None:
    a_report(found(), control("canary", found=False))
    assert main(["gate", "--base", "0.20.1"], replay=Base("REPRODUCED")) == 2


def test_base_is_not_asked_about_what_does_not_break() -> None:
    a_report(found(origin="contract"))
    assert main(["gate", "--base", "0.20.1"], replay=never) == 0
    on_base = Base("FIXED")
    assert main(["gate", "--strict", "--base", "0.20.1"], replay=on_base) == 1


def test_a_finding_without_reproducer_cannot_be_compared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    a_report(found(shrunk=False))
    assert main(["gate", "--base", "0.20.1"], replay=never) == 2
    assert "was not saved, so it cannot be replayed" in capsys.readouterr().out


def test_a_saved_fault_that_reproduces_is_compared_too() -> None:
    folder = write(
        new_run_folder(),
        a_run(replayed_event("REPRODUCED"), start=started(replays=(FAULT,))),
    )
    finish(folder)
    assert main(["gate", "--base", "0.20.1"], replay=Base("REPRODUCED")) == 0


def test_a_repair_does_not_break_against_base(
    capsys: pytest.CaptureFixture[str],
) -> None:
    start = started(ledger=(in_ledger(),), replays=(FAULT,))
    write(new_run_folder(), a_run(replayed_event("FIXED"), start=start))
    assert main(["gate"]) == 1
    assert main(["gate", "--base", "0.20.1"], replay=never) == 0
    assert f"head repairs a known fault: {FAULT}" in capsys.readouterr().out


def answering(
    monkeypatch: pytest.MonkeyPatch, out: str, code: int, error: str = ""
) -> list[list[str]]:
    """Let the process that replays answer so; give the commands it was started with."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, code, out.encode(), error.encode())

    monkeypatch.setattr("reports.base.subprocess.run", run)
    return commands


def line(outcome: str, id_: str = FAULT) -> str:
    return json.dumps({"id": id_, "outcome": outcome, "message": "m", "tree": "x"})


def test_the_base_is_asked_by_a_command_and_its_line_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = answering(monkeypatch, f"noise\n{line('REPRODUCED')}\n", 1)
    answer = replay_in_process(FAULT, "0.20.1", ["a b", "/c"])
    assert answer == BaseReplay(id=FAULT, outcome="REPRODUCED", message="m")
    expected = ["-m", "reproducers", "replay", FAULT, "--vllm", "0.20.1", "--json"]
    expected += ["--targets", "a b", "--targets", "/c"]
    assert commands == [[sys.executable, *expected]]


@pytest.mark.parametrize(
    ("out", "code", "message"),
    [
        ("", 0, "no answer; exit code 0: Traceback: it broke"),
        ("", -11, "no answer; exit code -11: Traceback: it broke"),
        (line("REPRODUCED", "another-1"), 1, "no answer; exit code 1"),
        (line("CURED"), 0, "no answer; exit code 0"),
        (line("FIXED"), 2, "FIXED, yet its exit code is 2"),
        (line("NOT_APPLICABLE"), 1, "NOT_APPLICABLE, yet its exit code is 1"),
        (line("REPRODUCED"), 0, "REPRODUCED, yet its exit code is 0"),
    ],
)
def test_an_answer_that_proves_nothing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, out: str, code: int, message: str
) -> None:
    answering(monkeypatch, out, code, "first\nTraceback: it broke\n")
    answer = replay_in_process(FAULT, "0.20.1", ())
    assert answer.outcome == "ERRORED"
    assert message in answer.message


def test_a_fault_that_is_gone_where_another_shows_is_fixed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, line("FIXED"), 1)
    assert replay_in_process(FAULT, "0.20.1", ()).outcome == "FIXED"


def test_an_id_that_is_an_option_is_not_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = answering(monkeypatch, "", 0)
    for id_ in ("--all", "../x", "a b", ""):
        assert "is no id of a saved fault" in replay_in_process(id_, "x", ()).message
    assert commands == []


def test_a_base_that_never_answers_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 1800)

    monkeypatch.setattr("reports.base.subprocess.run", run)
    answer = replay_in_process(FAULT, "0.20.1", ())
    assert (answer.outcome, answer.message) == ("ERRORED", "no answer within 1800 s")


def test_merge_of_all_machines_is_0_and_can_be_gated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [str(write(tmp_path / str(i), machine(i))) for i in (0, 1)]
    assert main(["merge", *parts, "-o", str(tmp_path / "out")]) == 0
    out = capsys.readouterr().out
    assert out == f"merged 2 runs: {tmp_path / 'out' / 'report.json'}\n"
    assert main(["gate", str(tmp_path / "out")]) == 0


def test_merge_of_some_machines_is_2_and_names_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = [str(write(tmp_path / str(i), machine(i, num_shards=3))) for i in (0, 1)]
    assert main(["merge", *parts, "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "incomplete: the run of --shard-id 2 of 3 is missing" in error
    assert main(["gate", str(tmp_path / "out")]) == 2


def test_merge_names_shards_that_never_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "a", a_run(without_shards=SHARDS[:1], finished=False))
    assert main(["merge", str(folder), "-o", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"incomplete: shard {SHARDS[0]} never finished",
        "incomplete: a machine's run did not end by itself",
    ]


def test_merge_of_one_run_twice_is_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(write(tmp_path / "a", machine(0)))
    assert main(["merge", folder, folder, "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "these are not parts of one run: --shard-id 0 ran 2 times" in error


def test_the_schema_is_printed_and_filed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    out = capsys.readouterr().out
    assert json.loads(out)["$ref"] == "#/$defs/Report"
    assert out == (DOCS / "report-schema.json").read_text(), (
        "run: python -m reports schema > docs/report-schema.json"
    )


def structs(kind: type[msgspec.Struct]) -> set[str]:
    """Names of the document's parts and of all their fields."""
    schema = msgspec.json.schema(kind)
    names = set(schema["$defs"]) - {kind.__name__}
    for part in schema["$defs"].values():
        names |= set(part["properties"])
    return names


def test_every_field_is_explained() -> None:
    text = (DOCS / "report-schema.md").read_text()
    unexplained = {name for name in structs(Report) if f"`{name}`" not in text}
    assert unexplained == set()


def test_an_unknown_command_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["frobnicate"])
    assert caught.value.code == 2
    assert "invalid choice: 'frobnicate'" in capsys.readouterr().err


def test_the_command_is_fast_and_imports_nothing_heavy() -> None:
    a_report(found())
    code = (
        "import sys; from reports.commands import main; main(['show']); "
        "heavy = {'torch', 'vllm', 'hypothesis', 'pytest', 'numpy', 'triton', 'fuzz', "
        "'invariants', 'strategies', 'reproducers'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    # The quickest of three: the machine may be busy, the command may not be slow.
    quickest_s = min(_seconds() for _ in range(3))
    assert quickest_s < 1.0


def _seconds() -> float:
    started_s = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "reports", "show"], check=True, capture_output=True
    )
    return time.monotonic() - started_s
