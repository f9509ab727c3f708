"""What may become of one layer's spec on its way through planning.

`given` is the layer as it was built, `final` as it will be allocated; each law is a
statement about the two.
"""

from dataclasses import replace
from typing import NamedTuple

from invariants.specs import (
    WINDOWED,
    AttentionShape,
    Kind,
    LayerSpec,
    SeenLayer,
    aligned,
    content_bytes,
)

# What planning for a drafter, or the spec that a group shares, may say anew of a layer:
# a window that is only noted, and what holds for the group if for any of its layers.
REPLANNED = frozenset(
    (
        *("sliding_window", "attention_chunk_size", "extra_retained_tokens"),
        *("non_causal", "is_draft"),
    )
)


class Fault(NamedTuple):
    """A broken law: its invariant's id, and the cause with its numbers."""

    law: str
    text: str


def layer_faults(
    *, given: SeenLayer, final: SeenLayer, may_pad: tuple[Kind, ...], promotes: bool
) -> list[Fault]:
    """Laws that a layer's final spec breaks.

    Args:
        given: The layer as its own code built it.
        final: The layer as it is to be allocated.
        may_pad: Kinds that the release reads through a padded stride.
        promotes: Whether a windowed layer may be allocated as full attention, as
            `--disable-hybrid-kv-cache-manager` documents.
    """
    name, old, new = given.name, given.spec, final.spec
    promoted = promotes and old.kind in WINDOWED and new.kind == "full"
    faults = []
    content = content_bytes(replace(old, block_size=new.block_size))
    if final.page_bytes < content:
        faults.append(
            Fault(
                "PAGE-CONTENT",
                f"{name}: {new.block_size} tokens hold {content} bytes, the page "
                f"{final.page_bytes}",
            )
        )
    if not _padding_is_read(given, final, may_pad):
        faults.append(
            Fault(
                "PAGE-STRIDE",
                f"{name}: a {new.kind} page of {content} bytes was padded to "
                f"{final.page_bytes}, and the release has no reader for that",
            )
        )
    changed = _changed(old, new, promoted=promoted) or _told_anew(
        given, final, replanned=promotes, promoted=promoted
    )
    if changed:
        faults.append(Fault("PAGE-FIELDS", f"{name}: {changed}"))
    if _half_empty(given, final, content):
        faults.append(
            Fault(
                "PAGE-WASTE",
                f"{name}: {content} bytes in a page of {final.page_bytes}, although "
                f"{2 * new.block_size} tokens fit where it keeps {new.block_size}",
            )
        )
    return faults


def refusal_needed(layers: tuple[SeenLayer, ...], must_pad: tuple[Kind, ...]) -> bool:
    """Whether no way that the release documents brings these layers to one page.

    Args:
        layers: As they were given.
        must_pad: Kinds that the release's documentation promises to pad; other layers
            must divide the largest page.
    """
    largest = max(layer.page_bytes for layer in layers)

    def unified(layer: SeenLayer) -> bool:
        if layer.page_bytes == largest or layer.spec.kind in must_pad:
            return True
        scales = layer.spec.mamba is None and not is_padded(layer)
        return scales and largest % layer.page_bytes == 0

    return not all(unified(layer) for layer in layers)


def is_padded(layer: SeenLayer) -> bool:
    """Whether a page is larger than its content or was told a size of its own."""
    return layer.spec.page_size_padded is not None or (
        layer.page_bytes != content_bytes(layer.spec)
    )


def has_small_padded_attention(layers: tuple[SeenLayer, ...]) -> bool:
    """Whether an attention layer is padded and yet below the largest page."""
    largest = max((layer.page_bytes for layer in layers), default=0)
    return any(
        layer.spec.mamba is None and is_padded(layer) and layer.page_bytes < largest
        for layer in layers
    )


def _padding_is_read(
    given: SeenLayer, final: SeenLayer, may_pad: tuple[Kind, ...]
) -> bool:
    """A kind with a reader, no padding, or no more of it per token than was given."""
    content = content_bytes(replace(given.spec, block_size=final.spec.block_size))
    if final.spec.kind in may_pad or final.page_bytes <= content:
        return True
    shape = given.spec.attention
    if shape is not None and shape.alignment is not None:
        return final.page_bytes == aligned(content, shape.alignment)
    return (
        final.page_bytes * given.spec.block_size
        == given.page_bytes * final.spec.block_size
    )


def _half_empty(given: SeenLayer, final: SeenLayer, content: int) -> bool:
    """Whether planning padded an attention page that twice the tokens would fit."""
    emptier = (
        final.page_bytes * given.spec.block_size
        > given.page_bytes * final.spec.block_size
    )
    return emptier and given.spec.mamba is None and 2 * content <= final.page_bytes


def _changed(old: LayerSpec, new: LayerSpec, *, promoted: bool) -> str | None:
    """The first field that planning changed and must not, with both values."""
    if old.kind != new.kind and not promoted:
        return f"kind {old.kind} became {new.kind}"
    if old.mamba != new.mamba:
        return f"state {old.mamba} became {new.mamba}"
    # Full attention notes the window of layers that it was merged with or was made of.
    windowed = new.kind in WINDOWED
    before = _stored(old.attention, windowed=windowed)
    after = _stored(new.attention, windowed=windowed)
    if before != after:
        return f"{before} became {after}"
    multiple = 1 if old.mamba is not None else new.block_size // old.block_size
    if new.block_size != old.block_size * multiple and not promoted:
        return f"blocks of {old.block_size} tokens became blocks of {new.block_size}"
    return None


def _told_anew(
    given: SeenLayer, final: SeenLayer, *, replanned: bool, promoted: bool
) -> str | None:
    """The first field beyond those that are modelled which says something else."""
    before, after = dict(given.fields), dict(final.fields)
    names = before.keys() & after.keys() if promoted else before.keys() | after.keys()
    for name in sorted(names - REPLANNED if replanned else names):
        if before.get(name) != after.get(name):
            return f"{name} {before.get(name)} became {after.get(name)}"
    return None


def _stored(shape: AttentionShape | None, *, windowed: bool) -> AttentionShape | None:
    if shape is None:
        return None
    # A group's merged spec has its padded page and no longer the reason for it.
    return replace(shape, alignment=None, window=shape.window if windowed else None)
