"""Correct launches of the kernels that write keys and values, or zero blocks."""

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from fuzz.targets._real_launch import (
    RealLaunch,
    accepted,
    all_written,
    blocks_at_top,
    imported,
    longs,
    owned,
    read_only,
    slots_of,
    virtual,
)
from invariants.memory.regions import Memory

_WRITES = ("vllm.v1.attention.ops.triton_reshape_and_cache_flash",)
_ZEROES = ("vllm.v1.worker.utils",)
_QUERIES, _CONTEXTS = (530, 64, 1, 4), (530, 1900, 700, 45)
# Padding rows of a step that is as long as a captured graph.
_PADDING = 9
KV_HEADS, HEAD_SIZE = 2, 256


def _step(block_size: int, pool_blocks: int) -> tuple[torch.Tensor, set[int]]:
    """Slots of a step's tokens, padding ones last, and the blocks they are in."""
    rows = blocks_at_top(_CONTEXTS, block_size=block_size, pool_blocks=pool_blocks)
    slots = slots_of(rows, _CONTEXTS, _QUERIES, block_size=block_size)
    return longs([*slots, *[-1] * _PADDING]), {slot // block_size for slot in slots}


def _filled(memory: Memory, slots: torch.Tensor, *caches: torch.Tensor) -> None:
    """See that each token's slot was written; slots are along axis 1."""
    for cache in caches:
        for slot in slots.tolist():
            if slot >= 0:
                block, at = divmod(slot, cache.shape[1])
                all_written(memory, cache[block, at])


def _fused(kv_heads: int, *sizes: int) -> list[torch.Tensor]:
    """Keys and values ``[tokens, kv_heads, size]`` as slices of the projection."""
    tokens = sum(_QUERIES) + _PADDING
    fused = torch.empty(tokens, kv_heads * (8 + sum(sizes)), dtype=torch.bfloat16)
    made, start = [], kv_heads * 8
    for size in sizes:
        part = fused[:, start : start + kv_heads * size]
        made.append(part.view(tokens, kv_heads, size))
        start += kv_heads * size
    return made


def _flash(
    memory: Memory, *, block_size: int, pool_blocks: int, dtype: str, heads_first: bool
) -> None:
    write = imported(*_WRITES).triton_reshape_and_cache_flash
    slots, blocks = _step(block_size, pool_blocks)
    element = {"auto": torch.bfloat16, "fp8": torch.float8_e4m3fn}[dtype]
    if heads_first:
        # Heads before slots, keys split into parts of 16 bytes.
        part = 16 // element.itemsize
        key_cache = virtual(
            (pool_blocks, KV_HEADS, HEAD_SIZE // part, block_size, part), element
        )
        value_cache = virtual((pool_blocks, KV_HEADS, HEAD_SIZE, block_size), element)
    else:
        pool = virtual((pool_blocks, 2, block_size, KV_HEADS, HEAD_SIZE), element)
        key_cache, value_cache = pool.unbind(1)
    key, value = _fused(KV_HEADS, HEAD_SIZE, HEAD_SIZE)
    scales = [torch.ones(1) for _ in range(2)]
    owned(memory, key_cache, value_cache, readable=(), writable=blocks)
    read_only(memory, key, value, slots, *scales)
    # The CPU platform has no capability, the GPU that is lowered for has 9.0.
    platform = imported("vllm.platforms").current_platform
    memory.scratch(key_cache)
    memory.scratch(value_cache)
    with mock.patch.object(platform, "has_device_capability", return_value=True):
        write(key, value, key_cache, value_cache, slots, dtype, *scales)
    if heads_first:
        key_cache, value_cache = key_cache.movedim(3, 1), value_cache.movedim(3, 1)
    _filled(memory, slots, key_cache, value_cache)


def _per_token_head(memory: Memory, *, block_size: int, pool_blocks: int) -> None:
    write = imported(*_WRITES).triton_reshape_and_cache_flash_per_token_head_quant
    interface = imported("vllm.v1.kv_cache_interface")
    slots, blocks = _step(block_size, pool_blocks)
    # A page holds data and scales of keys, then those of values: the views of both
    # have the page's stride.
    pool = virtual((pool_blocks, 2, block_size, KV_HEADS, HEAD_SIZE + 4), torch.int8)
    caches = [half[..., :HEAD_SIZE] for half in pool.unbind(1)]
    scales = [
        half[..., HEAD_SIZE:].view(torch.float32)[..., 0] for half in pool.unbind(1)
    ]
    key, value = _fused(KV_HEADS, HEAD_SIZE, HEAD_SIZE)
    owned(memory, *caches, *scales, readable=(), writable=blocks)
    read_only(memory, key, value, slots)
    memory.scratch(pool)
    mode = interface.get_kv_quant_mode("int8_per_token_head")
    write(key, value, *caches, *scales, slots, **accepted(write, kv_quant_mode=mode))
    _filled(memory, slots, *caches, *scales)


def _diffkv(memory: Memory, *, block_size: int, pool_blocks: int) -> None:
    write = imported(*_WRITES).triton_reshape_and_cache_flash_diffkv
    slots, blocks = _step(block_size, pool_blocks)
    size_k, size_v = 192, 128
    cache = virtual(
        (pool_blocks, block_size, KV_HEADS, size_k + size_v), torch.bfloat16
    )
    key, value = _fused(KV_HEADS, size_k, size_v)
    scales = [torch.ones(1) for _ in range(2)]
    owned(memory, cache, readable=(), writable=blocks)
    read_only(memory, key, value, slots, *scales)
    memory.scratch(cache)
    write(key, value, cache, slots, "auto", *scales)
    _filled(memory, slots, cache)


def _zero(memory: Memory, *, block_size: int, kernel_block: int) -> None:
    """Two layers; blocks of the manager are cut into those of the kernel."""
    module = imported(*_ZEROES)
    ratio, blocks = block_size // kernel_block, 2_100
    fresh = [blocks - 1, 7, 1_000]
    layers = {
        name: virtual(
            (blocks * ratio, 2, kernel_block, KV_HEADS, HEAD_SIZE), torch.bfloat16
        )
        for name in ("first", "second")
    }
    for name, layer in layers.items():
        page = layer.view(blocks, -1)
        owned(memory, page, readable=(), writable=fresh)
        memory.table(page, name=name)
    group = SimpleNamespace(
        backend=SimpleNamespace(get_kv_cache_block_dim=lambda *_, **__: 0),
        kernel_block_stride=0,
        kv_cache_group_id=0,
        kv_cache_spec=_full_attention(block_size),
        layer_names=list(layers),
    )
    context = {name: SimpleNamespace(kv_cache=layer) for name, layer in layers.items()}
    shared: dict[str, Any] = {
        "attn_groups_iter": [group],
        "kernel_block_sizes": [kernel_block],
        "static_forward_context": context,
    }
    device = torch.device("cpu")
    if hasattr(module.KVBlockZeroer, "init_meta"):
        zeroer = module.KVBlockZeroer(device, pin_memory=False)
        zeroer.init_meta(cache_dtype="auto", runner_only_attn_layers=set(), **shared)
    else:
        zeroer = module.KVBlockZeroer(device=device, num_blocks=blocks, **shared)
    zeroer.zero_block_ids(fresh)


def _full_attention(block_size: int) -> Any:
    interface = imported("vllm.v1.kv_cache_interface")
    return interface.FullAttentionSpec(
        block_size=block_size,
        num_kv_heads=KV_HEADS,
        head_size=HEAD_SIZE,
        dtype=torch.bfloat16,
    )


def _launch(name: str, kernel: str, run: Any, **given: Any) -> RealLaunch:
    return RealLaunch(
        name=name, kernels=((kernel,),), module=_WRITES, run=partial(run, **given)
    )


_KERNEL = "reshape_and_cache_kernel_flash"
LAUNCHES: Sequence[RealLaunch] = (
    _launch(
        "cache write, block 16",
        _KERNEL,
        _flash,
        block_size=16,
        pool_blocks=140_000,
        dtype="auto",
        heads_first=False,
    ),
    _launch(
        "cache write, block 544",
        _KERNEL,
        _flash,
        block_size=544,
        pool_blocks=4_000,
        dtype="auto",
        heads_first=False,
    ),
    _launch(
        "cache write, block 1056",
        _KERNEL,
        _flash,
        block_size=1056,
        pool_blocks=2_100,
        dtype="auto",
        heads_first=False,
    ),
    _launch(
        "cache write, fp8",
        _KERNEL,
        _flash,
        block_size=1056,
        pool_blocks=2_100,
        dtype="fp8",
        heads_first=False,
    ),
    _launch(
        "cache write, heads first",
        _KERNEL,
        _flash,
        block_size=544,
        pool_blocks=8_000,
        dtype="auto",
        heads_first=True,
    ),
    _launch(
        "cache write, int8 per token and head",
        "_reshape_cache_per_token_head",
        _per_token_head,
        block_size=544,
        pool_blocks=4_000,
    ),
    _launch(
        "cache write, keys and values of different size",
        "reshape_and_cache_kernel_flash_diffkv",
        _diffkv,
        block_size=1056,
        pool_blocks=4_000,
    ),
    RealLaunch(
        name="zeroed blocks",
        kernels=(("_zero_kv_blocks_kernel",),),
        module=_ZEROES,
        run=partial(_zero, block_size=1056, kernel_block=1056),
    ),
    RealLaunch(
        name="zeroed blocks, cut for the kernel",
        kernels=(("_zero_kv_blocks_kernel",),),
        module=_ZEROES,
        run=partial(_zero, block_size=544, kernel_block=32),
    ),
)
