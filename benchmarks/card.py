"""Records what a real GPU leaves of launches that the memory checker judges too.

    python -m benchmarks.card draw PROGRAMS       # anywhere: kernels for a card to run
    python -m benchmarks.card compare RECORDING   # anywhere: with the checker
    python -m benchmarks.card record PROGRAMS OUT.json.gz --tree 0.33.0=FOLDER ...

Recording needs a CUDA card. A launch on CPU tensors is made there on copies of their
storages, and what the card leaves in them is copied back; nothing else differs from a
test of the checker. `tests/test_memory_recorded.py` compares without a card.
"""

import argparse
import datetime as dt
import gzip
import math
import multiprocessing
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from benchmarks.on_card import NotOnThisCardError, launches_on_the_card, prepare
from fuzz import boot
from fuzz.targets._real_launches import LAUNCHES
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory
from tests.recorded import (
    CHECKS,
    KERNELS,
    Recorded,
    RecordedLaunch,
    RecordedProgram,
    compared,
    digests,
    drawn_programs,
    outputs_of,
)

Name = TypeVar("Name", str, bytes)
Result = TypeVar("Result")


def _program(encoded: bytes, _: str) -> RecordedProgram:
    program = msgspec.json.decode(encoded, type=RecordedProgram).program
    with launches_on_the_card():
        return RecordedProgram(program=program, outputs=digests(outputs_of(program)))


def _check(name: str, _: str) -> float | str:
    function, arguments = CHECKS[name]
    result = _told(lambda: function(*arguments))
    return result if isinstance(result, str) else _finite(result)


def _kernel(name: str, folder: str) -> RecordedLaunch:
    sys.path[:0] = [] if folder in sys.path else [folder]
    function, arguments = KERNELS[name]
    outcome = _told(lambda: function(None, *arguments))
    if isinstance(outcome, str):
        return RecordedLaunch(kernels=(), excess={}, skipped=outcome)
    return RecordedLaunch(
        kernels=outcome.launches,
        excess={name: _finite(each) for name, each in outcome.excess.items()},
        skipped="",
    )


def _finite(number: float) -> float:
    """JSON has no infinity."""
    return number if math.isfinite(number) else sys.float_info.max


def _launch(name: str, folder: str) -> str:
    sys.path[:0] = [] if folder in sys.path else [folder]
    (launch,) = (each for each in LAUNCHES if each.name == name)

    def run() -> str:
        absent = launch.absent()
        if absent is None:
            memory = Memory()
            with checked_launches(memory):
                launch.run(memory)
        return absent or ""

    return str(_told(run))


def _told(run: Callable[[], Any]) -> Any:
    """What a run on the card gives, or why it was not made, or what it raised."""
    with launches_on_the_card():
        try:
            return run()
        except NotOnThisCardError as reason:
            return str(reason)
        except Exception as error:  # noqa: BLE001 - recorded, and judged later
            return f"{type(error).__name__}: {error}"


def _in_order(
    one: Callable[[Name, str], Result], names: Iterable[Name], folder: str = ""
) -> dict[Name, Result]:
    """Results by name, from one process as long as its context lives."""
    context = multiprocessing.get_context("spawn")
    left = list(names)
    results: dict[Name, Result] = {}
    died: list[str] = []
    while left:
        with ProcessPoolExecutor(1, context, prepare) as pool:
            while left:
                name = left.pop(0)
                try:
                    results[name] = pool.submit(one, name, folder).result()
                except BrokenProcessPool:
                    died.append(str(name))
                    break
                if "CUDA error" in str(results[name]):
                    break
    print(f"{one.__name__}: {len(results)} ran, {died} died {folder}", flush=True)
    return results


def record(programs: Path, trees: Mapping[str, str]) -> Recorded:
    """Run everything."""
    import torch
    import triton

    drawn = msgspec.json.decode(programs.read_bytes(), type=list[RecordedProgram])
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    )
    return Recorded(
        card=torch.cuda.get_device_name(),
        driver=driver.stdout.strip(),
        torch=str(torch.__version__),
        triton=triton.__version__,
        date=dt.datetime.now(tz=dt.UTC).date().isoformat(),
        command="python -m benchmarks.card record",
        programs=tuple(
            _in_order(_program, [msgspec.json.encode(each) for each in drawn]).values()
        ),
        checks=_in_order(_check, CHECKS),
        kernels={
            release: _in_order(_kernel, KERNELS, folder)
            for release, folder in trees.items()
        },
        launches={
            release: _in_order(_launch, [each.name for each in LAUNCHES], folder)
            for release, folder in trees.items()
        },
    )


def main(arguments: list[str]) -> None:
    """Draw programs, or record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.card")
    commands = parser.add_subparsers(required=True, dest="command")
    draw = commands.add_parser("draw")
    draw.add_argument("programs", type=Path)
    draw.add_argument("--count", type=int, default=400)
    recording = commands.add_parser("record")
    recording.add_argument("programs", type=Path)
    recording.add_argument("out", type=Path)
    recording.add_argument("--tree", action="append", default=[], metavar="X=FOLDER")
    comparing = commands.add_parser("compare")
    comparing.add_argument("recording", type=Path)
    given = parser.parse_args(arguments)
    if given.command == "draw":
        drawn = drawn_programs(given.count)
        given.programs.write_bytes(msgspec.json.encode(drawn))
        return
    if given.command == "compare":
        packed = gzip.decompress(given.recording.read_bytes())
        recorded = msgspec.json.decode(packed, type=Recorded)
        boot.prepare(platform="cpu", triton="jit")
        print(f"{recorded.card}: {dict(Counter(compared(recorded.programs)))}")
        return
    trees = dict(each.split("=", 1) for each in given.tree)
    made = record(given.programs, trees)
    given.out.write_bytes(gzip.compress(msgspec.json.encode(made), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1:])
