"""A correct launch of vLLM's own kernels, as a value, and what builds its tensors.

A launch makes CPU tensors of real shapes, calls the wrapper that vLLM calls, and says
in `Memory` what the contract says of them. Pools are virtual: strides and addresses are
those of a GPU's, and only what is touched has pages.
"""

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from fuzz.targets._virtual import virtual as virtual  # noqa: PLC0414 - others take it here
from invariants.memory.regions import Memory, Ownership

NULL_BLOCK = 0

# A page id that no pool has: what stands in columns and rows that nothing may use.
STALE = 2**30


@dataclass(frozen=True, kw_only=True)
class RealLaunch:
    """One or more launches that a wrapper makes, within its contract.

    Attributes:
        name: Unique in the catalogue.
        kernels: Of each kernel that is reached, the names it has in releases.
        module: Where the wrapper lives in releases; the first found wins.
        run: Builds the tensors, declares them in the memory and calls the wrapper.
        needs: Name in the module that a release must have, "" for none.
        note: How the launch differs from a run on a GPU, "" for not at all.
        faults: Releases whose kernel is wrong here, and the tensor and arithmetic of
            each finding; every other release has no finding.
    """

    name: str
    kernels: tuple[tuple[str, ...], ...]
    module: tuple[str, ...]
    run: Callable[[Memory], None]
    needs: str = ""
    note: str = ""
    faults: tuple[tuple[str, str, str], ...] = ()

    def absent(self) -> str | None:
        """Why the activated tree has no such launch, None when it has."""
        found = [name for name in self.module if _exists(name)]
        if not found:
            return f"no module {' or '.join(self.module)}"
        if self.needs and not hasattr(importlib.import_module(found[0]), self.needs):
            return f"{found[0]} has no {self.needs}"
        return None


@cache
def _exists(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def imported(*modules: str) -> Any:
    """The first of some modules that the tree has."""
    return importlib.import_module(next(each for each in modules if _exists(each)))


def accepted(function: Callable[..., Any], **offered: Any) -> dict[str, Any]:
    """Those of the offered arguments that this release's function has."""
    known = inspect.signature(function).parameters
    return {name: value for name, value in offered.items() if name in known}


def as_defined(module: Any, function: str) -> Any:
    """A function as its file defines it, though the CPU platform's took its name.

    It runs in the module's namespace, so that it launches the module's kernels.
    """
    tree = ast.parse(inspect.getsource(module))
    (found,) = (
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == function
    )
    code = compile(
        ast.Module(body=[found], type_ignores=[]), str(module.__file__), "exec"
    )
    defined: dict[str, Any] = {}
    exec(code, vars(module), defined)  # noqa: S102 (the tree's own source)
    return defined[function]


def ints(values: Iterable[int]) -> torch.Tensor:
    """``[values]`` int32."""
    return torch.tensor(list(values), dtype=torch.int32)


def longs(values: Iterable[int]) -> torch.Tensor:
    """``[values]`` int64."""
    return torch.tensor(list(values), dtype=torch.int64)


def starts_of(lengths: Sequence[int]) -> torch.Tensor:
    """``[lengths + 1]`` int32, where each begins; the last is the total."""
    return torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0).to(torch.int32)


def read_only(memory: Memory, *tensors: torch.Tensor) -> None:
    """Inputs that no launch may store to."""
    for each in tensors:
        memory.read_only(each)


def all_written(memory: Memory, *views: torch.Tensor) -> None:
    """See that launches stored to each element of views that were declared scratch.

    Raises:
        AssertionError: Some element was left out.
    """
    for view in views:
        storage = memory.storage(view)
        marks = torch.from_numpy(storage.written)
        strides = [each * view.element_size() for each in view.stride()]
        start = view.data_ptr() - storage.base
        written = marks.as_strided(view.shape, strides, start)
        if not bool(written.all()):
            left = int((~written).sum())
            raise AssertionError(f"{left} of {view.numel()} elements were not written")


def owned(
    memory: Memory,
    *pools: torch.Tensor,
    readable: Iterable[int],
    writable: Iterable[int] = (),
) -> None:
    """Which pages of these pools, along axis 0, a launch may touch."""
    read, write = set(readable), set(writable)
    for pool in pools:
        states = {NULL_BLOCK: "the null block"}
        memory.own(
            pool, Ownership.of(pool, readable=read, writable=write, states=states)
        )


def table_of(rows: Sequence[Sequence[int]], *, columns: int) -> torch.Tensor:
    """``[rows, columns]`` int32; columns past a row's last are stale."""
    table = torch.full((len(rows), columns), STALE, dtype=torch.int32)
    for row, blocks in enumerate(rows):
        table[row, : len(blocks)] = ints(blocks)
    return table


def blocks_at_top(
    lengths: Sequence[int], *, block_size: int, pool_blocks: int
) -> list[list[int]]:
    """Block ids of each request for its tokens, from the pool's last block downwards.

    Requests take blocks in turn, so that those of one do not lie side by side.
    """
    counts = [-(-length // block_size) for length in lengths]
    rows: list[list[int]] = [[] for _ in counts]
    block = pool_blocks
    while any(len(row) < count for row, count in zip(rows, counts, strict=True)):
        for row, count in zip(rows, counts, strict=True):
            if len(row) < count:
                block -= 1
                row.append(block)
    if block <= NULL_BLOCK:
        raise ValueError(f"{pool_blocks} blocks are too few for {sum(counts)}")
    return rows


def slots_of(
    rows: Sequence[Sequence[int]],
    contexts: Sequence[int],
    queries: Sequence[int],
    *,
    block_size: int,
) -> list[int]:
    """Slot of each new token: the last ones of each request's context."""
    return [
        row[position // block_size] * block_size + position % block_size
        for row, context, query in zip(rows, contexts, queries, strict=True)
        for position in range(context - query, context)
    ]
