"""An executor in a process of its own: a process has one tree, the tests need several.

No test process imports vLLM itself, so which tests share a worker does not matter.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar

from fuzz.campaign import import_rooms
from fuzz.execution import Executor
from fuzz.trees import activate, resolve

P = ParamSpec("P")
R = TypeVar("R")


class Elsewhere:
    """Calls functions with an executor on one tree; functions are those of a module.

    Args:
        spec: The tree, as for `resolve`; None for the default one.
        patches: A patch series, or None.
    """

    def __init__(self, spec: str | None, *, patches: Path | None = None) -> None:
        self._spec = spec
        self._patches = patches
        self._pool = ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn")
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._pool.submit(_close, self._spec, self._patches).result()
        self._pool.shutdown()

    def call(
        self,
        function: Callable[Concatenate[Executor, P], R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """What a function gives, or raises, that is called with the executor first."""
        bound = _Call(function, self._spec, self._patches, args, kwargs)
        return self._pool.submit(bound).result()


# Gives the process of a release; see the fixture of that name.
Releases = Callable[[str], Elsewhere]


@cache
def _executor(spec: str | None, patches: Path | None) -> Executor:
    tree = resolve(spec, patches=patches)
    activate(tree)
    import_rooms()
    return Executor(tree=tree)


@dataclass(frozen=True)
class _Call(Generic[R]):
    """What crosses to the other process."""

    function: Callable[..., R]
    spec: str | None
    patches: Path | None
    args: tuple[object, ...]
    kwargs: dict[str, object]

    def __call__(self) -> R:
        executor = _executor(self.spec, self.patches)
        return self.function(executor, *self.args, **self.kwargs)


def _close(spec: str | None, patches: Path | None) -> None:
    _executor(spec, patches).close()
