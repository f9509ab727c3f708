"""When planning may refuse a configuration, and what a configuration exercises."""

from dataclasses import replace

from invariants.hybrid_config import HybridConfig
from invariants.page_layers import Fault, has_small_padded_attention, refusal_needed
from invariants.page_plan import NULL_BLOCKS, Plan, blocks_needed, bytes_per_block
from invariants.specs import Kind, SeenLayer, content_bytes, family

REFUSAL = "NotImplementedError"
BAD_VALUE = "ValueError"
# Kernels of every attention backend take blocks of multiples of so many tokens.
BACKEND_TOKENS = 16
# Says in its message that an aligned block must fit a step's tokens.
BLOCK_CHECK = "VllmConfig.validate_block_size"


def refusal_faults(
    config: HybridConfig, plan: Plan, must_pad: tuple[Kind, ...]
) -> list[Fault] | None:
    """Judge a plan that raised: None when the error is not a documented one.

    Documented are the check of the aligned block size, ValueError for too little
    memory, for layers that cannot become one type with the hybrid manager off and for
    a block size that no backend takes, and NotImplementedError for pages that cannot
    be unified. Each is needless where a plan plainly exists.
    """
    assert plan.raised is not None
    where = (plan.raised.type, plan.stage)
    if where == (REFUSAL, "groups"):
        needed = refusal_needed(plan.layers, must_pad)
        text = f"refused pages {[layer.page_bytes for layer in plan.layers]}"
    elif where == (BAD_VALUE, "groups"):
        needed = not config.deployment.hybrid_manager and not _promotable(plan.layers)
        text = (
            "refused to group layers although the hybrid manager is on"
            if config.deployment.hybrid_manager
            else "refused layers that are one type once windows are full attention"
        )
    elif where == (BAD_VALUE, "configs"):
        needed = not _ample(config, plan)
        text = f"refused memory of {plan.memory_bytes} bytes, enough for a request"
    elif where == (BAD_VALUE, "align") or plan.raised.site == BLOCK_CHECK:
        needed = not _any_block_fits(config)
        text = "refused a block size although no state asks for any"
    else:
        return None
    return [] if needed else [Fault("PAGE-PLAN-REFUSAL", text)]


def _any_block_fits(config: HybridConfig) -> bool:
    """Whether blocks of any size would do that backends take, and such a one is given.

    It would not where a block must hold a state, or skipped layers share a page with
    quantised ones: both make the blocks grow.
    """
    served = config.deployment
    grows = (
        "mamba" in config.target.layers
        or served.skip_sliding_window
        or served.skip_layer is not None
    )
    return not grows and not (served.block_size or 0) % BACKEND_TOKENS


def _promotable(layers: tuple[SeenLayer, ...]) -> bool:
    """Whether layers are of one type, or plainly become so as full attention.

    Layers that store the same, some of the whole context and the others of one window:
    what ``--disable-hybrid-kv-cache-manager`` is documented for.
    """
    families = {family(each.spec) for each in layers}
    if len(families) == 1:
        return True
    shapes = {
        (
            each.spec.block_size,
            each.page_bytes,
            replace(each.spec.attention, window=None),
        )
        for each in layers
        if each.spec.attention is not None
    }
    kinds = {each.spec.kind for each in layers}
    return (
        kinds == {"full", "sliding_window"} and len(families) == 2 and len(shapes) == 1
    )


def _ample(config: HybridConfig, plan: Plan) -> bool:
    """Whether memory holds one request by the most generous count of its blocks."""
    blocks = NULL_BLOCKS + blocks_needed(plan.groups, config.deployment, at_most=True)
    return all(
        memory >= blocks * bytes_per_block(plan.groups, stage)
        for memory, stage in zip(plan.memory_bytes, plan.stages, strict=True)
    )


def plan_labels(config: HybridConfig, plan: Plan) -> set[str]:
    """Coverage labels of a wired case."""
    target, drafter, served = config.target, config.drafter, config.deployment
    states = [layer for layer in plan.layers if layer.spec.mamba is not None]
    drafted = plan.layers[len(target.layers) :]
    spare = []
    if plan.memory_bytes:
        needed = blocks_needed(plan.groups, served, at_most=False)
        spare = [
            memory // bytes_per_block(plan.groups, stage) - needed
            for memory, stage in zip(plan.memory_bytes, plan.stages, strict=True)
        ]
    too_little = plan.stage == "configs" and plan.raised is not None
    shown = {
        "state": "mamba" in target.layers,
        "no state": "mamba" not in target.layers,
        "drafter": drafter is not None,
        "drafter's page above the state's": bool(states)
        and any(layer.page_bytes > states[0].page_bytes for layer in drafted),
        "padded state": any(
            layer.page_bytes > content_bytes(layer.spec) for layer in states
        ),
        "split over ranks": served.tensor_parallel > 1,
        "two stages": served.pipeline_stages > 1,
        "quantised": target.cache_dtype != "auto",
        "skipped layers": served.skip_sliding_window or served.skip_layer is not None,
        "hybrid manager off": not served.hybrid_manager,
        "block outermost": served.block_outermost,
        "planned": plan.stage == "done",
        "several groups": len(plan.groups) > 1,
        "too little memory": too_little,
        "memory for just one request": any(0 <= blocks <= 1 for blocks in spare),
        "padded attention below the largest page": has_small_padded_attention(
            plan.layers
        ),
    }
    return {label for label, holds in shown.items() if holds}
