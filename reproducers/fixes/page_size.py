"""Fixed implementations for page sizes: unification anew, planning by small edits.

Unification scales blocks where that is exact, pads what the release can read through a
padded stride, and refuses the rest in the documented way.
"""

from dataclasses import replace
from typing import Any

from fuzz.edits import Replacement, SourceEdit
from fuzz.targets._kv_cache_specs import (
    PLANNING_MODULES,
    UNIFY_FUNCTION,
    kind_of,
    padded_kinds,
)
from invariants.page_size import PADDED_ATTENTION, PADDING_SITES
from reproducers.fix import Fix


def one_page_size(kv_cache_spec: dict[str, Any]) -> dict[str, Any]:
    """Bring all layers to the largest page.

    A layer whose pages divide the largest gets more tokens per block. A Mamba layer is
    padded. An attention layer that the release reads through a padded stride gets twice
    the tokens as long as they fit, so that half a page at most is left empty, and is
    padded; one that was padded before keeps its share of padding elsewhere.

    Args:
        kv_cache_spec: The tree's spec objects by layer name.

    Returns:
        New specs in the same order; the input is not changed.

    Raises:
        NotImplementedError: When a layer can be neither scaled nor padded.
    """
    largest = max((spec.page_size_bytes for spec in kv_cache_spec.values()), default=0)
    return {
        name: spec if spec.page_size_bytes == largest else _grown(name, spec, largest)
        for name, spec in kv_cache_spec.items()
    }


def _grown(name: str, spec: Any, largest: int) -> Any:
    kind = kind_of(spec)
    if kind == "mamba":
        return replace(spec, page_size_padded=largest)
    times, rest = divmod(largest, spec.page_size_bytes)
    if rest == 0:
        # MLA's own alignment is computed anew for the larger block.
        scaled = replace(
            spec, block_size=spec.block_size * times, page_size_padded=None
        )
        if scaled.page_size_bytes == largest:
            return scaled
    # Releases from 0.26 to 0.32 ask each spec whether its backend reads such pages.
    opted_in = getattr(spec, "indexes_kv_by_block_stride", True)
    may_pad, _ = padded_kinds(opted_in=True)
    if kind in may_pad and opted_in:
        return _filled(replace(spec, page_size_padded=None), largest)
    if rest == 0 and kind != "mla":
        return replace(
            spec, block_size=spec.block_size * times, page_size_padded=largest
        )
    raise NotImplementedError(
        f"{name}: pages of {spec.page_size_bytes} bytes do not divide {largest}, and "
        f"{kind} layers cannot be padded"
    )


def _filled(bare: Any, largest: int) -> Any:
    """A padded page with as many tokens as doubling the block fits into it."""
    # A backend that splits blocks into kernel blocks of fixed sizes cannot split padded
    # ones (`MultipleOf` in 0.33.0), so its blocks stay within one kernel block.
    limit = getattr(getattr(bare, "block_stride_alignment", None), "base", largest)
    block_size, content = bare.block_size, bare.page_size_bytes
    while 2 * content <= largest and 2 * block_size <= limit:
        block_size, content = 2 * block_size, 2 * content
    return replace(bare, block_size=block_size, page_size_padded=largest)


_UNIFY = Replacement(
    modules=PLANNING_MODULES,
    function=UNIFY_FUNCTION,
    implementation="reproducers.fixes.page_size:one_page_size",
)
# Skipped layers share a page that was measured on the target's heads; a drafter's
# sliding-window layer may hold more.
_SHARED_PAGE = SourceEdit(
    modules=("vllm.model_executor.layers.attention.attention",),
    function="Attention.get_kv_cache_spec",
    old="page_size_padded=shared_page,",
    new=(
        "page_size_padded=shared_page "
        "if sw_block_size * sw_per_token <= (shared_page or 0) else None,"
    ),
)
# A layer that becomes full attention keeps how it is stored.
_PROMOTED = SourceEdit(
    modules=PLANNING_MODULES,
    function="unify_hybrid_kv_cache_specs",
    old="sliding_window=spec.sliding_window,",
    new=(
        "sliding_window=spec.sliding_window, head_size_v=spec.head_size_v, "
        "kv_quant_mode=spec.kv_quant_mode,"
    ),
)
_FOREIGN_LAYERS = SourceEdit(
    modules=PLANNING_MODULES,
    function="get_kv_cache_config_from_groups",
    old="in group_spec.kv_cache_specs.items():",
    new=(
        "in [(n, s) for n, s in group_spec.kv_cache_specs.items() "
        "if n in group.layer_names]:"
    ),
)


# One block's pages in the group that has most of them: what the null block costs.
_NULL_BLOCK = SourceEdit(
    modules=PLANNING_MODULES,
    function="get_kv_cache_configs",
    old="_check_enough_kv_cache_memory(\n            avail_mem,",
    new="""_check_enough_kv_cache_memory(
            avail_mem
            - max(
                sum(
                    getattr(g.kv_cache_spec, "kv_cache_specs", {})
                    .get(name, g.kv_cache_spec)
                    .page_size_bytes
                    for name in g.layer_names
                )
                for g in groups
            ),""",
)
# Pages of two sizes that do not come in equal numbers are no repeating pattern, and a
# split by the pattern loses layers or leaves groups empty.
_WHOLE_BUCKETS = SourceEdit(
    modules=PLANNING_MODULES,
    function="_get_packed_kv_cache_groups",
    old="if anchor_bytes and is_state_bucket(spec):",
    new="if anchor_bytes and balanced and is_state_bucket(spec):",
)

_SPEC_SITES = (*PADDING_SITES, PADDED_ATTENTION)

FIXES: tuple[Fix, ...] = (
    Fix(
        name="scales and pads pages; skipped layers share a page where they fit",
        sites=_SPEC_SITES,
        edits=(_UNIFY, _SHARED_PAGE),
    ),
    Fix(name="scales blocks and pads pages", sites=_SPEC_SITES, edits=(_UNIFY,)),
    Fix(
        name="scales and pads pages; promoted layers keep their storage",
        sites=("get_kv_cache_groups",),
        edits=(_UNIFY, _PROMOTED),
    ),
    Fix(
        name="scales blocks and pads pages",
        sites=("get_kv_cache_groups",),
        edits=(_UNIFY,),
    ),
    Fix(
        name="splits only buckets that are a repeating pattern",
        sites=("UniformTypeKVCacheSpecs.is_uniform_type", "_check_exact_partition"),
        edits=(_WHOLE_BUCKETS,),
    ),
    Fix(
        name="places a worker's own layers only",
        sites=("get_kv_cache_configs",),
        edits=(_FOREIGN_LAYERS,),
    ),
    Fix(
        name="keeps the null block out of what requests may use",
        sites=("get_kv_cache_configs",),
        edits=(_NULL_BLOCK,),
    ),
)
