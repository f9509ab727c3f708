"""Faults planted in the kernels of decode attention, and in what launches them."""

from fuzz.edits import SourceEdit
from invariants.model import Origin
from tests.quality.mutant import Mutant

OPS = ("vllm.v1.attention.ops.triton_decode_attention",)
BACKEND = ("vllm.v1.attention.backends.mla.triton_mla",)
ALONE, GROUPED, MERGE = (
    "_fwd_kernel_stage1",
    "_fwd_grouped_kernel_stage1",
    "_fwd_kernel_stage2",
)


def _mutant(
    name: str,
    function: str,
    old: str,
    new: str,
    *invariants: str,
    origin: Origin = "wired",
    modules: tuple[str, ...] = OPS,
    cases: int = 60,
) -> Mutant:
    edit = SourceEdit(modules=modules, function=function, old=old, new=new)
    return Mutant(
        name=name,
        origin=origin,
        edits=(edit,),
        invariants=invariants,
        cases=cases,
        size=560,
    )


WRITTEN: tuple[Mutant, ...] = (
    _mutant(
        "offsets of pages in 32 bits",
        GROUPED,
        "kv_page_number * stride_buf_kpbs",
        "kv_page_number.to(tl.int32) * stride_buf_kpbs",
        "DECODE-EXACT",
    ),
    _mutant(
        "rows of the scratch in 32 bits",
        MERGE,
        "offs_v = cur_batch.to(tl.int64) * stride_mid_ob",
        "offs_v = cur_batch * stride_mid_ob",
        "DECODE-EXACT",
        origin="contract",
        cases=200,
    ),
    _mutant(
        "keys past a split's last are read",
        GROUPED,
        "(offs_n[None, :] < split_kv_end) & (mask_d[:, None])",
        "(offs_n[None, :] < split_kv_end + 1) & (mask_d[:, None])",
        "DECODE-OWNED",
    ),
    _mutant(
        "splits that nobody stored are merged",
        MERGE,
        "if split_kv_end > split_kv_start:",
        "if split_kv_end >= split_kv_start:",
        "DECODE-SCRATCH",
        "DECODE-VALUES",
        "DECODE-LSE",
    ),
    _mutant(
        "the output of the next row",
        MERGE,
        "o + cur_batch * stride_obs",
        "o + (cur_batch + 1) * stride_obs",
        "DECODE-OWNED",
    ),
    _mutant(
        "values of the first elements of keys alone",
        GROUPED,
        "qk += tl.dot(qpe, kpe.to(qpe.dtype))",
        "qk += 0.0 * tl.dot(qpe, kpe.to(qpe.dtype))",
        "DECODE-VALUES",
    ),
    _mutant(
        "the log-sum-exp of the last split",
        MERGE,
        "lse_val = e_max + tl.log(e_sum)",
        "lse_val = e_max",
        "DECODE-LSE",
    ),
    _mutant(
        "a block's query tokens see all of it",
        "TritonMLAImpl.forward_mqa",
        "1 - query_len, 1, device",
        "0, query_len, device",
        "DECODE-OWNED",
        "DECODE-VALUES",
        modules=BACKEND,
    ),
    _mutant(
        "one head's keys for all",
        ALONE,
        "cur_kv_head = cur_head // kv_group_num",
        "cur_kv_head = cur_head * 0",
        "DECODE-VALUES",
        origin="contract",
        cases=200,
    ),
)

# Of the first stages `tests.quality.memory` has the addresses; floats reach none.
MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    (BACKEND, "TritonMLAImpl.forward_mqa"),
    (OPS, MERGE),
)
