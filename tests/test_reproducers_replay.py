"""Replay: an outcome is given only with proof, by the engine and by the command."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuzz.rooms import Rooms
from invariants.model import Judgement, Violation
from reproducers.fix import Fix
from reproducers.fixing import NoFix
from reproducers.in_tree import replay_in_tree
from reproducers.replay import replay, verify_fix
from reproducers.store import entries, read, save
from tests.saved_faults import (
    BAD,
    GOOD,
    TOYS,
    found_on,
    save_toy,
    toy_rooms,
    violation,
    write_tree,
)

PROJECT = Path(__file__).resolve().parents[1]
BROKEN_ELSEWHERE = (
    "does not hold: with the fix (the cure) TOY-ALIVE is broken: something else"
)
FIX = Fix(name="the cure", sites=("cdiv",), edits=())


@pytest.fixture(scope="module")
def rooms() -> Iterator[Rooms]:
    with toy_rooms() as rooms:
        yield rooms


class ScriptedExecutor:
    """Gives judgements in order, the tree's first and then the fixed one's."""

    def __init__(self, *judgements: Judgement | Exception) -> None:
        self.left = list(judgements)

    def judge(self, _rooms: Rooms, _case: object, **_options: Any) -> Judgement:
        judgement = self.left.pop(0)
        if isinstance(judgement, Exception):
            raise judgement
        return judgement


def judged(*violations: Violation, ids: tuple[str, ...] = ("TOY-BLOCKS",)) -> Judgement:
    return Judgement(
        judged=frozenset(ids) | {each.invariant for each in violations},
        violations=violations,
        labels=frozenset(),
    )


def another(found: Violation, **changes: str) -> Violation:
    """The same violation, otherwise broken."""
    return replace(found, message="something else", **changes)  # type: ignore[arg-type]


@pytest.fixture
def present(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Stand-ins for what needs vLLM: whether the code is there, which fix fits."""

    def stand_in(*, absent: str | None = None, fix: Fix | NoFix = FIX) -> None:
        def fitting(_fixes: tuple[Fix, ...], _site: str) -> Fix:
            if isinstance(fix, NoFix):
                raise fix
            return fix

        target = SimpleNamespace(absent=lambda: absent)
        monkeypatch.setattr("reproducers.replay.target_module", lambda _name: target)
        monkeypatch.setattr("reproducers.replay.fitting_fix", fitting)

    stand_in()
    return stand_in


def outcome(
    store: Path, rooms: Rooms, *judgements: Judgement | Exception
) -> tuple[str, str, str | None, int]:
    """A replay of the one fault, in what matters of it."""
    name = save_toy(store, rooms).name
    executor: Any = ScriptedExecutor(*judgements)
    done = replay(name, executor, store=store)
    assert executor.left == []
    fixed = None if done.fixed is None else f"{done.fixed.status}: {done.fixed.message}"
    return done.outcome, done.message, fixed, done.exit_status


def test_a_fault_that_shows_is_reproduced_and_its_fix_tried(
    tmp_path: Path, rooms: Rooms, present: Callable[..., None]
) -> None:
    found = violation(rooms, rooms.case(tokens=7, block_size=4))
    assert outcome(tmp_path, rooms, judged(found), judged()) == (
        "REPRODUCED",
        "1 blocks of 4 for 7",
        "holds: TOY-BLOCKS holds (the cure)",
        1,
    )
    *_, fixed, status = outcome(tmp_path, rooms, judged(found), judged(found))
    assert (fixed, status) == ("fails: 1 blocks of 4 for 7 (the cure)", 1)
    present(fix=NoFix("nobody has written a fix for cdiv", written=False))
    *_, fixed, _ = outcome(tmp_path, rooms, judged(found))
    assert fixed == "unfit: nobody has written a fix for cdiv"


def test_a_law_that_was_checked_and_kept_is_fixed(
    tmp_path: Path, rooms: Rooms, present: Callable[..., None]
) -> None:
    assert outcome(tmp_path, rooms, judged()) == (
        "FIXED",
        "TOY-BLOCKS holds",
        None,
        0,
    )


def test_without_the_check_nothing_is_called_fixed(
    tmp_path: Path, rooms: Rooms, present: Callable[..., None]
) -> None:
    result, message, _, status = outcome(tmp_path, rooms, judged(ids=("TOY-ALIVE",)))
    assert (result, status) == ("NOT_APPLICABLE", 0)
    assert message == "TOY-BLOCKS did not apply to what this tree did with the case"


def test_the_same_law_broken_otherwise_is_no_verdict_and_named(
    tmp_path: Path, rooms: Rooms, present: Callable[..., None]
) -> None:
    found = violation(rooms, rooms.case(tokens=7, block_size=4))
    moved = another(found, site="ceil_div")
    result, message, _, status = outcome(tmp_path, rooms, judged(moved))
    assert (result, status) == ("ERRORED", 2)
    assert "TOY-BLOCKS is broken in another way than recorded" in message
    assert f"{moved.key.id} (TOY-BLOCKS at ceil_div): something else" in message


def test_the_same_law_broken_as_another_saved_fault_says_is_that_fault(
    tmp_path: Path, rooms: Rooms, present: Callable[..., None]
) -> None:
    own = violation(rooms, rooms.case(tokens=7, block_size=4))
    other = another(own, site="ceil_div")
    save(
        store=tmp_path,
        invariant=rooms.invariants[0],
        violation=other,
        case=rooms.case(tokens=7, block_size=4),
        found_on=found_on(),
        fix="none",
    )
    new = another(own, site="floor_div")
    assert outcome(tmp_path, rooms, judged(other, new))[0] == "ERRORED"
    assert outcome(tmp_path, rooms, judged(other)) == (
        "NOT_APPLICABLE",
        f"on this tree the case shows {other.key.id} instead",
        None,
        0,
    )


def test_another_law_broken_by_the_case_is_told_and_no_clean_0(
    tmp_path: Path, rooms: Rooms, present: Callable[..., None]
) -> None:
    found = violation(rooms, rooms.case(tokens=7, block_size=4))
    other = another(found, invariant="TOY-ALIVE")
    name = save_toy(tmp_path, rooms).name
    executor: Any = ScriptedExecutor(judged(other))
    done = replay(name, executor, store=tmp_path)
    assert (done.outcome, done.exit_status) == ("FIXED", 1)
    assert done.others == (f"{other.key.id} (TOY-ALIVE at cdiv): something else",)


def test_code_that_a_tree_lacks_is_not_applicable_with_the_reason(
    tmp_path: Path, rooms: Rooms, present: Callable[..., None]
) -> None:
    present(absent="no such module here")
    assert outcome(tmp_path, rooms) == (
        "NOT_APPLICABLE",
        "no such module here",
        None,
        0,
    )


def test_what_the_harness_raises_is_an_error_with_its_name(
    tmp_path: Path, rooms: Rooms, present: Callable[..., None]
) -> None:
    result, message, _, status = outcome(tmp_path, rooms, LookupError("no key"))
    assert (result, message, status) == ("ERRORED", "LookupError: no key", 2)


def test_a_refused_case_is_an_error_and_nothing_runs(
    tmp_path: Path, rooms: Rooms, present: Callable[..., None]
) -> None:
    folder = save_toy(tmp_path, rooms)
    (folder / "case.json").write_text("{", encoding="utf-8")
    executor: Any = ScriptedExecutor()
    done = replay(folder.name, executor, store=tmp_path)
    assert (done.outcome, done.exit_status) == ("ERRORED", 2)
    assert "not a saved case" in done.message


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        ([], "verified"),
        (["own"], "does not hold: with the fix (the cure) 1 blocks of 4 for 7"),
        (["elsewhere", "before"], "verified"),
        (["elsewhere"], BROKEN_ELSEWHERE),
        (["here", "before"], BROKEN_ELSEWHERE),
    ],
)
def test_a_fix_is_verified_when_it_leaves_the_case_clean(
    rooms: Rooms, present: Callable[..., None], fixed: list[str], said: str
) -> None:
    case = rooms.case(tokens=7, block_size=4)
    own = violation(rooms, case)
    known = {
        "own": own,
        "elsewhere": another(own, invariant="TOY-ALIVE", site="other"),
        "here": another(own, invariant="TOY-ALIVE"),
    }
    left = [known[name] for name in fixed if name in known]
    before = [own, *left] if "before" in fixed else [own]
    executor: Any = ScriptedExecutor(judged(*left), judged(*before))
    assert verify_fix(executor, rooms, case, own) == said


def test_a_fix_whose_check_did_not_run_is_not_verified(
    rooms: Rooms, present: Callable[..., None]
) -> None:
    case = rooms.case(tokens=7, block_size=4)
    executor: Any = ScriptedExecutor(judged(ids=("TOY-ALIVE",)))
    said = verify_fix(executor, rooms, case, violation(rooms, case))
    assert said == (
        "cannot be told: with the fix (the cure) the tree refuses this case, or leaves "
        "the path on which TOY-BLOCKS is checked; laws that were checked and held: "
        "TOY-ALIVE"
    )


def test_a_fix_that_leaves_its_law_s_path_and_breaks_another_does_not_hold(
    rooms: Rooms, present: Callable[..., None]
) -> None:
    case = rooms.case(tokens=7, block_size=4)
    own = violation(rooms, case)
    other = another(own, invariant="TOY-ALIVE")
    executor: Any = ScriptedExecutor(judged(other, ids=()), judged(own))
    assert verify_fix(executor, rooms, case, own) == BROKEN_ELSEWHERE


def test_no_fix_and_a_fix_that_does_not_fit_are_told_apart(
    rooms: Rooms, present: Callable[..., None]
) -> None:
    case = rooms.case(tokens=7, block_size=4)
    executor: Any = ScriptedExecutor()
    found = violation(rooms, case)
    present(fix=NoFix("nobody has written a fix", written=False))
    assert verify_fix(executor, rooms, case, found) == "none"
    present(fix=NoFix("'the cure': cdiv of math holds it 0 times", written=True))
    assert verify_fix(executor, rooms, case, found) == (
        "does not fit this tree: 'the cure': cdiv of math holds it 0 times; adapt the "
        "edit in reproducers/fixes/toy.py to this tree"
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trees, and a store with one fault of each kind found on the bad one."""
    folder = tmp_path_factory.mktemp("place")
    bad = write_tree(folder / "bad", BAD)
    write_tree(folder / "good", GOOD)
    write_tree(folder / "without", "")
    (folder / "known.toml").write_text("", encoding="utf-8")
    with toy_rooms() as rooms:
        save_toy(folder / "store", rooms, spec=str(bad))
        save_toy(folder / "store", rooms, deed="noise", spec=str(bad))
    return folder


def command(
    place: Path, *arguments: str, more: tuple[str, ...] = ("--targets", str(TOYS))
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "reproducers", *arguments, *more],
        cwd=place,
        env={
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "KVFUZZ_CACHE": str(place / "cache"),
            "KVFUZZ_CASES": str(place / "store"),
            "KVFUZZ_LEDGER": str(place / "known.toml"),
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def fault(place: Path, invariant: str = "TOY-BLOCKS") -> str:
    """ID of a fault in the store."""
    saved = {
        read(place / "store", each.id).invariant: each.id
        for each in entries(place / "store")
    }
    return saved[invariant]


def test_the_command_replays_on_the_recorded_tree(place: Path) -> None:
    done = command(place, "replay", fault(place))
    assert done.stdout.splitlines() == [
        f"REPRODUCED {fault(place)} on {place / 'bad'} (vLLM unknown)",
        "  broken arm: fails: 1 blocks of 4 for 7",
        "  fixed arm:  holds: TOY-BLOCKS holds (divide with remainder)",
    ]
    assert done.returncode == 1
    assert "was found on another state of" in done.stderr


def test_the_command_replays_on_another_tree_in_json(place: Path) -> None:
    good = str(place / "good")
    done = command(place, "replay", fault(place), "--vllm", good, "--json")
    assert json.loads(done.stdout) == {
        "id": fault(place),
        "outcome": "FIXED",
        "message": "TOY-BLOCKS holds",
        "tree": f"{good} (vLLM unknown)",
    }
    assert done.returncode == 0


def test_the_worst_of_several_faults_is_the_status(place: Path) -> None:
    ids = fault(place), fault(place, "TOY-ALIVE")
    done = command(place, "replay", *ids, "--vllm", str(place / "bad"), "--json")
    outcomes = [json.loads(line)["outcome"] for line in done.stdout.splitlines()]
    # The noisy case kills nothing: its own law holds, and another is broken.
    assert outcomes == ["REPRODUCED", "FIXED"]
    assert done.returncode == 1
    assert "not a result" not in done.stdout + done.stderr


def test_the_command_shows_which_trees_are_affected(place: Path) -> None:
    trees = ",".join(str(place / name) for name in ("bad", "good", "without", "none"))
    done = command(place, "replay", fault(place), "--across", trees)
    lines = done.stdout.splitlines()
    assert lines[0] == fault(place)
    assert lines[1].split() == [
        "vLLM",
        "replay",
        "ledger",
        "with",
        "the",
        "fix",
        "cause",
    ]
    words = [line.split(")")[-1].split() for line in lines[2:5]]
    assert words[0][:3] == ["affected", "unknown", "holds"]
    assert words[1][:2] == ["fixed", "unknown"]
    assert words[2][:3] == ["not", "applicable", "unknown"]
    assert lines[5].split()[1] == "error"
    assert "which does not exist" in lines[5]
    assert done.returncode == 2


def test_a_tree_that_kills_the_process_is_an_error_and_the_rest_is_replayed(
    place: Path, tmp_path: Path
) -> None:
    deadly = write_tree(tmp_path / "deadly", "import os\nos.abort()\n")
    ids = fault(place), fault(place, "TOY-ALIVE")
    done = command(place, "replay", *ids, "--vllm", str(deadly))
    assert done.stdout.count("ERRORED") == 2
    assert done.stdout.count("its process ended (signal 6)") == 2
    assert done.returncode == 2


def test_a_tree_whose_import_hangs_is_an_error_of_all_its_faults(
    place: Path, tmp_path: Path
) -> None:
    hung = write_tree(tmp_path / "hung", "import time\ntime.sleep(600)\n")
    done = list(
        replay_in_tree(
            str(hung),
            patches=None,
            ids=(fault(place), fault(place, "TOY-ALIVE")),
            store=place / "store",
            target_folders=(TOYS,),
            on_wait=lambda _seconds: None,
            import_timeout_s=12.0,
        )
    )
    assert [each.outcome for each in done] == ["ERRORED", "ERRORED"]
    for each in done:
        assert "still importing the tree after 12 s" in each.message
        assert each.message.endswith("importing target toy")


def test_the_command_lists_and_shows(place: Path) -> None:
    done = command(place, "list")
    heading, *rows = done.stdout.splitlines()
    named = r"ID +severity +origin +found on +fix +ledger +cause"
    assert re.fullmatch(named, heading)
    assert len(rows) == 2
    (row,) = (each for each in rows if each.startswith(fault(place)))
    assert row.split()[1:6] == ["corruption", "contract", "0.33.0", "verified", "new"]
    assert row.endswith("1 blocks of 4 for 7")
    shown = command(place, "show", fault(place)).stdout
    for said in (
        "TOY-BLOCKS: There are just enough blocks for the tokens.",
        '"tokens": 7',
        "seed 7",
        "2.13.0, triton 3.7.1",
        f"python -m reproducers replay {fault(place)}",
    ):
        assert said in shown


def test_a_target_that_is_not_there_is_refused(place: Path) -> None:
    done = command(place, "list", more=())
    assert done.stdout.count("refused: toy-") == 2
    assert "no target 'toy'" in done.stdout
    done = command(place, "replay", fault(place), more=())
    assert done.stdout.startswith(f"ERRORED {fault(place)}")
    assert "no target 'toy'" in done.stdout
    assert "join with --targets" in done.stdout
    assert done.returncode == 2


@pytest.mark.parametrize("verb", ["show", "replay", "script"])
def test_an_id_with_separators_is_refused_by_every_command(
    place: Path, verb: str
) -> None:
    done = command(place, verb, f"../store/{fault(place)}")
    assert done.returncode == 2
    assert done.stderr.startswith("error: '../store/toy-")
    assert "is not a fault ID" in done.stderr
    assert done.stdout == ""


def test_scripts_are_generated_anew_for_all_or_for_some(place: Path) -> None:
    paths = [
        place / "store" / each.id / "repro.py" for each in entries(place / "store")
    ]
    before = [path.read_text(encoding="utf-8") for path in paths]
    for path in paths:
        path.write_text("stale", encoding="utf-8")
    done = command(place, "script", paths[0].parent.name)
    assert done.stdout == f"{paths[0]}\n"
    assert paths[1].read_text(encoding="utf-8") == "stale"
    done = command(place, "script")
    assert done.stdout.splitlines() == list(map(str, paths))
    assert [path.read_text(encoding="utf-8") for path in paths] == before


def test_a_case_found_with_patches_asks_for_them(place: Path, tmp_path: Path) -> None:
    content = json.loads((place / "store" / fault(place) / "case.json").read_text())
    content["found_on"]["patches"] = ["0001-fix.patch"]
    folder = tmp_path / "store" / fault(place)
    folder.mkdir(parents=True)
    (folder / "case.json").write_text(json.dumps(content), encoding="utf-8")
    done = command(place, "replay", fault(place), "--store", str(tmp_path / "store"))
    assert "with the patches 0001-fix.patch: give their folder with" in done.stdout
    assert done.returncode == 2


def test_a_broken_ledger_is_an_error(place: Path, tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text("[[finding]]\n", encoding="utf-8")
    done = command(place, "list", "--ledger", str(tmp_path / "known.toml"))
    assert done.returncode == 2
    assert "finding 1 (no id): Object missing required field" in done.stderr


def test_terminal_codes_of_a_file_are_not_sent_to_the_terminal(
    place: Path, tmp_path: Path
) -> None:
    content = json.loads((place / "store" / fault(place) / "case.json").read_text())
    content["message"] = "\x1b[2J[bold]gone[/bold]\u202e"
    folder = tmp_path / "store" / fault(place)
    folder.mkdir(parents=True)
    (folder / "case.json").write_text(json.dumps(content), encoding="utf-8")
    for verb in (["list"], ["show", fault(place)]):
        done = command(place, *verb, "--store", str(tmp_path / "store"))
        assert "<0x1b>[2J[bold]gone[/bold]<0x202e>" in done.stdout


PRUNED = """
[[finding]]
id = "{id}"
link = ""
summary = "rounds down"
target = "toy"
invariant = "TOY-BLOCKS"
origin = "contract"
affected = ["0.33.0"]
fixed_in = ""
evidence = "a test"
"""


def test_prune_removes_what_is_fixed_or_refused_and_nothing_of_the_ledger(
    place: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    good = str(place / "good")
    with toy_rooms() as rooms:
        known = save_toy(store, rooms, spec=good)
        fixed = save_toy(store, rooms, deed="noise", spec=good)
        shows = save_toy(store, rooms, deed="exit", spec=good, cause="exit 3")
        damaged = save_toy(store, rooms, deed="hang", cause="exit 4")
        future = save_toy(store, rooms, deed="hang", cause="exit 5")
    (damaged / "case.json").write_text("{", encoding="utf-8")
    (future / "case.json").write_text('{"format_version": 2}', encoding="utf-8")
    arguments = "prune", "--store", str(store)
    done = command(place, *arguments)
    assert f"{known.name}: does not reproduce on {good}" in done.stdout
    assert f"{fixed.name}: does not reproduce on {good}" in done.stdout
    assert f"{damaged.name}: refused: not a saved case" in done.stdout
    assert f"kept: {future.name}: format_version is 2" in done.stdout
    assert "nothing was removed" in done.stdout
    assert done.returncode == 0
    assert len(list(entries(store))) == 5
    ledger = tmp_path / "known.toml"
    ledger.write_text(PRUNED.format(id=known.name), encoding="utf-8")
    done = command(place, *arguments, "--yes", "--ledger", str(ledger))
    assert "removed 2" in done.stdout
    left = {each.id for each in entries(store)}
    assert left == {known.name, shows.name, future.name}


def test_prune_tells_of_a_ledger_entry_without_a_case(
    place: Path, tmp_path: Path
) -> None:
    ledger = tmp_path / "known.toml"
    ledger.write_text(PRUNED.format(id="toy-00000000"), encoding="utf-8")
    arguments = "--store", str(tmp_path / "empty"), "--ledger", str(ledger)
    done = command(place, "prune", *arguments)
    assert "toy-00000000 is in the ledger and has no saved case" in done.stderr
    assert done.returncode == 2
