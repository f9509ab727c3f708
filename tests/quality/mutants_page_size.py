"""Faults planted in page-size unification and in the planning of KV caches."""

from fuzz.edits import SourceEdit
from tests.quality.mutant import Mutant

PLANNING = ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils")
UNIFY = "unify_kv_cache_spec_page_size"
CONFIGURE = "get_kv_cache_config_from_groups"


def _edit(function: str, old: str, new: str) -> SourceEdit:
    return SourceEdit(modules=PLANNING, function=function, old=old, new=new)


WRITTEN: tuple[Mutant, ...] = (
    Mutant(
        name="pads MLA pages like other attention pages",
        origin="contract",
        edits=(
            _edit(
                UNIFY,
                "isinstance(layer_spec, AttentionSpec) and not isinstance(\n"
                "                layer_spec, MLAAttentionSpec\n"
                "            )",
                "isinstance(layer_spec, AttentionSpec)",
            ),
            _edit(UNIFY, "and layer_spec.indexes_kv_by_block_stride", "and True"),
            _edit(
                UNIFY,
                "if max_page_size % layer_page_size != 0:",
                "if max_page_size % layer_page_size != 0 and hasattr(\n"
                "                layer_spec, 'cache_dtype_str'\n"
                "            ):\n"
                "                new_kv_cache_spec[layer_name] = replace(\n"
                "                    layer_spec, page_size_padded=max_page_size\n"
                "                )\n"
                "                continue\n"
                "            if max_page_size % layer_page_size != 0:",
            ),
        ),
        invariants=("PAGE-STRIDE",),
        cases=300,
        size=900,
    ),
    Mutant(
        name="gives a padded Mamba layer longer blocks too",
        origin="contract",
        edits=(
            _edit(
                UNIFY,
                "KVCacheSpec = replace(layer_spec, page_size_padded=max_page_size)",
                "KVCacheSpec = replace(layer_spec, page_size_padded=max_page_size, "
                "block_size=2 * layer_spec.block_size)",
            ),
            _edit(
                UNIFY,
                "assert new_spec.page_size_bytes == max_page_size",
                "if hasattr(new_spec, 'shapes'):\n"
                "                new_spec = replace(new_spec, "
                "page_size_padded=max_page_size)",
            ),
        ),
        invariants=("PAGE-FIELDS",),
        cases=600,
        size=900,
    ),
    Mutant(
        name="forgets that a cache is fp8 while it gives it longer blocks",
        origin="contract",
        edits=(
            _edit(
                UNIFY,
                "new_spec = replace(layer_spec, block_size=new_block_size)",
                "mode = layer_spec.kv_quant_mode\n"
                "                mode = type(mode)(0) if mode == 1 else mode\n"
                "                new_spec = replace(\n"
                "                    layer_spec, block_size=new_block_size, "
                "kv_quant_mode=mode\n"
                "                )",
            ),
        ),
        invariants=("PAGE-FIELDS",),
        cases=300,
        size=900,
    ),
    Mutant(
        name="takes the first layer's page for the largest",
        origin="contract",
        edits=(
            _edit(
                UNIFY,
                "max_page_size = max(page_sizes)",
                "max_page_size = next(iter(kv_cache_spec.values())).page_size_bytes",
            ),
        ),
        invariants=("PAGE-UNIFY-ORDER", "PAGE-UNIFY-ANSWER", "PAGE-UNIFY-REFUSAL"),
        cases=300,
        size=900,
    ),
    Mutant(
        name="drops a layer whose page is the largest already",
        origin="contract",
        edits=(
            _edit(
                UNIFY,
                "new_kv_cache_spec[layer_name] = layer_spec",
                "new_kv_cache_spec.setdefault(str(max_page_size), layer_spec)",
            ),
        ),
        invariants=("PAGE-UNIFY-LAYERS",),
        cases=300,
        size=900,
    ),
    Mutant(
        name="keeps no block for the drafted tokens' states",
        origin="wired",
        edits=tuple(
            SourceEdit(
                modules=("vllm.model_executor.layers.mamba.abstract",),
                function="MambaBase.get_kv_cache_spec",
                old=old,
                new=new,
            )
            for old, new in (
                ("else vllm_config.num_speculative_tokens", "else 0"),
                ("if vllm_config.speculative_config\n", "if False\n"),
            )
        ),
        invariants=("PAGE-BUILT",),
        cases=200,
        size=1200,
    ),
    Mutant(
        name="pads the state to half of the attention page",
        origin="wired",
        edits=(
            SourceEdit(
                modules=("vllm.platforms.interface",),
                function="Platform._align_hybrid_block_size",
                old="cache_config.mamba_page_size_padded = attn_page_size",
                new="cache_config.mamba_page_size_padded = attn_page_size // 2",
            ),
        ),
        invariants=("PAGE-PLAN-ANSWER",),
        cases=200,
        size=1200,
    ),
    Mutant(
        name="refuses windows beside full attention without the hybrid manager",
        origin="wired",
        edits=tuple(
            _edit(
                function,
                "if not (\n        is_kv_cache_spec_uniform(",
                "if len(promoted_specs) > 1 or not (\n"
                "        is_kv_cache_spec_uniform(",
            )
            for function in ("_promote_local_kv_cache_specs",)
        ),
        invariants=("PAGE-PLAN-REFUSAL",),
        cases=600,
        size=1200,
    ),
    Mutant(
        name="takes blocks of 16 tokens only",
        origin="wired",
        edits=(
            SourceEdit(
                modules=("vllm.config.vllm",),
                function="VllmConfig.validate_block_size",
                old="block_size = self.cache_config.block_size",
                new="block_size = self.cache_config.block_size\n"
                "    if block_size > 16:\n"
                "        raise ValueError(block_size)",
            ),
        ),
        invariants=("PAGE-PLAN-REFUSAL",),
        cases=200,
        size=1200,
    ),
    Mutant(
        name="wants a block of full attention to spare",
        origin="wired",
        edits=(
            SourceEdit(
                modules=("vllm.v1.kv_cache_interface",),
                function="FullAttentionSpec.max_memory_usage_bytes",
                old="return cdiv(max_model_len, self.block_size) *",
                new="return (1 + cdiv(max_model_len, self.block_size)) *",
            ),
        ),
        invariants=("PAGE-PLAN-REFUSAL",),
        cases=300,
        size=1200,
    ),
    Mutant(
        name="plans every stage with what the richest has",
        origin="wired",
        edits=(
            _edit(
                "get_kv_cache_configs",
                "min_num_blocks = min(",
                "min_num_blocks = max(",
            ),
        ),
        invariants=("PAGE-MEMORY", "PAGE-BLOCKS"),
        cases=200,
        size=1200,
    ),
    Mutant(
        name="keeps every state in bfloat16",
        origin="wired",
        edits=(
            SourceEdit(
                modules=("vllm.model_executor.layers.mamba.abstract",),
                function="MambaBase.get_kv_cache_spec",
                old="dtypes=self.get_state_dtype()",
                new="dtypes=(__import__('torch').bfloat16,) * 2",
            ),
        ),
        invariants=("PAGE-BUILT",),
        cases=100,
        size=1200,
    ),
    Mutant(
        name="lets pages of one group overlap",
        origin="wired",
        edits=(
            _edit(
                CONFIGURE,
                "byte_offset += len(layer_names) * (",
                "byte_offset += 0 * (",
            ),
            _edit(
                CONFIGURE,
                "if i < len(kv_cache_groups[j].layer_names):\n"
                "                    shared_by.append("
                "kv_cache_groups[j].layer_names[i])",
                "for name in kv_cache_groups[j].layer_names:\n"
                "                    shared_by.append(name)",
            ),
        ),
        invariants=("PAGE-OVERLAP", "PAGE-PLACES"),
        cases=400,
        size=1200,
    ),
)

MECHANICAL: tuple[tuple[tuple[str, ...], str], ...] = (
    (PLANNING, UNIFY),
    (PLANNING, "_get_kv_cache_groups_uniform_page_size"),
    (PLANNING, CONFIGURE),
)
