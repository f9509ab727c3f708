"""A KV pool of any size in which only the blocks that a batch owns exist.

The whole range, with guards on both sides, is reserved without access; the pages of
owned blocks are then opened and filled with NaN. So a terabyte costs nothing, a wrapped
or stale address ends the process at once whatever lies near, and a read of an owned
page's unwritten slots shows in the result.
"""

import ctypes
import mmap
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from fuzz.targets._virtual import NO_RESERVE

# An i32 product reaches at most 2**31 elements below its base, an unsigned one 2**32
# above it; elements here have at most 4 bytes (float32 scales).
GUARD_BYTES = 4 << 32
# All bits set is NaN in float32, float16, bfloat16 and both fp8 formats.
POISON = 0xFF

_NO_ACCESS = 0


class SparsePool:
    """A reserved address range whose owned parts can be read and written.

    Attributes:
        bytes: ``[size_bytes]`` uint8, the pool without its guards.
    """

    def __init__(self, *, base: int, size_bytes: int) -> None:
        self._base = base
        self._open: tuple[tuple[int, int], ...] = ()
        memory = (ctypes.c_uint8 * size_bytes).from_address(base)
        self.bytes = torch.frombuffer(memory, dtype=torch.uint8)

    def open(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Make byte ranges ``[start, end)`` accessible, and poison their pages; once.

        Raises:
            OSError: The system refuses; resident memory is the sum of the ranges.
        """
        page = mmap.PAGESIZE
        last_end = -1
        merged: list[list[int]] = []
        for start, end in sorted(ranges):
            low, high = start // page * page, -(-end // page) * page
            if low <= last_end:
                merged[-1][1] = max(merged[-1][1], high)
            else:
                merged.append([low, high])
            last_end = merged[-1][1]
        for low, high in merged:
            address = ctypes.c_void_p(self._base + low)
            access = mmap.PROT_READ | mmap.PROT_WRITE
            if _libc().mprotect(address, ctypes.c_size_t(high - low), access) != 0:
                raise OSError(ctypes.get_errno(), f"mprotect of {high - low} bytes")
            ctypes.memset(self._base + low, POISON, high - low)
        self._open = tuple((low, high) for low, high in merged)

    def checksum(self) -> int:
        """Of everything that can be read, to see whether it was written to."""
        value = 0
        for low, high in self._open:
            value = zlib.crc32(self.bytes[low:high].numpy().data, value)
        return value


@contextmanager
def sparse_pool(size_bytes: int) -> Iterator[SparsePool]:
    """Reserve a pool; every tensor over it is dead when the context ends.

    Raises:
        OSError: The system refuses the reservation; 48 bits of address space hold
            pools of 100 TB.
    """
    page = mmap.PAGESIZE
    inner = -(-size_bytes // page) * page
    total = inner + 2 * GUARD_BYTES
    libc = _libc()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    start = libc.mmap(None, total, _NO_ACCESS, flags, -1, 0)
    if start in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), f"mmap of {total} bytes without access")
    try:
        yield SparsePool(base=start + GUARD_BYTES, size_bytes=inner)
    finally:
        libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(total))


def _libc() -> ctypes.CDLL:
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
    return libc
