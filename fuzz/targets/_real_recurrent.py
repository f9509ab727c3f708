"""Correct launches of the gated delta rule's and the causal convolution's kernels."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from fuzz.targets._real_launch import (
    NULL_BLOCK,
    RealLaunch,
    all_written,
    as_defined,
    imported,
    ints,
    owned,
    read_only,
    starts_of,
)
from fuzz.targets._real_states import CONV_DIM, CONV_WIDTH, POOL_BLOCKS, layer_states
from invariants.memory.regions import Memory

_OPS = (
    "vllm.third_party.flash_linear_attention.ops",
    "vllm.model_executor.layers.fla.ops",
)


def _op(name: str) -> tuple[str, ...]:
    return tuple(f"{folder}.{name}" for folder in _OPS)


_RECURRENT, _SIGMOID, _CHUNK = (
    _op("fused_recurrent"),
    _op("fused_sigmoid_gating"),
    _op("chunk"),
)
_CONV = ("vllm.model_executor.layers.mamba.ops.causal_conv1d",)

# Qwen3-Next: 16 heads of queries and keys, 32 of values, all of 128.
HEADS, VALUE_HEADS, SIZE = 16, 32, 128


def _heads(tokens: int, heads: int) -> torch.Tensor:
    return torch.empty(1, tokens, heads, SIZE, dtype=torch.bfloat16)


def _tables(
    queries: Sequence[int], drafts: int
) -> tuple[torch.Tensor, set[int], set[int]]:
    """State indices ``[requests, 1 + drafts]``, and blocks read and written.

    The first request is padding. Blocks are the pool's last ones; of a request's, one
    per token of this step is written, and the one that its last step accepted is read.
    """
    table = torch.full((len(queries), 1 + drafts), NULL_BLOCK, dtype=torch.int32)
    read, write = set(), set()
    block = POOL_BLOCKS
    for request, query in enumerate(queries):
        if not request:
            continue
        for token in range(1 + drafts):
            block -= 7
            table[request, token] = block
            if token < max(query, 1):
                write.add(block)
        read.add(int(table[request, _accepted(request, drafts) - 1]))
    return table, read, write


def _accepted(request: int, drafts: int) -> int:
    """How many tokens a request's last step accepted."""
    return request % (drafts + 1) + 1 if drafts else 1


def _recurrent(
    memory: Memory, *, queries: Sequence[int], drafts: int, sigmoid: bool
) -> None:
    states = layer_states(drafts=drafts).temporal
    table, read, write = _tables(queries, drafts)
    tokens, starts = sum(queries), starts_of(queries)
    query, key = _heads(tokens, HEADS), _heads(tokens, HEADS)
    value = _heads(tokens, VALUE_HEADS)
    accepted = ints(_accepted(request, drafts) for request in range(len(queries)))
    indices = table if drafts else table[:, 0].contiguous()
    owned(memory, states, readable=read, writable=write)
    read_only(memory, query, key, value, indices, starts, accepted)
    shared: dict[str, Any] = {
        "initial_state": states,
        "inplace_final_state": True,
        "cu_seqlens": starts,
        "ssm_state_indices": indices,
        "num_accepted_tokens": accepted if drafts else None,
        "use_qk_l2norm_in_kernel": True,
    }
    if sigmoid:
        gates = [torch.empty(tokens, VALUE_HEADS, dtype=torch.bfloat16) for _ in "ab"]
        weights = [torch.empty(VALUE_HEADS) for _ in "ab"]
        read_only(memory, *gates, *weights)
        imported(*_SIGMOID).fused_sigmoid_gating_delta_rule_update(
            A_log=weights[0],
            a=gates[0],
            b=gates[1],
            dt_bias=weights[1],
            q=query,
            k=key,
            v=value,
            **shared,
        )
        return
    decay, beta = (
        torch.empty(1, tokens, VALUE_HEADS),
        torch.empty(1, tokens, VALUE_HEADS),
    )
    read_only(memory, decay, beta)
    imported(*_RECURRENT).fused_recurrent_gated_delta_rule(
        q=query, k=key, v=value, g=decay, beta=beta, **shared
    )


def _packed(memory: Memory, *, batch: int) -> None:
    """Decode on the projection's own rows; the first request is padding."""
    states = layer_states(drafts=0).temporal
    table, read, write = _tables([1] * batch, 0)
    channels = 2 * HEADS * SIZE + VALUE_HEADS * SIZE
    mixed = torch.empty(batch, channels + 64, dtype=torch.bfloat16)[:, :channels]
    gates = torch.empty(batch, 2 * VALUE_HEADS, dtype=torch.bfloat16)
    weights = [torch.empty(VALUE_HEADS) for _ in "ab"]
    indices = table[:, 0].contiguous()
    out = torch.empty(batch, 1, VALUE_HEADS, SIZE, dtype=torch.bfloat16)
    memory.scratch(out)
    owned(memory, states, readable=read, writable=write)
    read_only(memory, mixed, gates, *weights, indices)
    imported(*_RECURRENT).fused_recurrent_gated_delta_rule_packed_decode(
        mixed_qkv=mixed,
        a=gates[:, :VALUE_HEADS],
        b=gates[:, VALUE_HEADS:],
        A_log=weights[0],
        dt_bias=weights[1],
        scale=SIZE**-0.5,
        initial_state=states,
        out=out,
        ssm_state_indices=indices,
        use_qk_l2norm_in_kernel=True,
    )
    all_written(memory, out)


def _chunked(memory: Memory, *, queries: Sequence[int]) -> None:
    """Prompts in chunks of 64."""
    tokens, starts = sum(queries), starts_of(queries)
    query, key = _heads(tokens, HEADS), _heads(tokens, HEADS)
    value = _heads(tokens, VALUE_HEADS)
    decay, beta = (
        torch.empty(1, tokens, VALUE_HEADS),
        torch.empty(1, tokens, VALUE_HEADS),
    )
    state = torch.empty(len(queries), VALUE_HEADS, SIZE, SIZE, dtype=torch.bfloat16)
    read_only(memory, query, key, value, decay, beta, state, starts)
    imported(*_CHUNK).chunk_gated_delta_rule(
        q=query,
        k=key,
        v=value,
        g=decay,
        beta=beta.to(torch.bfloat16),
        initial_state=state,
        output_final_state=True,
        cu_seqlens=starts,
        use_qk_l2norm_in_kernel=True,
    )


def _conv_states(drafts: int) -> torch.Tensor:
    """``[blocks, channels, window]``: the layer's window, channels side by side."""
    return layer_states(drafts=drafts).conv.transpose(1, 2)


def _mixed(tokens: int) -> torch.Tensor:
    """``[tokens, channels]`` of the projection, whose rows hold more than those."""
    return torch.empty(tokens, CONV_DIM + 4096, dtype=torch.bfloat16)[:, :CONV_DIM]


def _weights(memory: Memory) -> tuple[torch.Tensor, torch.Tensor]:
    weight = torch.empty(CONV_DIM, CONV_WIDTH, dtype=torch.bfloat16)
    bias = torch.empty(CONV_DIM, dtype=torch.bfloat16)
    read_only(memory, weight, bias)
    return weight, bias


def _conv_prefill(memory: Memory, *, queries: Sequence[int]) -> None:
    """Prompts, some with a state before them; the first is padding."""
    states = _conv_states(0)
    table, blocks, _ = _tables(queries, 0)
    indices = table[:, 0].contiguous()
    starts = starts_of(queries)
    started = torch.tensor([request % 2 == 1 for request in range(len(queries))])
    mixed = _mixed(sum(queries))
    weight, bias = _weights(memory)
    owned(memory, states.transpose(1, 2), readable=blocks, writable=blocks)
    owned(memory, states, readable=blocks, writable=blocks)
    read_only(memory, mixed, indices, starts, started)
    as_defined(imported(*_CONV), "causal_conv1d_fn")(
        mixed.transpose(0, 1),
        weight,
        bias,
        activation="silu",
        conv_states=states,
        has_initial_state=started,
        cache_indices=indices,
        query_start_loc=starts,
    )


def _conv_decode(memory: Memory, *, queries: Sequence[int], drafts: int) -> None:
    """Decodes of one token, or of one and some drafts; the first is padding."""
    states = _conv_states(drafts)
    table, _, _ = _tables(queries, drafts)
    indices = table[:, 0].contiguous()
    blocks = {int(block) for block in indices if int(block) != NULL_BLOCK}
    mixed = torch.empty(sum(queries), CONV_DIM, dtype=torch.bfloat16)
    weight, bias = _weights(memory)
    owned(memory, states, readable=blocks, writable=blocks)
    read_only(memory, indices)
    speculative: dict[str, Any] = {}
    if drafts:
        starts = starts_of(queries)
        accepted = ints(_accepted(request, drafts) for request in range(len(queries)))
        read_only(memory, starts, accepted)
        speculative = {
            "num_accepted_tokens": accepted,
            "query_start_loc": starts,
            "max_query_len": 1 + drafts,
        }
    as_defined(imported(*_CONV), "causal_conv1d_update")(
        mixed,
        states,
        weight,
        bias,
        "silu",
        conv_state_indices=indices,
        **speculative,
    )


_CPU_TAKES_OVER = "the CPU platform gives the wrapper's name to another function"
_DECODES = partial(_recurrent, queries=(0, 1, 1, 1, 1), drafts=0)
_DRAFTS = partial(_recurrent, queries=(0, 4, 4, 4, 2), drafts=3)


def _launch(name: str, module: tuple[str, ...], run: Any, *kernels: str) -> RealLaunch:
    return RealLaunch(
        name=name, module=module, run=run, kernels=tuple((each,) for each in kernels)
    )


def _conv(name: str, kernel: str, run: Any) -> RealLaunch:
    return RealLaunch(
        name=name, kernels=((kernel,),), module=_CONV, run=run, note=_CPU_TAKES_OVER
    )


_FUSED = "fused_recurrent_gated_delta_rule_fwd_kernel"
_GATED = "fused_sigmoid_gating_delta_rule_update_kernel"
LAUNCHES: Sequence[RealLaunch] = (
    _launch(
        "delta rule, decode",
        _RECURRENT,
        partial(_DECODES, sigmoid=False),
        _FUSED,
    ),
    _launch(
        "delta rule, speculative",
        _RECURRENT,
        partial(_DRAFTS, sigmoid=False),
        _FUSED,
    ),
    _launch(
        "delta rule, packed decode",
        _RECURRENT,
        partial(_packed, batch=5),
        "fused_recurrent_gated_delta_rule_packed_decode_kernel",
    ),
    _launch(
        "delta rule with gates, decode",
        _SIGMOID,
        partial(_DECODES, sigmoid=True),
        _GATED,
    ),
    _launch(
        "delta rule with gates, speculative",
        _SIGMOID,
        partial(_DRAFTS, sigmoid=True),
        _GATED,
    ),
    _launch(
        "delta rule in chunks",
        _CHUNK,
        partial(_chunked, queries=(530, 64, 1, 65)),
        "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
        "chunk_fwd_kernel_o",
        "recompute_w_u_fwd_kernel",
    ),
    _conv(
        "convolution of prompts",
        "_causal_conv1d_fwd_kernel",
        partial(_conv_prefill, queries=(9, 530, 2, 64, 1)),
    ),
    _conv(
        "convolution of decodes",
        "_causal_conv1d_update_kernel",
        partial(_conv_decode, queries=(1, 1, 1, 1, 1), drafts=0),
    ),
    _conv(
        "convolution of drafts",
        "_causal_conv1d_update_kernel",
        partial(_conv_decode, queries=(0, 4, 4, 4, 2), drafts=3),
    ),
)
