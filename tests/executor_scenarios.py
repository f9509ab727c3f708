"""Scenarios of `fuzz.execution`, each run in a process of its own by test_execution.

An executor activates its tree, and a process has one tree for life.
"""

import importlib
import json
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuzz.edits import Edit, EditError, SourceEdit, applied
from fuzz.execution import Executor, split_site
from fuzz.isolation import IsolationError
from fuzz.planted import find_control
from fuzz.rooms import Rooms, add_folder, load, target_module
from fuzz.trees import activate
from invariants.model import Death, FaultKey, Violation, decode
from tests.toys import TOYS, case, toy_tree

ROUND_DOWN = SourceEdit(
    modules=("vllm.utils.math_utils",),
    function="cdiv",
    old="-(-a // b)",
    new="a // b",
)
STRAY = replace(ROUND_DOWN, old="b // a")


def _case(rooms: Rooms, deed: str = "divide", *, tokens: int = 33) -> Any:
    return decode(case(deed, tokens=tokens), rooms.case)


def _broken(judgement: Any) -> list[str]:
    return [violation.invariant for violation in judgement.violations]


def in_process_by_default(executor: Executor, rooms: Rooms) -> None:
    """A target that is not isolated runs here, and gets the very case."""
    target: Any = target_module("toy")
    seen: list[object] = []
    original = target.run

    def run(each: object) -> Any:
        seen.append(each)
        return original(each)

    target.run = run
    drawn = _case(rooms)
    assert executor.execute(rooms, drawn).blocks == 3
    assert executor.judge(rooms, drawn).judged == {"TOY-ALIVE", "TOY-BLOCKS"}
    assert [each is drawn for each in seen] == [True, True]
    assert executor.isolation_startup_s == 0.0


def edits_in_process(executor: Executor, rooms: Rooms) -> None:
    """Edits hold for their case only, also where one does not fit."""
    drawn = _case(rooms)
    assert executor.execute(rooms, drawn, edits=(ROUND_DOWN,)).blocks == 2
    assert executor.execute(rooms, drawn).blocks == 3
    with pytest.raises(EditError, match="'b // a' 0 times"):
        executor.execute(rooms, drawn, edits=(ROUND_DOWN, STRAY))
    assert executor.execute(rooms, drawn).blocks == 3
    assert _broken(executor.judge(rooms, drawn, edits=(ROUND_DOWN,))) == ["TOY-BLOCKS"]
    with applied(ROUND_DOWN):
        assert executor.execute(rooms, drawn).blocks == 2


def isolated(executor: Executor, rooms: Rooms) -> None:
    """An isolated target's death is an observation, and this process lives on."""
    assert executor.execute(rooms, _case(rooms)).blocks == 3
    death = executor.execute(rooms, _case(rooms, "segfault"))
    assert isinstance(death, Death)
    assert death.cause == "signal 11"
    assert executor.isolation_startup_s > 0.0
    assert _broken(executor.judge(rooms, _case(rooms, "exit"))) == ["TOY-ALIVE"]
    assert _broken(executor.judge(rooms, _case(rooms))) == []
    edited = executor.judge(rooms, _case(rooms), edits=(ROUND_DOWN,))
    assert _broken(edited) == ["TOY-BLOCKS"]
    assert executor.take_culprits() == ()
    with pytest.raises(IsolationError, match="EditError"):
        executor.execute(rooms, _case(rooms), edits=(STRAY,))


def another_triton_mode(executor: Executor, rooms: Rooms) -> None:
    """What needs another Triton mode than this process has runs in another."""
    said = executor.execute(rooms, _case(rooms, "inspect")).text.split()
    assert said[0] != str(os.getpid())
    assert said[-1] == "1"
    assert os.environ["TRITON_INTERPRET"] == "0"


def wrong_result_of_a_reused_process(executor: Executor, rooms: Rooms) -> None:
    """A violation that an earlier case caused is no verdict on a later one."""
    down = executor.judge(rooms, _case(rooms), edits=(ROUND_DOWN,))
    known = frozenset(violation.key.id for violation in down.violations)
    for deed in ("inspect", "inspect", "stain", "inspect", "inspect"):
        assert _broken(executor.judge(rooms, _case(rooms, deed))) == []
    assert _broken(executor.judge(rooms, _case(rooms, tokens=65))) == []
    (culprit,) = executor.take_culprits()
    assert [json.loads(each.case)["deed"] for each in culprit.damaging] == ["stain"]
    assert json.loads(culprit.victim.case)["tokens"] == 65
    assert (culprit.symptom, culprit.reproduced) == ("TOY-BLOCKS", True)
    # Known faults are not worth a fresh process.
    executor.judge(rooms, _case(rooms, "stain"))
    again = executor.judge(rooms, _case(rooms, tokens=64), silenced=known)
    assert _broken(again) == ["TOY-BLOCKS"]
    assert executor.take_culprits() == ()


def known_fault_that_a_plant_unmasks(executor: Executor, rooms: Rooms) -> None:
    """A fault of the ledger is no proof that the plant was found."""
    (control,) = target_module("toy").CONTROLS
    fitting_here = replace(control, edits=(ROUND_DOWN,), invariant="TOY-BLOCKS")
    (fault,) = find_control(executor, rooms, fitting_here, seed=1).faults
    known = frozenset({fault.violation.key.id})
    again = find_control(executor, rooms, fitting_here, seed=1, silenced=known)
    assert again.faults == ()
    assert again.cases == control.cases


def death_beside_a_known_one(executor: Executor, rooms: Rooms) -> None:
    """A case that dies with the known fault cured as well has a fault of its own."""
    die = "if a >= {}: __import__('os').abort()"
    source = f"def cdiv(a, b):\n    {die.format(60)}\n    {die.format(80)}\n"
    (module,) = importlib.import_module("vllm").__path__
    Path(module, "utils/math_utils.py").write_text(f"{source}    return -(-a // b)\n")
    cured = replace(ROUND_DOWN, old=die.format(60), new="pass")
    asked: list[FaultKey] = []

    def cure(_rooms: Rooms, key: FaultKey) -> tuple[Edit, ...]:
        asked.append(key)
        return (cured,)

    def judged(tokens: int, *, silenced: frozenset[str]) -> list[Violation]:
        case = _case(rooms, tokens=tokens)
        judgement = executor.judge(rooms, case, silenced=silenced, cure=cure)
        return list(judgement.violations)

    (known,) = judged(90, silenced=frozenset())
    assert asked == []
    silenced = frozenset({known.key.id})
    assert [each.key for each in judged(60, silenced=silenced)] == [known.key]
    assert asked == [known.key]
    first, beside = judged(90, silenced=silenced)
    assert first.key == known.key
    assert beside.key != known.key
    assert split_site(beside.site) == (known.site, known.key.id)
    assert (beside.invariant, beside.exception) == ("TOY-ALIVE", "signal 6")
    # Once that one is known too, nothing is new.
    again = judged(90, silenced=silenced | {beside.key.id})
    assert [violation.key for violation in again] == [known.key, beside.key]


def overhead_in_process(executor: Executor, rooms: Rooms) -> None:
    """Executing here costs a few microseconds beside calling the target."""
    target = target_module("toy")
    drawn = _case(rooms)
    executor.execute(rooms, drawn)
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(1_000):
            target.run(drawn)
        bare = time.perf_counter()
        for _ in range(1_000):
            executor.execute(rooms, drawn)
        seconds.append((time.perf_counter() - bare) - (bare - began))
    # Of a thousand cases; a round trip through JSON alone would take over 10 ms.
    assert min(seconds) < 0.005, seconds


# Each scenario with the RUNTIME that the toy declares in it, None for its own.
SCENARIOS = {
    in_process_by_default: "Runtime()",
    edits_in_process: "Runtime()",
    overhead_in_process: "Runtime()",
    isolated: None,
    known_fault_that_a_plant_unmasks: None,
    death_beside_a_known_one: None,
    wrong_result_of_a_reused_process: None,
    another_triton_mode: 'Runtime(triton="interpret")',
}


def _main(name: str, folder: Path) -> None:
    scenario = next(each for each in SCENARIOS if each.__name__ == name)
    runtime = SCENARIOS[scenario]
    toys = Path(shutil.copytree(TOYS, folder / "toys"))
    if runtime is not None:
        target = toys / "fuzz/targets/toy.py"
        lines = target.read_text(encoding="utf-8").splitlines()
        declared = [line.startswith("RUNTIME = ") for line in lines].index(True)
        lines[declared] = f"RUNTIME = {runtime}"
        target.write_text("\n".join(lines), encoding="utf-8")
    add_folder(toys)
    tree = toy_tree(folder)
    with Executor(tree=tree, target_folders=(toys,)) as executor:
        activate(tree)
        scenario(executor, load("toy"))


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
