"""Between KV-cache specs as plain values and the tree's own spec objects.

vLLM keeps its spec classes in `v1/kv_cache_interface.py` in every release; what they
call packed and padded content differs, and those differences end here.
"""

import ast
import dataclasses
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from invariants.specs import (
    AttentionShape,
    Kind,
    LayerSpec,
    MambaState,
    SeenLayer,
)

PLANNING_MODULES = ("vllm.v1.core.kv_cache_planning", "vllm.v1.core.kv_cache_utils")
UNIFY_FUNCTION = "unify_kv_cache_spec_page_size"
# Fields on which no page depends, told to every spec whose class has them: a spec that
# is made anew without them shows.
TOLD = {
    "extra_retained_tokens": 3,
    "is_draft": True,
    "max_tp_shards": 2,
    "non_causal": True,
    "num_prefill_checkpoint_blocks": 1,
    "topk_buffer_width": 8,
}
PADDABLE_ATTENTION: tuple[Kind, ...] = ("full", "sliding_window", "chunked_local")


@lru_cache(maxsize=1)
def planning_module() -> ModuleType | None:
    """The module that unifies and plans pages; None when the tree has neither."""
    for name in PLANNING_MODULES:
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            continue
        if hasattr(module, UNIFY_FUNCTION):
            return module
    return None


@lru_cache(maxsize=2)
def padded_kinds(*, opted_in: bool) -> tuple[tuple[Kind, ...], tuple[Kind, ...]]:
    """Kinds that may be padded by unifying, and kinds that are promised to be.

    Read from the function's documentation in the tree's file: 0.20.1 promises to scale
    blocks only, and its views read a padded Mamba page but no padded attention page
    (`v1/worker/gpu_model_runner.py`, `_reshape_kv_cache_tensors`); from 0.24 on padded
    attention pages are read through a strided view, MLA excepted.

    Args:
        opted_in: Whether specs say that their backend reads padded pages, which 0.26
            to 0.32 ask for.
    """
    module = planning_module()
    assert module is not None
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    text = next(
        ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == UNIFY_FUNCTION
    )
    pads_attention = "attention layers" in text and "pad" in text
    optional = "indexes_kv_by_block_stride" in text and not opted_in
    states: tuple[Kind, ...] = ("mamba",)
    attention = PADDABLE_ATTENTION if pads_attention else ()
    may = states + attention
    must = (states if "Mamba layers" in text else ()) + (() if optional else attention)
    return may, must


def made(spec: LayerSpec) -> Any:
    """The tree's spec object for a value.

    Raises:
        ValueError: A kind that this release has no class for.
    """
    import torch
    from vllm.v1 import kv_cache_interface as interface

    if spec.mamba is not None:
        return interface.MambaSpec(
            block_size=spec.block_size,
            shapes=spec.mamba.shapes,
            dtypes=tuple(getattr(torch, dtype) for dtype in spec.mamba.dtypes),
            page_size_padded=spec.page_size_padded,
            mamba_cache_mode=spec.mamba.cache_mode,
            num_speculative_blocks=spec.mamba.num_speculative_blocks,
            **_told(interface.MambaSpec),
        )
    shape = spec.attention
    assert shape is not None
    modes = interface.KVQuantMode
    scaled = (
        modes.INT8_PER_TOKEN_HEAD if shape.dtype == "int8" else modes.FP8_PER_TOKEN_HEAD
    )
    common = {
        "block_size": spec.block_size,
        "num_kv_heads": shape.num_kv_heads,
        "head_size": shape.head_size,
        "dtype": getattr(torch, shape.dtype),
    }
    whole = modes.FP8_PER_TENSOR if common["dtype"].itemsize == 1 else modes.NONE
    common["kv_quant_mode"] = whole if shape.scales == "none" else scaled
    if spec.kind == "mla":
        mla = interface.MLAAttentionSpec
        return mla(**common, **_told(mla), alignment=shape.alignment)
    common["page_size_padded"] = spec.page_size_padded
    if spec.kind == "chunked_local":
        kind = interface.ChunkedLocalAttentionSpec
        common["attention_chunk_size"] = shape.window
    elif spec.kind == "sliding_window":
        kind = interface.SlidingWindowSpec
        common |= {"sliding_window": shape.window, "head_size_v": shape.head_size_v}
    else:
        kind = interface.FullAttentionSpec
        common["head_size_v"] = shape.head_size_v
    fields = kind.__dataclass_fields__
    if "indexes_kv_by_block_stride" in fields:
        common["indexes_kv_by_block_stride"] = True
    if shape.scales != "none" and "state_content_bytes" in fields:
        # Since 0.26 the backend tells a spec what scales cost; the content is the same.
        size = shape.head_size + shape.head_size_v
        common["state_content_bytes"] = size * common["dtype"].itemsize + 8
    return kind(**common, **_told(kind))


def _told(kind: Any) -> dict[str, Any]:
    return {name: TOLD[name] for name in TOLD if name in kind.__dataclass_fields__}


def seen(name: str, spec: Any) -> SeenLayer:
    """The value of a tree's spec object, with the page size that it says itself.

    Raises:
        AssertionError: The object says it is padded to less than it holds.
        ValueError: An object of a class that is not modelled.
    """
    return SeenLayer(
        name=name,
        page_bytes=spec.page_size_bytes,
        spec=_value(spec),
        fields=tuple(
            (field.name, str(getattr(spec, field.name)))
            for field in dataclasses.fields(spec)
            if field.name not in ("block_size", "page_size_padded")
        ),
    )


def kind_of(spec: Any) -> Kind:
    """The kind of a tree's spec object.

    Raises:
        ValueError: An object of a class that is not modelled.
    """
    from vllm.v1 import kv_cache_interface as interface

    kinds: tuple[tuple[Any, Kind], ...] = (
        # A subclass before its base.
        (interface.MLAAttentionSpec, "mla"),
        (interface.FullAttentionSpec, "full"),
        (interface.SlidingWindowSpec, "sliding_window"),
        (interface.ChunkedLocalAttentionSpec, "chunked_local"),
        (interface.MambaSpec, "mamba"),
    )
    for known, kind in kinds:
        if isinstance(spec, known):
            return kind
    raise ValueError(
        f"a spec of class {type(spec).__name__} is not modelled; known: "
        f"{', '.join(known.__name__ for known, _ in kinds)}"
    )


def _value(spec: Any) -> LayerSpec:
    kind = kind_of(spec)
    if kind == "mamba":
        return LayerSpec(
            kind=kind,
            block_size=spec.block_size,
            mamba=MambaState(
                shapes=tuple(tuple(shape) for shape in spec.shapes),
                dtypes=tuple(_dtype_name(dtype) for dtype in spec.dtypes),
                cache_mode=spec.mamba_cache_mode,
                num_speculative_blocks=spec.num_speculative_blocks,
            ),
            page_size_padded=spec.page_size_padded,
        )
    window = getattr(spec, "sliding_window", None)
    if kind == "chunked_local":
        window = spec.attention_chunk_size
    packed = getattr(spec, "state_content_bytes", None)
    packed = packed or getattr(spec, "tq_slot_size", 0) or None
    head_size_v = getattr(spec, "head_size_v", None)
    if kind == "mla":
        head_size_v = 0
    elif head_size_v is None:
        head_size_v = spec.head_size
    return LayerSpec(
        kind=kind,
        block_size=spec.block_size,
        attention=AttentionShape(
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            head_size_v=head_size_v,
            dtype=_dtype_name(spec.dtype),
            scales="per_token_head" if spec.kv_quant_mode.is_per_token_head else "none",
            window=window,
            alignment=getattr(spec, "alignment", None),
            slot_bytes=packed,
        ),
        page_size_padded=spec.page_size_padded,
    )


def _dtype_name(dtype: Any) -> Any:
    return str(dtype).removeprefix("torch.")
