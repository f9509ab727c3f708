"""Cases for page sizes: mixes of layers, and models served with drafters.

A configuration is drawn so that it describes a model that could exist: heads divide or
are divided by the ranks, only quantised caches skip layers, and memory lies around what
one request needs.
"""

from hypothesis import strategies as st

from invariants.hybrid_config import (
    CacheDtype,
    Deployment,
    Drafter,
    HybridConfig,
    LayerKind,
    TargetModel,
)
from invariants.model import Origin
from invariants.page_size import Case
from strategies.kv_cache_specs import block_sizes, kv_cache_mixes

TENSOR_PARALLEL = (1, 2, 4, 8)
KV_HEADS = (2, 1, 4, 8, 16, 3, 6)
HEAD_SIZES = (256, 128, 64, 96, 192)
STATE_HEADS = (8, 16, 32, 64)
STATE_KEY_HEADS = (8, 16)
STATE_SIZES = (64, 128, 16)
WINDOWS = (128, 127, 1024, 4096)
SPECULATIVE_TOKENS = (1, 2, 3, 4, 5, 7, 8, 15, 16)
MODEL_LENGTHS = (4096, 1, 2, 127, 4095, 4097, 32768, 262144)
CACHE_DTYPES: tuple[CacheDtype, ...] = (
    "auto",
    "fp8",
    "int8_per_token_head",
    "fp8_per_token_head",
)
# Layers in the order of real hybrids: some states, then attention.
PATTERNS: tuple[tuple[LayerKind, ...], ...] = (
    ("mamba", "full"),
    ("mamba", "mamba", "mamba", "full"),
    ("full", "mamba", "mamba"),
    ("mamba", "sliding_window", "mamba", "full"),
    ("full", "sliding_window"),
    ("sliding_window", "sliding_window", "sliding_window", "full"),
    ("full",),
    ("mamba",),
)
# Beyond one request's blocks: plenty, one for the null block, just as many, too few.
SPARE_BLOCKS = (1000, 1, 0, 2, 3, 16, 64, 4097, -1, -(2**20))
SPARE_BYTES = (0, -1, 1, 4095)


def cases(
    *, origin: Origin, max_layers: int = 6, deployed: bool = True
) -> st.SearchStrategy[Case]:
    """Draw a case.

    Args:
        origin: `contract` for mixes of layer specs, `wired` for configurations.
        max_layers: Most layers of a mix, at least 4; a target model's pattern is
            repeated while it stays within.
        deployed: Whether block sizes known from real deployments are drawn too.

    Raises:
        ValueError: When `max_layers` is below 4.
    """
    if max_layers < 4:
        raise ValueError(f"cases wants max_layers >= 4, got {max_layers}")
    if origin == "contract":
        mixes = kv_cache_mixes(max_layers=max_layers, deployed=deployed)
        return mixes.map(
            lambda layers: Case(format_version=1, origin="contract", layers=layers)
        )
    configs = _configs(max_layers=max_layers, deployed=deployed)
    return configs.map(
        lambda config: Case(format_version=1, origin="wired", config=config)
    )


@st.composite
def _configs(draw: st.DrawFn, *, max_layers: int, deployed: bool) -> HybridConfig:
    ranks = draw(st.sampled_from(TENSOR_PARALLEL))
    target = draw(_targets(ranks, max_layers))
    drafter = draw(st.one_of(st.none(), _drafters(ranks)))
    layers = len(target.layers) + (len(drafter.layers) if drafter else 0)
    quantised = target.cache_dtype != "auto"
    rare = st.integers(0, 7).map(lambda number: number == 7)
    deployment = Deployment(
        tensor_parallel=ranks,
        pipeline_stages=2 if layers > 1 and draw(rare) else 1,
        num_speculative_tokens=draw(st.sampled_from(SPECULATIVE_TOKENS))
        if drafter
        else 0,
        mamba_cache_mode=draw(st.sampled_from(("none", "align", "all"))),
        block_size=draw(
            st.one_of(st.none(), block_sizes(deployed=deployed, multiple=16))
        ),
        skip_sliding_window=quantised and draw(st.booleans()),
        skip_layer=draw(st.one_of(st.none(), st.integers(0, layers - 1)))
        if quantised
        else None,
        max_model_len=draw(st.sampled_from(MODEL_LENGTHS)),
        max_num_batched_tokens=draw(st.sampled_from((8192, 2048))),
        hybrid_manager=not draw(rare),
        block_outermost=draw(rare),
        spare_blocks=draw(st.sampled_from(SPARE_BLOCKS)),
        spare_bytes=draw(st.sampled_from(SPARE_BYTES)),
    )
    return HybridConfig(target=target, drafter=drafter, deployment=deployment)


@st.composite
def _targets(draw: st.DrawFn, ranks: int, max_layers: int) -> TargetModel:
    pattern = draw(st.sampled_from(PATTERNS))
    repeats = draw(st.integers(1, max(1, max_layers // len(pattern))))
    state_key_heads = draw(st.sampled_from(STATE_KEY_HEADS))
    return TargetModel(
        layers=pattern * repeats,
        num_kv_heads=draw(_heads(ranks)),
        head_size=draw(st.sampled_from(HEAD_SIZES)),
        dtype=draw(st.sampled_from(("bfloat16", "float16", "float32"))),
        cache_dtype=draw(st.sampled_from(CACHE_DTYPES)),
        window=draw(st.sampled_from(WINDOWS)),
        state_dtype=draw(st.sampled_from(("auto", "float32"))),
        state_heads=draw(
            st.sampled_from([h for h in STATE_HEADS if h % state_key_heads == 0])
        ),
        state_key_heads=state_key_heads,
        state_head_size=draw(st.sampled_from(STATE_SIZES)),
        state_size=draw(st.sampled_from(STATE_SIZES)),
        conv_kernel=draw(st.sampled_from((4, 2))),
    )


@st.composite
def _drafters(draw: st.DrawFn, ranks: int) -> Drafter:
    return Drafter(
        layers=draw(
            st.sampled_from(
                (
                    ("full",),
                    ("full", "full", "full"),
                    ("sliding_window",),
                    ("sliding_window", "full"),
                )
            )
        ),
        num_kv_heads=draw(_heads(ranks)),
        head_size=draw(st.sampled_from(HEAD_SIZES)),
        window=draw(st.sampled_from(WINDOWS)),
        cache_dtype=draw(st.sampled_from(("target", "auto", "fp8"))),
    )


def _heads(ranks: int) -> st.SearchStrategy[int]:
    """KV heads that are split evenly over the ranks, or repeated on them."""
    return st.sampled_from([h for h in KV_HEADS if not h % ranks or not ranks % h])
