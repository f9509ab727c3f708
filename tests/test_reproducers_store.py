"""The store of saved faults: what it keeps, what it refuses, how it stays whole."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz.rooms import Rooms
from invariants.model import CaseError, FaultKey, digest
from reproducers.case_file import Refused, Saved
from reproducers.flatten import ScriptError
from reproducers.store import entries, read, remove, rewrite, save
from tests.saved_faults import found_on, save_toy, toy_rooms, violation

PROJECT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def rooms() -> Iterator[Rooms]:
    with toy_rooms() as rooms:
        yield rooms


def test_what_is_saved_is_read_back_whole(tmp_path: Path, rooms: Rooms) -> None:
    folder = save_toy(tmp_path, rooms, tokens=7)
    saved = read(tmp_path, folder.name)
    assert saved.id == folder.name == saved.key.id
    assert saved.typed_case(rooms.case) == rooms.case(tokens=7, block_size=4)
    assert saved.message == "1 blocks of 4 for 7"
    assert saved.evidence == {"tokens": 7, "block_size": 4}
    assert saved.severity == "corruption"
    assert saved.statement == "There are just enough blocks for the tokens."
    assert saved.fix == "verified"
    assert saved.found_on == found_on()
    assert sorted(each.name for each in folder.iterdir()) == ["case.json", "repro.py"]


def test_of_one_fault_the_smallest_case_stays_with_the_first_date(
    tmp_path: Path, rooms: Rooms
) -> None:
    folder = save_toy(tmp_path, rooms, tokens=1_001, seed=1)
    change(folder, found="2020-02-02")
    assert save_toy(tmp_path, rooms, tokens=9, seed=2) == folder
    saved = read(tmp_path, folder.name)
    assert (saved.case["tokens"], saved.found_on.seed) == (9, 2)
    assert saved.found == "2020-02-02"
    script = (folder / "repro.py").read_text(encoding="utf-8")
    assert scripted_tokens(folder) == 9
    save_toy(tmp_path, rooms, tokens=102, seed=3)
    assert read(tmp_path, folder.name) == saved
    assert (folder / "repro.py").read_text(encoding="utf-8") == script


def test_cases_of_one_length_are_ordered_by_their_text(
    tmp_path: Path, rooms: Rooms
) -> None:
    for tokens in (7, 6, 9):
        folder = save_toy(tmp_path, rooms, tokens=tokens)
    assert read(tmp_path, folder.name).case["tokens"] == 6


def test_the_same_case_again_brings_news_of_its_fix(
    tmp_path: Path, rooms: Rooms
) -> None:
    folder = save_toy(tmp_path, rooms, fix="none", seed=1)
    save_toy(tmp_path, rooms, fix="verified", seed=2)
    saved = read(tmp_path, folder.name)
    assert (saved.fix, saved.found_on.seed) == ("verified", 1)


def test_distinct_faults_lie_side_by_side(tmp_path: Path, rooms: Rooms) -> None:
    names = {save_toy(tmp_path, rooms, deed=deed).name for deed in ("divide", "hang")}
    assert len(names) == 2
    assert {each.id for each in entries(tmp_path)} == names


def scripted_tokens(folder: Path) -> int:
    """The number in the case of a script."""
    text = (folder / "repro.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'^ *"tokens": (\d+)$', text, flags=re.MULTILINE)
    return int(found)


def change(folder: Path, **fields: object) -> None:
    """Rewrite fields of a case.json by hand."""
    path = folder / "case.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content.update(fields)
    path.write_text(json.dumps(content), encoding="utf-8")


def rekey(folder: Path, **fields: str) -> None:
    """Change a part of the fault key, with the id that follows from it."""
    content = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    content.update(fields)
    names = ("target", "invariant", "origin", "site", "exception")
    key = FaultKey(**{name: content[name] for name in names})
    change(folder, **fields, id=key.id)


def with_case(folder: Path, **fields: object) -> None:
    """Change the case, with the digest that follows from it."""
    content = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    case = {**content["case"], **fields}
    change(folder, case=case, case_digest=digest(case))


def write(folder: Path, content: str | bytes) -> None:
    data = content.encode() if isinstance(content, str) else content
    (folder / "case.json").write_bytes(data)


def replace_text(folder: Path, old: str, new: str) -> None:
    path = folder / "case.json"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def link(folder: Path, name: str) -> None:
    """Move a file out of the store and leave a link to it."""
    outside = folder.parents[1] / "outside.json"
    (folder / name).rename(outside)
    (folder / name).symlink_to(outside)


def fifo(folder: Path) -> None:
    (folder / "case.json").unlink()
    os.mkfifo(folder / "case.json")


DEEP = "[" * 100 + "]" * 100
DEEPEST = "[" * 200_000 + "]" * 200_000

HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "empty": (lambda f: write(f, ""), "not a saved case"),
    "cut short": (lambda f: write(f, '{"format_version": 1, "id'), "not a saved case"),
    "not UTF-8": (lambda f: write(f, b'{"id": "\xff\xfe"}'), "cannot be read"),
    "not an object": (lambda f: write(f, "[1, 2]"), "not a saved case"),
    "no version": (lambda f: write(f, "{}"), "no format_version"),
    "future version": (lambda f: change(f, format_version=2), "newer kvfuzz"),
    "version of another type": (
        lambda f: change(f, format_version="1"),
        "Expected `int`",
    ),
    "unknown field": (lambda f: change(f, run="rm -rf /"), "fields unknown"),
    "id with separators": (
        lambda f: change(f, id="../../etc-12345678"),
        "not a fault ID",
    ),
    "id of another fault": (lambda f: change(f, id="toy-00000000"), "fault key gives"),
    "other key": (lambda f: change(f, site="other"), "fault key gives"),
    "another fault's file": (lambda f: rekey(f, site="other"), "the folder is named"),
    "target with separators": (lambda f: rekey(f, target="../x"), "not a fault ID"),
    "target as a module": (lambda f: rekey(f, target="os.path"), "not a fault ID"),
    "case changed": (
        lambda f: replace_text(f, '"tokens": 7\n', '"tokens": 8\n'),
        "case_digest is '[0-9a-f]{16}', and the case's is",
    ),
    "digest changed": (lambda f: change(f, case_digest="0" * 16), "changed by hand"),
    "huge integer": (lambda f: with_case(f, tokens=10**400), "1329 bits"),
    "larger integer": (
        lambda f: replace_text(f, '"tokens": 7', f'"tokens": {"9" * 5_000}'),
        "out of range",
    ),
    "deep nesting": (
        lambda f: with_case(f, tokens=json.loads(DEEP)),
        "nested deeper than 32 levels",
    ),
    "deepest nesting": (
        lambda f: replace_text(f, '"fix": "verified"', f'"fix": {DEEPEST}'),
        "recursion",
    ),
    "no date": (lambda f: change(f, found="yesterday"), "not a date"),
    "case is a list": (lambda f: change(f, case=[1]), "Expected `object`"),
    "evidence is a float": (lambda f: change(f, evidence={"a": 0.5}), "got `float`"),
    "link to a file": (lambda f: link(f, "case.json"), "symbolic link"),
    "fifo": (fifo, "not a regular file"),
    "huge file": (lambda f: write(f, " " * (5 << 20)), "at most 4194304"),
    "no file": (lambda f: (f / "case.json").unlink(), "cannot be read"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_cannot_be_trusted_is_refused_and_the_rest_still_works(
    tmp_path: Path, rooms: Rooms, name: str
) -> None:
    store = tmp_path / "store"
    other = save_toy(store, rooms, deed="hang").name
    folder = save_toy(store, rooms, tokens=7)
    assert isinstance(read(store, folder.name), Saved)
    spoil, message = HOSTILE[name]
    spoil(folder)
    with pytest.raises(CaseError, match=message):
        read(store, folder.name)
    found = {each.id: each for each in entries(store)}
    refused = found[folder.name]
    assert isinstance(refused, Refused)
    assert refused.future == (name == "future version")
    assert isinstance(found[other], Saved)


def test_an_entry_that_is_a_link_is_refused_and_not_written_through(
    tmp_path: Path, rooms: Rooms
) -> None:
    store = tmp_path / "store"
    folder = save_toy(store, rooms, tokens=1_001)
    outside = tmp_path / "outside"
    folder.rename(outside)
    folder.symlink_to(outside)
    before = (outside / "case.json").read_bytes()
    with pytest.raises(CaseError, match="symbolic link"):
        read(store, folder.name)
    with pytest.raises(CaseError, match="symbolic link; remove it"):
        save_toy(store, rooms, tokens=7)
    assert (outside / "case.json").read_bytes() == before


@pytest.mark.parametrize(
    "name", ["../../etc", "toy-6b8c9a28/../x", "a/b", "", "..", "x\n"]
)
def test_an_id_that_could_be_a_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CaseError, match="is not a fault ID; one looks like page-size-"):
        read(tmp_path, name)


def test_an_id_of_the_same_target_alone_is_not_near(
    tmp_path: Path, rooms: Rooms
) -> None:
    name = save_toy(tmp_path, rooms).name
    # As many characters in common as two IDs of a target with a longer name have.
    other = name[:-4] + "".join("0" if c != "0" else "1" for c in name[-4:])
    with pytest.raises(CaseError, match="list shows what there is"):
        read(tmp_path, other)


def test_a_typing_error_in_an_id_is_met_with_the_ids_that_are_near(
    tmp_path: Path, rooms: Rooms
) -> None:
    name = save_toy(tmp_path, rooms).name
    typo = name[:-1] + ("0" if name[-1] != "0" else "1")
    with pytest.raises(CaseError, match=f"no saved case '{typo}'.*did you mean {name}"):
        read(tmp_path, typo)
    (tmp_path / f"{name}-old").mkdir()
    with pytest.raises(CaseError, match=f"did you mean {name}\\?") as caught:
        read(tmp_path, f"{name}-old")
    assert f"mean {name}-old" not in str(caught.value)
    with pytest.raises(CaseError, match=f"not a fault ID.*did you mean {name}"):
        read(tmp_path, name + "x")


def test_a_case_that_its_target_would_not_take_is_refused(
    tmp_path: Path, rooms: Rooms
) -> None:
    folder = save_toy(tmp_path, rooms)
    with_case(folder, tokens=-1)
    saved = read(tmp_path, folder.name)
    with pytest.raises(CaseError, match="`int` >= 0"):
        saved.typed_case(rooms.case)
    with_case(folder, tokens=7, more=1)
    with pytest.raises(CaseError, match="fields unknown"):
        read(tmp_path, folder.name).typed_case(rooms.case)


def test_a_damaged_case_gives_way_to_a_new_one_of_its_fault(
    tmp_path: Path, rooms: Rooms
) -> None:
    folder = save_toy(tmp_path, rooms, tokens=7)
    write(folder, "{")
    save_toy(tmp_path, rooms, tokens=1_001)
    assert read(tmp_path, folder.name).case["tokens"] == 1_001


def test_a_case_from_a_newer_kvfuzz_is_kept(tmp_path: Path, rooms: Rooms) -> None:
    folder = save_toy(tmp_path, rooms, tokens=1_001)
    change(folder, format_version=2)
    before = (folder / "case.json").read_bytes()
    with pytest.raises(CaseError, match="was kept: format_version is 2"):
        save_toy(tmp_path, rooms, tokens=7)
    assert (folder / "case.json").read_bytes() == before


def test_a_script_that_cannot_be_generated_does_not_cost_the_case(
    tmp_path: Path, rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(saved: Saved) -> str:
        raise ScriptError("two names collide")

    monkeypatch.setattr("reproducers.store.script", failing)
    with pytest.raises(ScriptError, match=r"saved; no repro\.py: two names collide"):
        save_toy(tmp_path, rooms)
    (saved,) = entries(tmp_path)
    assert isinstance(saved, Saved)
    monkeypatch.undo()
    assert rewrite(tmp_path, saved.id).is_file()


def test_removing_takes_the_entry_and_nothing_it_links_to(
    tmp_path: Path, rooms: Rooms
) -> None:
    store = tmp_path / "store"
    folder = save_toy(store, rooms)
    outside = tmp_path / "outside"
    outside.mkdir()
    (store / "toy-00000000").symlink_to(outside)
    for each in list(entries(store)):
        remove(store, each.id)
    assert list(entries(store)) == []
    assert outside.is_dir()
    with pytest.raises(CaseError, match="no saved case"):
        remove(store, folder.name)


def test_a_violation_is_saved_whatever_its_texts_hold(
    tmp_path: Path, rooms: Rooms
) -> None:
    case = rooms.case(tokens=7, block_size=4)
    found = violation(rooms, case)
    odd = 'ends """ \\N{x} \x1b[31m\x00 {brace} \u202e\nsecond line'
    strange = type(found)(
        invariant=found.invariant,
        target=found.target,
        origin=found.origin,
        site=odd,
        message=odd,
        evidence={"text": odd},
        exception="",
    )
    folder = save(
        store=tmp_path,
        invariant=rooms.invariants[0],
        violation=strange,
        case=case,
        found_on=found_on(),
        fix="none",
    ).folder
    assert read(tmp_path, folder.name).message == odd
    script = (folder / "repro.py").read_text(encoding="utf-8")
    compile(script, "repro.py", "exec")
    assert "\x1b" not in script
    assert "\u202e" not in script


WRITER = """
import os, signal, sys
from pathlib import Path
from tests.saved_faults import save_toy, toy_rooms
store = Path(sys.argv[1])
with toy_rooms() as rooms:
    {plant}
    for tokens in {tokens}:
        save_toy(store, rooms, tokens=tokens)
"""


def writer(
    store: Path, *, tokens: list[int], plant: str = ""
) -> "subprocess.Popen[bytes]":
    code = WRITER.format(tokens=tokens, plant=plant or "pass")
    return subprocess.Popen(
        [sys.executable, "-c", code, str(store)],
        cwd=PROJECT,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )


def test_four_processes_save_one_fault_and_the_smallest_case_stays(
    tmp_path: Path, rooms: Rooms
) -> None:
    store = tmp_path / "store"
    many = [
        [5_001 - 80 * i - 4 * k for i in range(12)] + [97 - 4 * k] for k in range(4)
    ]
    writers = [writer(store, tokens=tokens) for tokens in many]
    seen = 0
    while any(each.poll() is None for each in writers):
        for each in entries(store):
            assert isinstance(each, Saved), each
            seen += 1
    assert [each.returncode for each in writers] == [0] * 4
    assert seen > 0
    (saved,) = entries(store)
    assert isinstance(saved, Saved)
    assert saved.case["tokens"] == 85
    assert [each.name for each in store.iterdir() if each.name != ".lock"] == [saved.id]


# Where a writer is killed: at the n-th time that it is about to do this.
DEATHS = [
    (name, call)
    for name in ("os.fsync", "Path.replace", "Path.rename")
    for call in (1, 2)
]


@pytest.mark.parametrize(("name", "call"), DEATHS)
def test_a_writer_killed_in_the_middle_leaves_what_was_there(
    tmp_path: Path, rooms: Rooms, name: str, call: int
) -> None:
    store = tmp_path / "store"
    old = save_toy(store, rooms, tokens=1_001)
    plant = (
        f"calls = []; real = {name}; exec('def dying(*a, **k):\\n calls.append(1)\\n "
        f"if len(calls) == {call}: os.kill(os.getpid(), signal.SIGKILL)\\n return "
        f"real(*a, **k)', globals()); {name} = dying"
    )
    code = writer(store, tokens=[7], plant=plant).wait()
    if name == "Path.rename":
        # Only a new entry is renamed into place.
        assert code == 0
        (store / old.name).rename(tmp_path / "away")
        code = writer(store, tokens=[7], plant=plant).wait()
        assert code == (-signal.SIGKILL if call == 1 else 0)
        assert len(list(entries(store))) == call - 1
    else:
        assert code == -signal.SIGKILL
        tokens = read(store, old.name).case["tokens"]
        assert tokens == (7 if (name, call) == ("Path.replace", 2) else 1_001)
        compile((old / "repro.py").read_bytes(), "repro.py", "exec")
    again = save_toy(store, rooms, tokens=6)
    assert read(store, again.name).case["tokens"] == 6
    assert scripted_tokens(again) == 6
    leftovers: list[Any] = [*store.glob(".*.tmp"), *store.glob("*/.*")]
    assert leftovers == []
