"""Correct launches of the paged attention kernels, and of what merges their parts."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from fuzz.targets._real_launch import (
    RealLaunch,
    accepted,
    all_written,
    blocks_at_top,
    imported,
    ints,
    owned,
    read_only,
    starts_of,
    table_of,
    virtual,
)
from invariants.memory.regions import Memory

_UNIFIED = ("vllm.v1.attention.ops.triton_unified_attention",)
_DECODE = ("vllm.v1.attention.ops.triton_decode_attention",)
_MERGE = ("vllm.v1.attention.ops.triton_merge_attn_states",)

# Of Qwen3-Next's full-attention layers (config.json of Qwen3-Next-80B-A3B).
HEADS, KV_HEADS, HEAD_SIZE = 16, 2, 256
_SEGMENTS = 16
# Columns beside those that a request needs; a kernel reads a whole tile of the table.
_SPARE_COLUMNS = 128


def _pools(
    blocks: int, block_size: int, dtype: torch.dtype, kv_heads: int, head_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values ``[blocks, block_size, kv_heads, head_size]``, page by page."""
    pool = virtual((blocks, 2, block_size, kv_heads, head_size), dtype)
    key, value = pool.unbind(1)
    return key, value


def _unified(
    memory: Memory,
    *,
    queries: Sequence[int],
    contexts: Sequence[int],
    block_size: int,
    pool_blocks: int,
    window: int = 0,
    split: bool = False,
    quantised: str = "",
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    head_size: int = HEAD_SIZE,
    sinks: bool = False,
) -> None:
    """Queries are the last tokens of each context; a request without any is padding."""
    unified = imported(*_UNIFIED).unified_attention
    interface = imported("vllm.v1.kv_cache_interface")
    rows = blocks_at_top(contexts, block_size=block_size, pool_blocks=pool_blocks)
    dtypes = {
        "": torch.bfloat16,
        "int8_per_token_head": torch.int8,
        "fp8": torch.float8_e4m3fn,
    }
    key, value = _pools(pool_blocks, block_size, dtypes[quantised], kv_heads, head_size)
    tokens = sum(queries)
    # Query, keys and values of a token lie side by side after the projection.
    fused = torch.empty(tokens, heads + 2 * kv_heads, head_size, dtype=torch.bfloat16)
    query = fused[:, :heads]
    out = torch.empty(tokens, heads, head_size, dtype=torch.bfloat16)
    columns = max(map(len, rows), default=0) + -(-_SPARE_COLUMNS // block_size)
    table = table_of(rows, columns=columns)
    used, starts = ints(contexts), starts_of(queries)
    live = {block for row in rows for block in row}
    owned(memory, key, value, readable=live)
    memory.scratch(out)
    read_only(memory, fused, key, table, used, starts)
    arguments: dict[str, Any] = {}
    if quantised == "int8_per_token_head":
        scales = [
            virtual((pool_blocks, block_size, kv_heads), torch.float32) for _ in "kv"
        ]
        owned(memory, *scales, readable=live)
        read_only(memory, *scales)
        arguments = {"k_scale_cache": scales[0], "v_scale_cache": scales[1]}
    if sinks:
        arguments["sinks"] = torch.zeros(heads, dtype=torch.bfloat16)
    if split:
        width = 1 << (head_size - 1).bit_length()
        shape = (tokens, heads, _SEGMENTS)
        scratch = [torch.empty(*shape, width), torch.empty(shape), torch.empty(shape)]
        for each in scratch:
            memory.scratch(each)
        arguments |= {
            "seq_threshold_3D": 128,
            "num_par_softmax_segments": _SEGMENTS,
            "softmax_segm_output": scratch[0],
            "softmax_segm_max": scratch[1],
            "softmax_segm_expsum": scratch[2],
        }
    scale = torch.ones(1).expand(len(queries), kv_heads) if quantised == "fp8" else None
    unified(
        q=query,
        k=key,
        v=value,
        out=out,
        cu_seqlens_q=starts,
        max_seqlen_q=max(queries, default=0),
        seqused_k=used,
        max_seqlen_k=max(contexts, default=0),
        softmax_scale=head_size**-0.5,
        causal=True,
        window_size=(window - 1, 0) if window else (-1, -1),
        block_table=table,
        softcap=0,
        q_descale=None,
        k_descale=scale,
        v_descale=scale,
        kv_quant_mode=interface.get_kv_quant_mode(quantised or "auto"),
        **arguments,
    )
    all_written(memory, out)


def _decode(
    memory: Memory,
    *,
    heads: int,
    kv_heads: int,
    latent: bool,
    pool_blocks: int,
    page: int = 16,
) -> None:
    """Decode over pages: MLA's latent of 576 and 512, or heads of 128."""
    module = imported(*_DECODE)
    contexts, splits = (1, 700, 5000, 33), 4
    rows = blocks_at_top(contexts, block_size=page, pool_blocks=pool_blocks)
    size_k, size_v = (576, 512) if latent else (128, 128)
    pool = virtual((pool_blocks, page, kv_heads, size_k), torch.bfloat16)
    value = (
        pool[..., :size_v]
        if latent
        else virtual((pool_blocks, page, kv_heads, size_v), torch.bfloat16)
    )
    batch = len(contexts)
    query = torch.empty(batch, heads, size_k, dtype=torch.bfloat16)
    out = torch.empty(batch, heads, size_v, dtype=torch.bfloat16)
    lse = torch.empty(batch, heads, dtype=torch.bfloat16)
    logits = torch.empty(batch, heads, splits, size_v + 1)
    table = table_of(rows, columns=max(map(len, rows)) + 8)
    used = ints(contexts)
    live = {block for row in rows for block in row}
    owned(memory, pool, value, readable=live)
    read_only(memory, query, pool, value, table, used)
    memory.scratch(logits)
    memory.scratch(out)
    module.decode_attention_fwd(
        query,
        pool,
        value,
        out,
        lse,
        table,
        used,
        logits,
        splits,
        size_k**-0.5,
        page,
        **accepted(module.decode_attention_fwd, is_mla=latent),
    )
    all_written(memory, out)


def _merge(memory: Memory, *, fresh: int | None) -> None:
    """Prefix and suffix of 37 tokens; the output's heads are padded."""
    tokens, heads, size = 37, HEADS, 192
    padded = torch.empty(tokens, heads, 256, dtype=torch.bfloat16)
    output = padded[..., :size]
    prefix, suffix = (
        torch.empty(tokens, heads, size, dtype=torch.bfloat16) for _ in range(2)
    )
    prefix_lse, suffix_lse = torch.empty(heads, tokens), torch.empty(heads, tokens)
    memory.scratch(output)
    read_only(memory, prefix, suffix, prefix_lse, suffix_lse)
    merge = imported(*_MERGE).merge_attn_states
    merge(
        output,
        prefix,
        prefix_lse,
        suffix,
        suffix_lse,
        output_lse=torch.empty(heads, tokens),
        prefill_tokens_with_context=fresh,
    )
    all_written(memory, output)


_ATTENTION = (("kernel_unified_attention",),)
_SPLIT = (*_ATTENTION, ("reduce_segments",))


def _attention(name: str, *, blocks: tuple[int, int], **given: Any) -> RealLaunch:
    """Ragged: a long prompt, a chunk of one, a decode, speculative rows, padding."""
    block_size, pool_blocks = blocks
    split = given.get("split", False)
    batch: dict[str, Sequence[int]] = {
        "queries": (530, 64, 1, 4, 4, 0),
        "contexts": (530, 1900, 700, 45, 16, 0),
    }
    if split:
        batch = {"queries": (1, 1, 1, 1), "contexts": (1, 2100, 20_000, 16)}
    given = {**batch, **given}
    return RealLaunch(
        name=f"attention, {name}",
        kernels=_SPLIT if split else _ATTENTION,
        module=_UNIFIED,
        run=partial(_unified, block_size=block_size, pool_blocks=pool_blocks, **given),
    )


# Block size and blocks: each pool lies on both sides of 2**31 elements.
_SMALL, _MIDDLE, _LARGE = (16, 140_000), (544, 4_000), (1056, 2_100)
_STAGES = (("_fwd_kernel_stage1",), ("_fwd_kernel_stage2",))
_GROUPED = (("_fwd_grouped_kernel_stage1",), ("_fwd_kernel_stage2",))


def _decoded(
    name: str,
    kernels: tuple[tuple[str, ...], ...],
    *faults: tuple[str, str, str],
    **given: Any,
) -> RealLaunch:
    return RealLaunch(
        name=f"decode attention, {name}",
        kernels=kernels,
        module=_DECODE,
        run=partial(_decode, **given),
        faults=faults,
    )


def _merged(name: str, fresh: int | None) -> RealLaunch:
    return RealLaunch(
        name=f"merged attention states, {name}",
        kernels=(("merge_attn_states_kernel",),),
        module=_MERGE,
        run=partial(_merge, fresh=fresh),
    )


_MLA = {"heads": 16, "kv_heads": 1, "latent": True}
_MHA = {"heads": 8, "kv_heads": 8, "latent": False}
_AT_MLA = "3728271 x 576 = 2147484096 > 2147483647"
_AT_MHA = "2097152 x 1024 = 2147483648 > 2147483647"
LAUNCHES: Sequence[RealLaunch] = (
    _attention("block 16", blocks=_SMALL),
    _attention("block 544", blocks=_MIDDLE),
    _attention("block 1056", blocks=_LARGE),
    _attention("split, block 16", blocks=_SMALL, split=True),
    _attention("split, block 1056", blocks=_LARGE, split=True),
    _attention("window of 1024 and sinks", blocks=_MIDDLE, window=1024, sinks=True),
    _attention("split, window of 128", blocks=_SMALL, window=128, split=True),
    _attention(
        "int8 per token and head", blocks=_MIDDLE, quantised="int8_per_token_head"
    ),
    _attention("split, fp8", blocks=_LARGE, quantised="fp8", split=True),
    _attention(
        "heads of 80, seven in a group",
        blocks=_SMALL,
        heads=28,
        kv_heads=4,
        head_size=80,
    ),
    _attention("no tokens", blocks=_SMALL, queries=(0, 0), contexts=(0, 0)),
    # 3,728,256 tokens of 576 and 2,097,152 tokens of 1024 elements end before 2**31.
    _decoded("MLA", _GROUPED, pool_blocks=233_016, **_MLA),
    _decoded("heads of their own", _STAGES, pool_blocks=131_072, **_MHA),
    _decoded(
        "MLA, past 2**31 elements",
        _GROUPED,
        ("0.20.1", "K_Buffer", _AT_MLA),
        ("0.20.1", "K_Buffer", _AT_MLA),
        pool_blocks=240_000,
        **_MLA,
    ),
    _decoded(
        "heads of their own, past 2**31 elements",
        _STAGES,
        ("0.20.1", "K_Buffer", _AT_MHA),
        ("0.20.1", "V_Buffer", _AT_MHA),
        pool_blocks=140_000,
        **_MHA,
    ),
    _merged("all with context", None),
    _merged("some without context", 30),
)
