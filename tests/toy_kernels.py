"""Kernels small enough to know their results, for tests of the interpreter."""

# Kernels are read by Triton's compiler, which annotations would tell something.
# ruff: noqa: ANN001, ANN201
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl


@triton.jit
def dot_kernel(x_ptr, out_ptr):
    """One bf16 product of 16 x 16 with itself, plus one."""
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    x = tl.load(x_ptr + at)
    tl.store(out_ptr + at, (tl.dot(x, x) + 1).to(tl.bfloat16))


@triton.jit
def stride_kernel(id_ptr, out_ptr, wide: tl.int64, narrow):
    """An i32 id times a stride that is annotated, and one that is not."""
    block = tl.load(id_ptr)
    tl.store(out_ptr, block * wide)
    tl.store(out_ptr + 1, (block * narrow).to(tl.int64))
