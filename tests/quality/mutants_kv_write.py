"""Faults planted in the kernels that write keys and values."""

from fuzz.edits import SourceEdit
from invariants.model import Origin
from tests.quality.mutant import Mutant

OPS = ("vllm.v1.attention.ops.triton_reshape_and_cache_flash",)
PLAIN = "reshape_and_cache_kernel_flash"
QUANTISED = "_reshape_cache_per_token_head"
PAIRED = "reshape_and_cache_kernel_flash_diffkv"


def _mutant(
    name: str,
    function: str,
    old: str,
    new: str,
    *invariants: str,
    origin: Origin = "wired",
    cases: int = 60,
) -> Mutant:
    edit = SourceEdit(modules=OPS, function=function, old=old, new=new)
    return Mutant(
        name=name,
        origin=origin,
        edits=(edit,),
        invariants=invariants,
        cases=cases,
        size=400,
    )


WRITTEN: tuple[Mutant, ...] = (
    _mutant(
        "offsets of blocks in 32 bits",
        PLAIN,
        "block_idx * block_stride\n            + block_offset * page_stride",
        "(block_idx * block_stride).to(tl.int32) + block_offset * page_stride",
        "KV-WRITE-EXACT",
    ),
    _mutant(
        "offsets of value blocks in 32 bits",
        QUANTISED,
        "+ blk * stride_vc_blk",
        "+ (blk * stride_vc_blk).to(tl.int32)",
        "KV-WRITE-EXACT",
    ),
    _mutant(
        "tokens at slot -1 are written",
        PLAIN,
        "if slot_idx < 0:",
        "if slot_idx < -1:",
        "KV-WRITE-OWNED",
    ),
    _mutant(
        "the slot of the next token",
        QUANTISED,
        "slot = tl.load(slot_mapping_ptr + tok).to(tl.int64)",
        "slot = tl.load(slot_mapping_ptr + tok).to(tl.int64) + 1",
        "KV-WRITE-OWNED",
        "KV-WRITE-VALUES",
    ),
    _mutant(
        "scales of values by the stride of keys' slots",
        QUANTISED,
        "+ slot_in_blk * stride_vs_slot",
        "+ slot_in_blk * stride_ks_head",
        "KV-WRITE-OWNED",
        "KV-WRITE-VALUES",
    ),
    _mutant(
        "values over keys",
        PAIRED,
        "kv_cache_ptr + tgt_idx + head_size_k + tile_offs",
        "kv_cache_ptr + tgt_idx + head_size_v + tile_offs",
        "KV-WRITE-VALUES",
        origin="contract",
        cases=300,
    ),
    _mutant(
        "a tile past the last head",
        PLAIN,
        """value_tile,
        mask=tile_pos < (num_heads * head_size),""",
        """value_tile,
        mask=tile_pos < (num_heads * head_size + 1),""",
        "KV-WRITE-OWNED",
        "KV-WRITE-STORES",
        "KV-WRITE-VALUES",
        "KV-WRITE-KEEPS",
        origin="contract",
        cases=300,
    ),
)

MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    (OPS, PLAIN),
    (OPS, QUANTISED),
    (OPS, PAIRED),
)
