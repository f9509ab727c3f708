"""Fixes of staged writes."""

from fuzz.edits import SourceEdit
from reproducers.fix import Fix

_BUFFERS = ("vllm.v1.worker.gpu.buffer_utils",)
_KERNEL = "_apply_write_kernel"

FIXES = (
    Fix(
        name="rows in 64 bits",
        sites=(f"{_KERNEL}: output_ptr",),
        edits=(
            SourceEdit(
                modules=_BUFFERS,
                function=_KERNEL,
                old="row_idx = tl.load(write_indices_ptr + pid)",
                new="row_idx = tl.load(write_indices_ptr + pid).to(tl.int64)",
            ),
        ),
    ),
    Fix(
        name="a buffer that grows with what is staged",
        sites=("UvaBufferPool.copy_to_uva",),
        edits=(
            SourceEdit(
                modules=_BUFFERS,
                function="UvaBufferPool.copy_to_uva",
                old="dst = buf.cpu if",
                new=(
                    "if len(x) > len(buf.cpu):\n"
                    "        buf = UvaBuffer(2 * len(x), self.dtype)\n"
                    "        self._uva_bufs[self._curr] = buf\n"
                    "    dst = buf.cpu if"
                ),
            ),
        ),
    ),
)
