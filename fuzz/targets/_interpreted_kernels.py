"""Small integer kernels of the tree, run in this process on CPU tensors.

A process prepared for Triton's JIT cannot launch kernels; here the JIT functions of a
module give way to Triton's interpreter for a while. A launch may touch the memory of
its own tensor arguments only: wrong arithmetic raises, and does not kill the process.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock


class OutsideArguments(IndexError):
    """A kernel read or wrote memory that belongs to none of its tensor arguments."""


@contextmanager
def interpreted_kernels(
    *modules: ModuleType, pointer_tables: bool = False
) -> Iterator[None]:
    """Run the kernels of these modules in the interpreter.

    Args:
        modules: Whose JIT functions are launched, device functions included.
        pointer_tables: Whether kernels follow addresses out of tensors, which memory
            beside their arguments may belong to; nothing is checked then.
    """
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    from fuzz.targets._interpreter import corrected_interpreter

    with ExitStack() as stack:
        for module in modules:
            for name, value in list(vars(module).items()):
                if isinstance(value, JITFunction):
                    kernel = InterpretedFunction(value.fn)
                    stack.enter_context(mock.patch.object(module, name, kernel))
        stack.enter_context(corrected_interpreter())
        if not pointer_tables:
            stack.enter_context(_own_memory_only())
        yield


@contextmanager
def _own_memory_only() -> Iterator[None]:
    """Check each pointer of a launch against the storages of its arguments."""
    from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

    allowed: list[tuple[int, int]] = []
    init = GridExecutor._init_args_hst  # noqa: SLF001 - the interpreter has no hooks
    load = InterpreterBuilder.create_masked_load
    store = InterpreterBuilder.create_masked_store

    def noting(self: Any, args: Any, kwargs: Any) -> Any:
        allowed.clear()
        for each in (*args, *kwargs.values()):
            if hasattr(each, "untyped_storage"):
                storage = each.untyped_storage()
                allowed.append((storage.data_ptr(), storage.nbytes()))
        return init(self, args, kwargs)

    def checked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        _check(ptrs, mask, allowed, "read")
        return load(self, ptrs, mask, *rest)

    def checked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        _check(ptrs, mask, allowed, "write")
        return store(self, ptrs, value, mask, *rest)

    with (
        mock.patch.object(GridExecutor, "_init_args_hst", noting),
        mock.patch.object(InterpreterBuilder, "create_masked_load", checked_load),
        mock.patch.object(InterpreterBuilder, "create_masked_store", checked_store),
    ):
        yield


def _check(ptrs: Any, mask: Any, allowed: list[tuple[int, int]], what: str) -> None:
    import numpy as np

    width = ptrs.get_element_ty().primitive_bitwidth // 8
    addresses = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)]
    inside = np.zeros(addresses.shape, dtype=bool)
    for start, size in allowed:
        inside |= (addresses >= start) & (addresses + width <= start + size)
    if not inside.all():
        raise OutsideArguments(
            f"{what} of {int((~inside).sum())} elements outside all tensor arguments"
        )
