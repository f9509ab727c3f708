"""Launches of kernels that access memory through descriptors; run in the child."""

# Kernels are read by Triton's compiler, which annotations would tell something; their
# upper-case parameters are compiled in.
# ruff: noqa: N803
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from invariants.memory.findings import Launch
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory

ROWS, COLUMNS = 20, 32


@triton.jit
def copied(out, source, rows, columns, B: tl.constexpr):  # noqa: ANN001, ANN201
    read = tl.make_tensor_descriptor(source, [rows, columns], [columns, 1], [B, B])
    write = tl.make_tensor_descriptor(out, [rows, columns], [columns, 1], [B, B])
    at = tl.program_id(0) * B
    write.store([at, B], read.load([at, 0]))


@triton.jit
def copied_by(read, write, B: tl.constexpr):  # noqa: ANN001, ANN201
    at = tl.program_id(0) * B
    write.store([at, B], read.load([at, 0]))


@triton.jit
def blocks(read, write, rows, B: tl.constexpr):  # noqa: ANN001, ANN201
    """Through block pointers, moved on by rows."""
    order: tl.constexpr = (1, 0)
    source = tl.make_block_ptr(read, (rows, B), (B, 1), (0, 0), (B, B), order)
    target = tl.make_block_ptr(write, (rows, B), (B, 1), (0, 0), (B, B), order)
    for _ in range(0, rows, B):
        found = tl.load(source, boundary_check=(0, 1))
        tl.store(target, found, boundary_check=(0, 1))
        source = tl.advance(source, (B, 0))
        target = tl.advance(target, (B, 0))


def by_kernel(rows: int) -> tuple[Launch, list[list[int]]]:
    """Descriptors of so many rows, made by the kernel; what is stored."""
    out, source = _tensors()
    with checked_launches(Memory()) as log:
        copied[(2,)](out, source, rows, COLUMNS, B=16)
    return log.launches[0], out.tolist()


def by_host(rows: int) -> tuple[Launch, list[list[int]]]:
    """The same, made by the caller."""
    out, source = _tensors()
    read, write = (
        TensorDescriptor(each, [rows, COLUMNS], [COLUMNS, 1], [16, 16])
        for each in (source, out)
    )
    with checked_launches(Memory()) as log:
        copied_by[(2,)](read, write, B=16)
    return log.launches[0], out.tolist()


def by_blocks(rows: int) -> tuple[Launch, list[list[int]]]:
    """A copy of rows of 16, through block pointers."""
    out = torch.zeros(ROWS, 16, dtype=torch.int32)
    source = torch.arange(out.numel(), dtype=torch.int32).view_as(out)
    with checked_launches(Memory()) as log:
        blocks[(1,)](source, out, rows, B=16)
    return log.launches[0], out.tolist()


def _tensors() -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.zeros(ROWS, COLUMNS, dtype=torch.int32)
    return out, torch.arange(out.numel(), dtype=torch.int32).view_as(out)
