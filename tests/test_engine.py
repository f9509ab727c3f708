"""`pytest fuzz/` as people run it: exit codes, screens, workers, seeds, shards."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from invariants.model import digest, encode
from reports.decide import decide
from reports.store import finish, load
from tests.report_events import a_run, write
from tests.toy_tree import BROKEN, GOOD, ROOT, TARGETS, Home, write_tree

QUICK = ("--cases", "120", "--seed", "1")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(folder=tmp_path / "home")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("good"), cdiv=GOOD)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("broken"), cdiv=BROKEN)


@pytest.fixture(scope="module")
def first_run(
    tmp_path_factory: pytest.TempPathFactory, broken: Path
) -> tuple[Home, subprocess.CompletedProcess[str]]:
    """A run that found the fault: many tests go on from there, on a copy of it."""
    home = Home(folder=tmp_path_factory.mktemp("first"))
    return home, home.run(broken, *QUICK, "--strict")


@pytest.fixture
def after(first_run: tuple[Home, subprocess.CompletedProcess[str]], home: Home) -> Home:
    """The places of a test as the first run left them."""
    shutil.copytree(first_run[0].folder, home.folder, symlinks=True)
    return home


def report_of(home: Home) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((home.latest / "report.json").read_text())
    return report


def test_a_sound_tree_ends_green(home: Home, good: Path) -> None:
    done = home.run(good, *QUICK)
    assert done.returncode == 0, done.stdout
    assert "exit 0" in done.stdout
    row = next(r for r in report_of(home)["rows"] if r["invariant"] == "TOY-BLOCKS")
    assert (row["verdict"], row["cases"]) == ("held", 120)
    (startup,) = report_of(home)["times"]["startups"]
    assert 0 < startup["isolation_s"] < report_of(home)["times"]["seconds"]


def test_a_contract_fault_is_told_and_breaks_a_strict_run_only(
    first_run: tuple[Home, subprocess.CompletedProcess[str]], home: Home, broken: Path
) -> None:
    strict, done = first_run
    assert done.returncode == 1, done.stdout
    (finding,) = report_of(strict)["findings"]
    shown = done.stdout.partition("new finding")[2]
    for told in (finding["id"], "TOY-BLOCKS", "contract", "30 blocks of 2 for 61"):
        assert told in shown
    assert f"python -m reproducers replay {finding['id']}" in shown
    assert json.loads(finding["case"])["tokens"] == 61
    assert (strict.cases / finding["id"] / "case.json").exists()
    assert (strict.cases / finding["id"] / "repro.py").exists()
    assert finding["fix"] == "verified"

    done = home.run(broken, *QUICK)
    assert done.returncode == 0, done.stdout
    assert [each["case"] for each in report_of(home)["findings"]] == [finding["case"]]


def test_the_report_does_not_depend_on_the_workers(
    first_run: tuple[Home, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    broken: Path,
) -> None:
    homes = [first_run[0]]
    for workers in ("1", "3"):
        homes.append(Home(folder=tmp_path / workers))
        homes[-1].run(broken, *QUICK, "--strict", "-n", workers)
    reports = []
    for home in homes:
        report = report_of(home)
        for private in ("times", "machines", "run", "command"):
            report.pop(private, None)
        text = json.dumps(report, sort_keys=True)
        reports.append(text.replace(str(home.folder), "HOME"))
    assert reports[0] == reports[1] == reports[2]


def test_the_hash_seed_does_not_change_the_cases(
    first_run: tuple[Home, subprocess.CompletedProcess[str]],
    home: Home,
    broken: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The first run had a seed of its own, or this machine's.
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    monkeypatch.setenv("PYTHONHASHSEED", other)
    home.run(broken, *QUICK, "--strict")
    one, two = report_of(first_run[0]), report_of(home)
    assert one["rows"] == two["rows"]
    assert one["properties"] == two["properties"]
    assert [f["case"] for f in one["findings"]] == [f["case"] for f in two["findings"]]


def test_a_saved_fault_is_replayed_first_and_gone_when_fixed(
    after: Home, good: Path, broken: Path
) -> None:
    (finding,) = report_of(after)["findings"]
    again = after.run(broken, "--replay", finding["id"])
    (replayed,) = report_of(after)["replays"]
    assert replayed["outcome"] == "REPRODUCED"
    assert "fixed arm: holds" in replayed["message"]
    # The report shows the saved case, as if it had been found by the search.
    (seen,) = report_of(after)["findings"]
    places = {"saved": seen["saved"], "sources": ["replay"]}
    assert seen == finding | places | {"before_characters": len(finding["case"])}
    assert report_of(after)["properties"] == []
    assert again.returncode == 0

    mistaken = after.run(good, "--replay", finding["id"][:-1])
    assert mistaken.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"did you mean {finding['id']}?" in mistaken.stdout + mistaken.stderr

    fixed = after.run(good, "--replay", finding["id"])
    (replayed,) = report_of(after)["replays"]
    assert replayed["outcome"] == "FIXED"
    assert fixed.returncode == 0


def test_a_smaller_case_takes_the_saved_one_s_place_and_that_is_told(
    after: Home, broken: Path
) -> None:
    home = after
    (finding,) = report_of(home)["findings"]
    path = home.cases / finding["id"] / "case.json"
    saved = json.loads(path.read_text())
    larger = saved["case"] | {"tokens": 1001}
    path.write_text(json.dumps(saved | {"case": larger, "case_digest": digest(larger)}))
    done = home.run(broken, *QUICK)
    (again,) = report_of(home)["findings"]
    assert again["case"] == finding["case"]
    assert json.loads(path.read_text())["case"] == saved["case"]
    new, old = len(finding["case"]), len(encode(larger))
    assert old == new + 2
    # The folder is as long as it is, and a line may be broken anywhere in it.
    told = "".join(done.stdout.rpartition("exit 0")[2].split())
    assert f"{finding['id']}:asmallercaseofthesamefaulttookthesaved" in told
    assert f"{new}charactersinsteadof{old}" in told


def test_a_fault_of_the_ledger_is_no_news_until_it_is_gone(
    after: Home, tmp_path: Path
) -> None:
    home = after
    (finding,) = report_of(home)["findings"]
    broken = write_tree(tmp_path / "broken", cdiv=BROKEN)
    good = write_tree(tmp_path / "good", cdiv=GOOD)
    for tree in (broken, good):
        (tree / "vllm" / "_version.py").write_text("version = '1.2.3'\n")
    home.ledger.write_text(
        f"""
        [[finding]]
        id = "{finding["id"]}"
        link = ""
        summary = "too few blocks"
        target = "toy"
        invariant = "TOY-BLOCKS"
        origin = "contract"
        affected = ["1.2.3"]
        fixed_in = ""
        evidence = "contract only"
        """
    )
    known = home.run(broken, *QUICK, "--strict")
    assert known.returncode == 0, known.stdout
    row = next(r for r in report_of(home)["rows"] if r["invariant"] == "TOY-BLOCKS")
    assert row["verdict"] == "known"
    assert row["cases"] == 120

    promoted = home.run(good, *QUICK)
    assert promoted.returncode == 1, promoted.stdout
    assert "promote" in promoted.stdout


def test_a_gate_replays_a_target_of_ones_own_on_the_base(
    after: Home, good: Path, broken: Path
) -> None:
    home = after
    (finding,) = report_of(home)["findings"]
    for base, told in ((good, "not in base"), (broken, "already in base")):
        gate = subprocess.run(
            [sys.executable, "-m", "reports", "gate", "--base", str(base)],
            env=home.environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        lines = [line for line in gate.stdout.splitlines() if told in line]
        assert finding["id"] in "".join(lines), gate.stdout + gate.stderr


KILLS = "if a >= {}: __import__('os').kill(__import__('os').getpid(), 11)"
FIRST, SECOND = KILLS.format(60), KILLS.format(80)
FIX_OF_THE_FIRST = f"""\
from fuzz.edits import SourceEdit
from reproducers.fix import Fix

EDIT = SourceEdit(
    modules=("vllm.utils.math_utils",), function="cdiv", old={FIRST!r}, new="pass"
)
FIXES = (Fix(name="lives up to 79", sites=("cdiv",), edits=(EDIT,)),)
"""


def test_a_known_death_does_not_hide_another_one(tmp_path: Path) -> None:
    own = Path(shutil.copytree(TARGETS, tmp_path / "own"))
    (own / "reproducers/fixes/toy.py").write_text(FIX_OF_THE_FIRST)
    home = Home(folder=tmp_path / "home", targets=own)
    division = "    return -(a // -b)\n"
    deadly = write_tree(
        tmp_path / "deadly",
        cdiv=f"def cdiv(a, b):\n    {FIRST}\n    {SECOND}\n{division}",
    )
    (deadly / "vllm" / "_version.py").write_text("version = '1.2.3'\n")
    once = write_tree(
        tmp_path / "once", cdiv=f"def cdiv(a, b):\n    {FIRST}\n{division}"
    )
    home.run(deadly, *QUICK)
    (known,) = report_of(home)["findings"]
    assert json.loads(known["case"])["tokens"] == 60
    assert known["fix"] == "verified"
    home.ledger.write_text(
        f"""
        [[finding]]
        id = "{known["id"]}"
        link = ""
        summary = "dies"
        target = "toy"
        invariant = "TOY-ALIVE"
        origin = "contract"
        affected = ["1.2.3"]
        fixed_in = ""
        evidence = "contract only"
        """
    )
    home.run(deadly, *QUICK)
    (beside,) = (f for f in report_of(home)["findings"] if f["id"] != known["id"])
    assert beside["site"] == f"cdiv, beside {known['id']}"
    assert json.loads(beside["case"])["tokens"] == 80
    assert (home.cases / beside["id"] / "repro.py").exists()

    outcomes = []
    for tree in (deadly, once):
        done = home.run(tree, "--replay", beside["id"])
        assert report_of(home)["replays"], done.stdout
        (replayed,) = report_of(home)["replays"]
        outcomes.append(replayed["outcome"])
    assert outcomes == ["REPRODUCED", "NOT_APPLICABLE"]


def test_shards_of_several_machines_merge_to_the_whole(
    first_run: tuple[Home, subprocess.CompletedProcess[str]],
    tmp_path: Path,
    broken: Path,
) -> None:
    whole, _ = first_run
    parts = Home(folder=tmp_path / "parts")
    for shard in ("0", "1"):
        parts.run(broken, *QUICK, "--num-shards", "2", "--shard-id", shard)
    runs = sorted(map(str, (parts.reports / "runs").iterdir()))
    merged = tmp_path / "merged"
    done = subprocess.run(
        [sys.executable, "-m", "reports", "merge", *runs, "-o", str(merged)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((merged / "report.json").read_text())
    assert report["properties"] == report_of(whole)["properties"]


def test_the_verdict_survives_the_controller(home: Home, broken: Path) -> None:
    process = subprocess.Popen(
        home.command(broken, "--cases", "200000", "--seed", "1", "-n", "2"),
        env=home.environment(),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not any(home.cases.glob("*/repro.py")):
        assert time.monotonic() < deadline, "nothing was found and saved in time"
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    shown = subprocess.run(
        [sys.executable, "-m", "reports", "show"],
        env=home.environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "TOY-BLOCKS" in shown.stdout
    assert "exit 2" in shown.stdout or "exit 1" in shown.stdout
    assert re.search(r"incomplete|did not finish|never finished", shown.stdout)


def test_a_worker_that_dies_voids_the_run_and_loses_nothing(
    home: Home, broken: Path
) -> None:
    process = subprocess.Popen(
        home.command(broken, "--cases", "60000", "--seed", "1", "-n", "2"),
        env=home.environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 60
    logs: list[Path] = []
    while not logs:
        assert time.monotonic() < deadline, "nothing was found in time"
        time.sleep(0.2)
        logs = [
            path
            for path in (home.reports / "runs").glob("*/events-gw*.jsonl")
            if '"event":"found"' in path.read_text()
        ]
    victim = int(logs[0].stem.rpartition("-")[2])
    os.kill(victim, signal.SIGKILL)
    output, _ = process.communicate(timeout=200)
    assert process.returncode in {1, 2}, output
    assert "TOY-BLOCKS" in output
    assert "crashed" in output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--num-shards", "2", "--shard-id", "2"), "expected 0 to 1"),
        (("--shard-id", "9"), "say with --num-shards how many share the run"),
        (("--num-shards", "99"), "use at most as many machines"),
        (("--minutes", "5"), "--profile soak"),
        (("--replay", "toy-00000000"), "python -m reproducers list` shows what is"),
        (("-k", "page size"), "give words joined by 'and', 'or' and 'not'"),
        (("-n", "1", "-k", "toy and ("), "give words joined by 'and', 'or' and 'not'"),
        (("--targets", "/nowhere"), "is not a folder"),
        (("--profile", "weekly"), "invalid choice"),
        (("--cases", "0"), "--cases: '0' is no count: give a whole number, 1 or"),
        (("--num-shards", "0"), "--num-shards: '0' is no count"),
        (("--profile", "soak", "--minutes", "nan"), "'nan' is no length of time"),
        (("--profile", "soak", "--minutes=-1"), "give minutes above 0"),
    ],
)
def test_wrong_options_are_refused_with_what_to_do(
    home: Home, good: Path, options: tuple[str, ...], told: str
) -> None:
    done = home.run(good, *options)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert told in done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_a_tree_that_is_not_there_exits_2(home: Home, tmp_path: Path) -> None:
    done = home.run(tmp_path / "nothing")
    assert done.returncode == 2
    assert "nothing" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--vllm", "nothing"), "problem in tree: --vllm"),
        (("--shard-id", "9"), "neither report.json nor events"),
    ],
)
def test_no_gate_takes_an_older_report_for_that_of_a_run_that_could_not_begin(
    home: Home, good: Path, options: tuple[str, ...], told: str
) -> None:
    older = home.reports / "runs" / "older"
    finish(write(older, a_run()))
    assert decide(load(older), strict=False, whole=True).exit == 0
    home.latest.symlink_to(older)
    assert home.run(good, *options).returncode != 0
    gate = subprocess.run(
        [sys.executable, "-m", "reports", "gate"],
        env=home.environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert gate.returncode == 2
    assert told in gate.stdout + gate.stderr


def test_a_tree_without_the_function_under_test_proves_nothing(
    after: Home, tmp_path: Path
) -> None:
    home = after
    renamed = write_tree(tmp_path / "renamed", cdiv=GOOD.replace("cdiv", "ceil_div"))
    done = home.run(renamed, *QUICK)
    assert done.returncode == 2, done.stdout
    assert "nothing ran" in done.stdout
    assert "absent in this tree: toy: vllm.utils.math_utils has no cdiv" in done.stdout


def test_a_control_that_does_not_fit_the_tree_is_told_as_missed(
    home: Home, tmp_path: Path
) -> None:
    rewritten = "def cdiv(a, b):\n    return (a + b - 1) // b\n"
    done = home.run(write_tree(tmp_path / "rewritten", cdiv=rewritten), *QUICK)
    assert done.returncode == 2, done.stdout
    (control,) = (c for c in report_of(home)["controls"] if c["name"] == "toy")
    assert control["outcome"] == "not found"
    assert "toy: aborts: cannot be planted" in control["message"]
    assert "EditError" not in done.stdout


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("fuzz/test_toy.py", "SyntaxError"),
        ("invariants/toy.py", "module invariants.toy cannot be imported: SyntaxError"),
        ("strategies/toy.py", "module strategies.toy cannot be imported: SyntaxError"),
    ],
)
def test_a_target_of_ones_own_that_is_not_python_exits_2(
    home: Home, good: Path, tmp_path: Path, file: str, told: str
) -> None:
    own = tmp_path / "own"
    shutil.copytree(TARGETS, own)
    (own / file).write_text("def (\n")
    command = [
        str(own) if each == str(TARGETS) else each for each in home.command(good)
    ]
    done = subprocess.run(
        command,
        env=home.environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert told in done.stdout
    assert "INTERNALERROR" not in done.stdout
    assert "Traceback" not in done.stderr


def test_a_ledger_that_cannot_be_read_exits_2(home: Home, good: Path) -> None:
    home.environment()
    home.ledger.write_text("finding = 3\n")
    done = home.run(good, *QUICK)
    assert done.returncode == 2
    assert "must hold [[finding]] tables only" in done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_reports_that_cannot_be_written_exit_2(home: Home, good: Path) -> None:
    home.folder.mkdir(parents=True)
    home.reports.write_text("not a folder")
    done = home.run(good, *QUICK)
    assert done.returncode == 2
    assert "KVFUZZ_REPORTS names a folder" in done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr


def test_a_report_that_cannot_be_written_in_the_end_exits_2_and_is_not_lost(
    home: Home, good: Path, tmp_path: Path
) -> None:
    own = replace(home, targets=tmp_path / "own")
    shutil.copytree(TARGETS, own.targets)
    # No file can take the place of a folder, as none can be written to a full disk.
    with (own.targets / "fuzz/targets/toy.py").open("a") as target:
        target.write(
            "Path(os.environ['KVFUZZ_REPORTS'], 'latest/report.json')"
            ".mkdir(exist_ok=True)\n"
        )
    done = own.run(good, *QUICK)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the report of this run cannot be written" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert decide(load(home.latest), strict=False).exit == 0


def test_soak_ends_when_its_time_is_over(home: Home, good: Path) -> None:
    started = time.monotonic()
    done = home.run(good, "--profile", "soak", "--minutes", "0.05", "--cases", "320")
    assert time.monotonic() - started < 60
    row = next(r for r in report_of(home)["rows"] if r["invariant"] == "TOY-BLOCKS")
    assert row["cases"] >= 320, done.stdout


def test_collection_is_free_of_torch_and_vllm() -> None:
    code = (
        "import sys, pytest; pytest.main(['fuzz', '--collect-only', '-q']);"
        "print('LOADED', sorted({'torch', 'vllm', 'triton'} & set(sys.modules)))"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "LOADED []" in done.stdout
    assert "test_control[canary]" in done.stdout
    # Two seconds is the aim on a quiet machine; CI shares its cores.
    assert time.monotonic() - started < 6


def test_a_folder_outside_the_repository_joins(good: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(TARGETS, tmp_path / "mine"))
    home = Home(folder=tmp_path / "home", targets=mine)
    done = home.run(good, *QUICK)
    assert done.returncode == 0, done.stdout
    row = next(r for r in report_of(home)["rows"] if r["invariant"] == "TOY-BLOCKS")
    assert (row["verdict"], row["cases"]) == ("held", 120)
