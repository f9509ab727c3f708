"""A process that is prepared for Triton's JIT, shared by the tests of the checker.

Triton's mode is fixed per process, and no test process takes one.
"""

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def prepare() -> None:
    """Make this process one where kernels are lowered and checked."""
    from fuzz import boot

    boot.prepare(platform="cpu", triton="jit")


@cache
def _process() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=prepare)


def in_child(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What a function of a module gives, or raises, in the prepared process."""
    return _process().submit(function, *args, **kwargs).result()
