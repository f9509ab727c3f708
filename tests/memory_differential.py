"""Runs generated kernels in the checker and in Triton's interpreter.

Each has a process of its own: a process has one Triton mode for life, and Triton's
library functions are only interpreted where they were decorated so.
"""

from __future__ import annotations

import hashlib
import importlib.util
import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tests.memory_programs import INPUT_SIZE, LANES_MAX, Program

Contents = list[NDArray[Any]]


@dataclass(frozen=True)
class Outcome:
    """What the checker made of a launch."""

    memory: Contents
    findings: tuple[tuple[str, str], ...]
    undecided: tuple[str, ...]


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="kvfuzz-generated-"))


def module_of(source: str) -> ModuleType:
    """Import a source text from a file, as Triton needs it."""
    name = "generated_" + hashlib.sha256(source.encode()).hexdigest()[:16]
    path = _folder() / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _contents(dtype: str, seed: int, at: int) -> NDArray[Any]:
    """Elements of an input: ascending, or random with extremes."""
    kind = np.dtype(dtype)
    if seed == 0:
        return np.arange(INPUT_SIZE).astype(kind)
    random = np.random.default_rng([seed, at])
    low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    small = random.integers(max(low, -9), 9, INPUT_SIZE)
    wide = random.integers(low, high, INPUT_SIZE, endpoint=True)
    edges = random.choice(np.array([low, low + 1, high - 1, high]), INPUT_SIZE)
    which = random.integers(0, 4, INPUT_SIZE)
    values = np.where(which < 2, small, np.where(which == 2, wide, edges))
    return values.astype(kind)


def memory_of(program: Program) -> Contents:
    """Inputs, then outputs filled with a mark."""
    given = [
        _contents(dtype, program.seed, at) for at, dtype in enumerate(program.inputs)
    ]
    size = int(np.prod(program.grid)) * program.stores * LANES_MAX
    return given + [np.full(size, 77, dtype=dtype) for dtype in program.outputs]


def checked(program: Program) -> Outcome:
    """Run a program in the checker."""
    import torch

    from fuzz import boot

    boot.prepare(platform="cpu", triton="jit")
    from invariants.memory.launches import checked_launches

    memory = memory_of(program)
    tensors = [torch.from_numpy(each) for each in memory]
    kernel = module_of(program.source).kernel
    with checked_launches() as log:
        kernel[program.grid](*tensors, *program.numbers, STORES=program.stores)
    return Outcome(
        memory=memory,
        findings=tuple((each.kind, each.message) for each in log.findings),
        undecided=tuple(f"{each.reason} ({each.place})" for each in log.undecided),
    )


def interpreted(program: Program) -> Contents:
    """Run a program in Triton's interpreter."""
    import torch

    from fuzz import boot

    boot.prepare(platform="cpu", triton="interpret")
    from fuzz.targets._interpreter import corrected_interpreter

    memory = memory_of(program)
    tensors = [torch.from_numpy(each) for each in memory]
    with corrected_interpreter():
        kernel = module_of(program.source).kernel
        kernel[program.grid](*tensors, *program.numbers, STORES=program.stores)
    return memory


class Sides:
    """The two processes."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._checker = ProcessPoolExecutor(1, mp_context=context)
        self._interpreter = ProcessPoolExecutor(1, mp_context=context)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._checker.shutdown()
        self._interpreter.shutdown()

    def compare(self, program: Program) -> str:
        """Run both sides.

        Returns:
            `same`; `wrapped` where the checker says that wrapping reaches an address or
            a branch, after which the sides may differ; `gap` where the interpreter
            refuses a sum that leaves its width, for it adds up in 64 bits; else what is
            wrong.
        """
        other = self._interpreter.submit(interpreted, program)
        ours = self._checker.submit(checked, program).result()
        try:
            theirs = other.result()
        except Exception as error:
            if "out of bounds for" in str(error):
                return "gap"
            raise
        return _told(ours) or _difference(ours.memory, theirs) or "same"


def _told(outcome: Outcome) -> str:
    """What the checker says of a program, "" for nothing."""
    for kind, message in outcome.findings:
        if kind != "wrapped":
            return f"a false finding: {message}"
    for reason in outcome.undecided:
        if "wrapped" not in reason:
            return f"undecided: {reason}"
    return "wrapped" if outcome.findings or outcome.undecided else ""


def _difference(ours: Contents, theirs: Contents) -> str:
    """Where two memories differ first, "" where they do not."""
    for at, (one, two) in enumerate(zip(ours, theirs, strict=True)):
        if not np.array_equal(one, two):
            first = int(np.flatnonzero(one != two)[0])
            return (
                f"tensor {at} differs at {first}: the checker has {one[first]}, "
                f"the interpreter {two[first]}"
            )
    return ""
