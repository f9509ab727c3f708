"""Lets kernels that tests launch on CPU tensors run on a real GPU.

A launch is made on copies of its storages, and what the card leaves in them is copied
back, so that code which prepares and compares need not know of the card.
"""

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fuzz.boot import DEFAULT_ENVIRONMENT, FIXED_ENVIRONMENT, absent_backend

# Copies of a storage live on the host and on the card.
STORAGE_BYTES_MAX = 1 << 30


def prepare() -> None:
    """Make this process fit to import vLLM as for the CPU, with Triton for the card.

    Without its compiled extensions vLLM cannot be imported for CUDA.
    """
    hidden = ("CUDA_VISIBLE_DEVICES", "PYTORCH_NVML_BASED_CUDA_CHECK")
    for name, value in (FIXED_ENVIRONMENT | DEFAULT_ENVIRONMENT).items():
        if name not in hidden:
            os.environ[name] = value
    from triton.backends import backends

    # Releases from 0.24 on want a backend of this name when their version says `cpu`.
    backends.setdefault("cpu", absent_backend())


class NotOnThisCardError(Exception):
    """A launch cannot be made on copies; the message says why."""


@contextmanager
def launches_on_the_card() -> Iterator[None]:
    """Let `checked_launches` run kernels on the card instead of judging them."""
    import torch
    from triton.runtime.jit import JITFunction

    from invariants.memory import launches
    from invariants.memory.findings import Launch

    run = JITFunction.run

    def launch(
        log: launches.Log,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        grid: Any,
        *,
        warmup: bool,
        values: bool,
    ) -> None:
        del values
        if log.memory.has_tables:
            raise NotOnThisCardError("a table of pointers names places of this process")
        copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

        def moved(value: Any) -> Any:
            if isinstance(value, tuple):
                return type(value)(moved(each) for each in value)
            if not isinstance(value, torch.Tensor) or value.is_cuda:
                return value
            storage = value.untyped_storage()
            if storage.nbytes() > STORAGE_BYTES_MAX:
                raise NotOnThisCardError("a pool larger than what is copied")
            if storage.data_ptr() not in copies:
                _open(storage.data_ptr(), storage.nbytes())
                here = torch.empty(0, dtype=torch.uint8).set_(storage)
                copies[storage.data_ptr()] = (here, here.cuda())
            there = copies[storage.data_ptr()][1].untyped_storage()
            return torch.empty(0, dtype=value.dtype, device="cuda").set_(
                there, value.storage_offset(), value.shape, value.stride()
            )

        on_card = tuple(moved(each) for each in args)
        named = {name: moved(each) for name, each in kwargs.items()}
        run(function, *on_card, grid=grid, warmup=warmup, **named)
        torch.cuda.synchronize()
        for here, there in copies.values():
            here.copy_(there)
        log.launches.append(
            Launch(
                kernel=function.fn.__qualname__,
                grid=(0, 0, 0),
                accesses=0,
                lanes=0,
                findings=(),
                undecided=(),
            )
        )

    before = launches._launch  # noqa: SLF001 - it has no hook
    launches._launch = launch  # noqa: SLF001
    try:
        yield
    finally:
        launches._launch = before  # noqa: SLF001


def _open(address: int, size_bytes: int) -> None:
    """Let all of a storage be read: pages of a sparse pool may be closed."""
    start = address // mmap.PAGESIZE * mmap.PAGESIZE
    size = ctypes.c_size_t(address + size_bytes - start)
    access = mmap.PROT_READ | mmap.PROT_WRITE
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start), size, access) != 0:
        raise OSError(ctypes.get_errno(), f"mprotect of {size_bytes} bytes")
