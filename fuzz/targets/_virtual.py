"""Tensors of any size whose pages exist once they are touched."""

import mmap
from collections.abc import Sequence

import torch

# Linux; Python's mmap module names it from 3.13 on.
NO_RESERVE = 0x4000


def virtual(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of any size whose pages exist once they are touched."""
    count = 1
    for size in shape:
        count *= size
    size_bytes = max(count * dtype.itemsize, 1)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    memory = mmap.mmap(-1, size_bytes, flags=flags)
    return torch.frombuffer(memory, dtype=dtype, count=count).view(*shape)
