"""Pools of any size with true strides and unique addresses, of which nothing exists.

A private mapping without reserve: a terabyte costs address space and, where a page is
written to, that page. What a case does not own is poisoned by what the checker knows of
it (`Memory.own`): a read of it is a finding and gives no value, whatever lies there.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

# All bits set is NaN in float32, float16, bfloat16 and both fp8 formats, and -1.
POISON = 0xFF
_MAP_NORESERVE = 0x4000  # Linux; Python's mmap module names it from 3.13 on


@contextmanager
def virtual_pool(size_bytes: int) -> Iterator[torch.Tensor]:
    """A pool as ``[size_bytes]`` uint8; views of it are dead when the context ends.

    Raises:
        ValueError: No size at all.
        OSError: The system refuses; 47 bits of address space hold pools of 100 TB.
    """
    import torch

    if size_bytes <= 0:
        raise ValueError(f"a pool of {size_bytes} bytes; give it at least one")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    access = mmap.PROT_READ | mmap.PROT_WRITE
    start = libc.mmap(None, size_bytes, access, flags, -1, 0)
    if start in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"mmap of {size_bytes} bytes without reserve")
    try:
        memory = (ctypes.c_uint8 * size_bytes).from_address(start)
        yield torch.frombuffer(memory, dtype=torch.uint8)
    finally:
        libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(size_bytes))


def sparse_flags(count: int) -> NDArray[np.bool_]:
    """``[count]`` of False, one for each byte of a pool; only what is set has pages."""
    if not count:
        return np.zeros(0, dtype=np.bool_)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    return np.frombuffer(mmap.mmap(-1, count, flags=flags), dtype=np.bool_)


def poison(view: torch.Tensor) -> None:
    """Fill a view with NaN, or -1 for integers; its pages become resident."""
    import torch

    if view.dtype.is_floating_point:
        view.fill_(torch.nan)
    elif view.dtype is not torch.bool:
        view.fill_(POISON if view.dtype is torch.uint8 else -1)
