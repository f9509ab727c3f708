"""Attention kernels in value mode on the cases of their fuzz target.

The target draws the contents, builds the batch and compares with dense float64
attention; here its launch is made in value mode, where it makes it in the interpreter.
"""

from contextlib import ExitStack

from fuzz.execution import Executor
from invariants.memory.launches import checked_launches
from invariants.memory.regions import Memory
from invariants.scheduling import NULL_BLOCK
from invariants.verify_case import Case
from tests.value_launches import Outcome, changed, outcome

UNIFIED = "vllm.v1.attention.ops.triton_unified_attention"
CONTROL = "fuzz.targets._splitkv_control"


def attention(
    _: Executor, case: Case, planted: tuple[str, str] | None = None
) -> Outcome:
    """Run a contract case; the worst error is 0 within what its reference allows."""
    from fuzz.targets import verify_attention as target
    from fuzz.targets._paged_cache import draw_contents, fill_cache, worst_mismatch
    from fuzz.targets._verify_batch import make_batch

    contents = draw_contents(case)
    batch = make_batch(case, contents)
    null_block = any(NULL_BLOCK in row for row in case.layout.block_ids[0])
    place = (CONTROL, "splitkv_control_partial")
    if not case.kernel.startswith("control"):
        place = (UNIFIED, "kernel_unified_attention")
    memory = Memory()
    output = batch.out.untyped_storage().data_ptr()
    for each in batch.inputs().values():
        # The rows beside the output share its storage.
        if each.untyped_storage().data_ptr() != output:
            memory.read_only(each)
    with ExitStack() as stack:
        stack.enter_context(changed(*place, planted))
        opened = target._contract_launch(case, batch)
        pool, launch = stack.enter_context(opened)
        fill_cache(pool, launch.written, contents, null_block=null_block)
        before = pool.checksum()
        with checked_launches(memory, values=True) as log:
            launch.run()
        written = pool.checksum() != before
        mismatch = worst_mismatch(case, contents, batch.out)
    outside = 0.0 if mismatch is None else mismatch.outside / mismatch.elements
    return outcome(log, output=outside, cache=float(written))
