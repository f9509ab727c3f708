"""Run folders: whole files, the latest link, readers that fail closed, merging."""

from pathlib import Path

import msgspec
import pytest

from reports import store
from reports.document import FORMAT_VERSION, Report
from reports.events import Event, RunFinished, WorkerStarted
from reports.report import fold
from reports.store import ReportError, finish, load, located, merge, new_run_folder
from tests.report_events import FAULT, SHARDS, a_run, found, machine, write


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Reports of these tests lie elsewhere."""
    folder = tmp_path / "reports"
    monkeypatch.setenv("KVFUZZ_REPORTS", str(folder))
    return folder


def test_by_default_reports_lie_in_this_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KVFUZZ_REPORTS")
    assert store.home() == Path(store.__file__).parent


def test_a_new_run_is_the_latest_at_once(home: Path) -> None:
    folder = new_run_folder()
    assert folder.parent == home / "runs"
    assert (home / "latest").resolve() == folder.resolve()
    assert (home / "latest").is_symlink()


def test_runs_begun_in_one_second_have_folders_of_their_own() -> None:
    assert len({new_run_folder() for _ in range(20)}) == 20


def test_finishing_writes_every_rendering_and_gives_the_report(home: Path) -> None:
    folder = write(new_run_folder(), a_run(found()), files=3)
    report = finish(folder)
    assert report == fold(a_run(found()))
    assert load(home / "latest" / "report.json") == report
    assert FAULT in (home / "latest" / "report.md").read_text()
    assert b"<testsuites" in (home / "latest" / "junit.xml").read_bytes()
    left = {path.name for path in folder.iterdir()} - {"report.json", "report.md"}
    assert (folder / "report.json").stat().st_mode & 0o777 == 0o644
    assert left == {"junit.xml", *(f"events-gw{n}.jsonl" for n in range(3))}


def test_an_older_run_that_ends_later_becomes_the_latest(home: Path) -> None:
    first = write(new_run_folder(), a_run())
    new_run_folder()
    finish(first)
    assert (home / "latest").resolve() == first.resolve()


def test_a_run_elsewhere_leaves_the_latest_alone(home: Path, tmp_path: Path) -> None:
    latest = new_run_folder()
    finish(write(tmp_path / "artifact", a_run()))
    assert (home / "latest").resolve() == latest.resolve()
    assert (tmp_path / "artifact" / "report.json").is_file()


def test_a_folder_in_the_link_s_place_is_refused(home: Path) -> None:
    (home / "latest").mkdir(parents=True)
    with pytest.raises(ReportError, match=r"is a folder and not a link .* remove it"):
        new_run_folder()


def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.json"
    store.write_whole(path, b"one")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.write_whole(path, b"two")
    assert path.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [path]


def test_the_report_reads_back_as_it_was() -> None:
    folder = write(new_run_folder(), a_run(found()))
    assert finish(folder) == load(folder)


def test_a_run_whose_controller_died_is_folded_from_its_events() -> None:
    events = a_run(found(shrunk=False), finished=False, without_shards=SHARDS[:3])
    folder = write(new_run_folder(), events, files=2)
    report = load(located(None))
    assert not report.finished
    assert [finding.id for finding in report.findings] == [FAULT]
    assert not (folder / "report.json").exists()


def test_a_line_cut_by_a_killed_process_is_passed_over() -> None:
    folder = write(new_run_folder(), a_run())
    with (folder / "events-gw0.jsonl").open("ab") as file:
        file.write(b'{"event":"found","source":"page_si')
    assert load(folder) == fold(a_run())


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b'{"event":"unheard-of"}',
        b'{"event":"progress","shard":"page_size/wired/0","cases":"many"}',
        b"[" * 100_000,
        b'{"event":"run-started","format_version":2}',
    ],
)
def test_a_damaged_line_is_a_problem_with_its_place(line: bytes) -> None:
    folder = write(new_run_folder(), a_run())
    with (folder / "events-gw0.jsonl").open("ab") as file:
        file.write(line + b"\n")
    (problem,) = load(folder).problems
    assert problem.where == f"events-gw0.jsonl:{len(a_run()) + 1}"
    assert problem.message.startswith("not an event of format 1: ")


def test_the_latest_run_is_found_by_none_by_id_and_by_path(home: Path) -> None:
    folder = new_run_folder()
    assert located(None).resolve() == folder.resolve()
    assert located(folder.name).resolve() == folder.resolve()
    assert located(str(folder)) == folder
    assert located("../latest") == Path("../latest")


def document() -> dict[str, object]:
    """A report as plain JSON values."""
    plain: dict[str, object] = msgspec.to_builtins(fold(a_run(found())))
    return plain


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ReportError) as caught:
        load(path)
    return str(caught.value)


def test_a_missing_report_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"no report at .*: run pytest fuzz/ first"):
        load(located(None))
    with pytest.raises(ReportError, match=r"neither report.json nor events"):
        load(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b"null", b"[" * 100_000, b'{"format_version":1}'],
)
def test_a_damaged_report_is_refused(tmp_path: Path, content: bytes) -> None:
    message = refusal(tmp_path / "report.json", content)
    assert "report.json is damaged, or no report of this project" in message


def test_a_truncated_report_is_refused(tmp_path: Path) -> None:
    whole = msgspec.json.encode(document())
    message = refusal(tmp_path / "report.json", whole[: len(whole) // 2])
    assert "is damaged" in message


def test_a_damaged_report_is_not_passed_over_for_the_events() -> None:
    folder = write(new_run_folder(), a_run())
    (folder / "report.json").write_bytes(b"{")
    with pytest.raises(ReportError, match="is damaged"):
        load(folder)


def test_another_format_is_refused(tmp_path: Path) -> None:
    content = msgspec.json.encode({**document(), "format": "sarif"})
    message = refusal(tmp_path / "report.json", content)
    assert "its format is 'sarif', expected 'kvfuzz-report'" in message


def test_a_future_version_is_refused(tmp_path: Path) -> None:
    content = msgspec.json.encode({**document(), "format_version": FORMAT_VERSION + 1})
    message = refusal(tmp_path / "report.json", content)
    future, ours = FORMAT_VERSION + 1, FORMAT_VERSION
    assert f"has format version {future}, and this revision reads {ours}" in message


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    content = msgspec.json.encode({**document(), "exit": 0})
    message = refusal(tmp_path / "report.json", content)
    assert "is damaged: Object contains unknown field `exit`" in message


def test_a_missing_field_is_refused(tmp_path: Path) -> None:
    short = document()
    del short["findings"]
    message = refusal(tmp_path / "report.json", msgspec.json.encode(short))
    assert "missing required field `findings`" in message


@pytest.mark.parametrize("digits", [b"-1", b"9" * 5_000], ids=["negative", "huge"])
def test_an_impossible_count_is_refused(tmp_path: Path, digits: bytes) -> None:
    content = msgspec.json.encode(document())
    broken = content.replace(b'"cases":200', b'"cases":' + digits, 1)
    assert broken != content
    assert "is damaged: " in refusal(tmp_path / "report.json", broken)


def test_merging_makes_one_run_of_two_machines(home: Path, tmp_path: Path) -> None:
    first = write(tmp_path / "a", machine(0), files=2)
    second = write(tmp_path / "b", machine(1))
    finish(second)
    report, folder = merge([first, second / "report.json"], out=None)
    whole = fold(a_run())
    assert report.rows == whole.rows
    assert report.machines_missing == ()
    assert folder.parent == home / "runs"
    assert load(located(None)) == report


def test_a_merged_run_can_be_merged_again(tmp_path: Path) -> None:
    folders = [write(tmp_path / str(i), machine(i, num_shards=2)) for i in range(2)]
    once, _ = merge(folders, out=tmp_path / "once")
    again, folder = merge([tmp_path / "once"], out=tmp_path / "new" / "again")
    assert again == once
    assert folder == tmp_path / "new" / "again"


def test_merging_without_a_machine_names_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", machine(0))
    report, _ = merge([folder], out=tmp_path / "out")
    assert report.machines_missing == (1,)


def test_the_order_of_merging_means_nothing(tmp_path: Path) -> None:
    folders = [write(tmp_path / str(i), machine(i)) for i in range(2)]
    forth, _ = merge(folders, out=tmp_path / "forth")
    back, _ = merge(folders[::-1], out=tmp_path / "back")
    assert forth == back


@pytest.mark.parametrize(
    ("events", "message"),
    [
        (machine(0), "--shard-id 0 ran 2 times: run-0, run-0"),
        (machine(1, seed=8), "machines ran different seeds: 7, 8"),
        (
            [e for e in machine(1) if isinstance(e, RunFinished)],
            "it has no run-started event",
        ),
    ],
)
def test_what_is_not_a_part_is_refused_and_nothing_is_written(
    tmp_path: Path, events: list[Event], message: str
) -> None:
    first = write(tmp_path / "a", machine(0))
    second = write(tmp_path / "b", events)
    with pytest.raises(ReportError) as caught:
        merge([first, second], out=tmp_path / "out")
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_merging_refuses_what_has_no_events(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReportError, match="expected the folder of a run"):
        merge([tmp_path / "empty"], out=None)
    with pytest.raises(ReportError, match="expected the folder of a run"):
        merge([tmp_path / "missing"], out=None)


def test_merging_refuses_to_write_over_something(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", machine(0))
    with pytest.raises(ReportError, match="exists already: name a folder to be made"):
        merge([folder], out=folder)


def test_worker_names_appear_in_times_only() -> None:
    events = [e for e in a_run(found()) if not isinstance(e, WorkerStarted)]
    named = [*events, WorkerStarted(worker="a-very-own-name", startup_s=1.0)]
    report = finish(write(new_run_folder(), named))
    plain = msgspec.to_builtins(report)
    assert "a-very-own-name" in repr(plain.pop("times"))
    assert "a-very-own-name" not in repr(plain)


def test_the_document_is_frozen() -> None:
    report: Report = fold([])
    with pytest.raises(AttributeError):
        report.seed = 3  # type: ignore[misc]


def test_a_line_nested_too_deep_is_a_problem() -> None:
    folder = write(new_run_folder(), a_run())
    line = b'{"event":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    (folder / "events-a.jsonl").write_bytes(line)
    (problem,) = load(folder).problems
    assert problem.where == "events-a.jsonl:1"


def test_what_is_no_file_of_events_is_a_problem() -> None:
    folder = write(new_run_folder(), a_run())
    (folder / "events-a.jsonl").symlink_to(folder / "nowhere")
    (folder / "events-b.jsonl").mkdir()
    problems = load(folder).problems
    assert {each.where for each in problems} == {"events-a.jsonl", "events-b.jsonl"}


def test_a_report_that_calls_a_finding_known_without_a_ledger_is_damaged() -> None:
    folder = new_run_folder()
    write(folder, a_run(found()))
    finish(folder)
    path = folder / "report.json"
    path.write_text(path.read_text().replace('"new"', '"known"'))
    with pytest.raises(ReportError, match=f"does not know {FAULT}"):
        load(folder)
