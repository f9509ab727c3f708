"""Laws of a KV-cache plan: groups of layers, and where each layer's pages lie.

Places are judged as byte ranges: block b of a layer is at offset + b * stride, and no
two blocks that may be alive at once share a byte.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants.hybrid_config import Deployment
from invariants.model import Raised
from invariants.page_layers import Fault, layer_faults
from invariants.scheduling import columns_for
from invariants.specs import (
    WHOLE_CONTEXT,
    Bytes,
    Kind,
    LayerSpec,
    SeenLayer,
    family,
)

Stage = Literal["align", "specs", "groups", "configs", "done"]
# Of layers with different strides, so many first and last blocks are compared.
COMPARED_BLOCKS = 16
# A pool has one block that no request gets.
NULL_BLOCKS = 1
# A window's blocks are kept while steps are in flight: one for each of two pipeline
# stages, and as many that are scheduled ahead.
STEPS_IN_FLIGHT = 4
# States of an aligned request beside its drafts': the one read, the one written, and
# one for any release that keeps another.
ALIGNED_STATES = 3


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a layer's pages lie: block b at ``offset + b * stride`` bytes.

    Attributes:
        allocation: Which allocation of the worker, from 0.
        allocation_bytes: Its size.
    """

    layer: str
    allocation: int
    allocation_bytes: Bytes
    offset: Bytes
    stride: Bytes


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One pipeline stage's plan; `layers` are those it was given."""

    layers: tuple[str, ...]
    memory_bytes: Annotated[int, msgspec.Meta(ge=0)]
    num_blocks: int
    places: tuple[Place, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How far a configuration came, and what the tree made of it.

    Attributes:
        stage: The stage that raised, or ``done``.
        layers: As their layers' own code built them.
        groups: The layers of each group with their final specs.
        stages: Names of each worker's layers.
        memory_bytes: What each worker was given, once groups were known.
    """

    stage: Stage
    raised: Raised | None
    layers: tuple[SeenLayer, ...] = ()
    groups: tuple[tuple[SeenLayer, ...], ...] = ()
    stages: tuple[tuple[str, ...], ...] = ()
    memory_bytes: tuple[Bytes, ...] = ()
    workers: tuple[Worker, ...] = ()


def bytes_per_block(
    groups: tuple[tuple[SeenLayer, ...], ...], layers: tuple[str, ...]
) -> int:
    """Bytes that one block costs a worker with these layers.

    A block id belongs to one group at a time, so it needs room for the pages of the
    group that has most.
    """
    return max(
        sum(layer.page_bytes for layer in group if layer.name in layers)
        for group in groups
    )


def blocks_needed(
    groups: tuple[tuple[SeenLayer, ...], ...], served: Deployment, *, at_most: bool
) -> int:
    """Blocks that one request of `max_model_len` tokens holds at its end.

    Args:
        groups: The plan's groups, with final block sizes.
        served: Says how long the request is.
        at_most: False for a number that it cannot do with less than (the last token's
            entry is never written), True for one that is surely enough.
    """
    count = _enough_blocks if at_most else _fewest_blocks
    return sum(count(group[0].spec, served) for group in groups)


def _fewest_blocks(spec: LayerSpec, served: Deployment) -> int:
    if spec.mamba is not None:
        return 1 + spec.mamba.num_speculative_blocks
    tokens = max(served.max_model_len - 1, 1)
    if spec.kind not in WHOLE_CONTEXT:
        window = spec.attention.window if spec.attention else None
        tokens = min(tokens, window or 1) if spec.kind == "sliding_window" else 1
    return columns_for(tokens, spec.block_size)


def _enough_blocks(spec: LayerSpec, served: Deployment) -> int:
    """What one request holds by the most generous of the documented counts."""
    blocks = columns_for(served.max_model_len, spec.block_size)
    if spec.mamba is not None:
        kept = blocks if spec.mamba.cache_mode == "all" else 0
        return kept + ALIGNED_STATES + spec.mamba.num_speculative_blocks
    if spec.kind in WHOLE_CONTEXT:
        return blocks
    window = spec.attention.window if spec.attention else None
    if window is not None:
        kept_tokens = window + STEPS_IN_FLIGHT * served.max_num_batched_tokens
        blocks = min(blocks, columns_for(kept_tokens, spec.block_size))
    # A window need not start with a block.
    return blocks + 1


def group_faults(plan: Plan, may_pad: tuple[Kind, ...]) -> list[Fault]:
    """Laws of grouping that a plan breaks."""
    names = Counter(layer.name for group in plan.groups for layer in group)
    given = {layer.name: layer for layer in plan.layers}
    faults: list[Fault] = []
    if names != Counter(given.keys()):
        off = sorted(n for n in {*names, *given} if names[n] != (n in given))
        faults.append(
            Fault(
                "PAGE-PARTITION", f"layers not in exactly one group: {', '.join(off)}"
            )
        )
    for number, group in enumerate(plan.groups):
        kinds = {(family(layer.spec), layer.spec.block_size) for layer in group}
        if len(kinds) > 1:
            text = ", ".join(f"{kind} by {size}" for kind, size in sorted(kinds))
            faults.append(Fault("PAGE-FAMILY", f"group {number} holds {text} tokens"))
        for layer in group:
            if layer.name in given:
                faults += layer_faults(
                    given=given[layer.name], final=layer, may_pad=may_pad, promotes=True
                )
    return faults


def worker_faults(plan: Plan, served: Deployment) -> list[Fault]:
    """Laws of memory that the workers' plans break."""
    faults: list[Fault] = []
    per_block = [bytes_per_block(plan.groups, worker.layers) for worker in plan.workers]
    allowed = min(
        worker.memory_bytes // block
        for worker, block in zip(plan.workers, per_block, strict=True)
    )
    for number, (worker, block) in enumerate(zip(plan.workers, per_block, strict=True)):
        sizes = {place.allocation: place.allocation_bytes for place in worker.places}
        if sum(sizes.values()) > worker.memory_bytes:
            faults.append(
                Fault(
                    "PAGE-MEMORY",
                    f"worker {number} allocates {sum(sizes.values())} bytes of the "
                    f"{worker.memory_bytes} it was given",
                )
            )
        if worker.num_blocks != allowed:
            faults.append(
                Fault(
                    "PAGE-BLOCKS",
                    f"worker {number} plans {worker.num_blocks} blocks of {block} "
                    f"bytes; memory allows {allowed}",
                )
            )
        faults += _place_faults(worker, plan.groups)
    needed = blocks_needed(plan.groups, served, at_most=False)
    usable = min(worker.num_blocks for worker in plan.workers) - NULL_BLOCKS
    if usable < needed:
        faults.append(
            Fault(
                "PAGE-SERVES",
                f"one request of {served.max_model_len} tokens needs {needed} blocks, "
                f"and {usable} are left beside the null block",
            )
        )
    return faults


def _place_faults(
    worker: Worker, groups: tuple[tuple[SeenLayer, ...], ...]
) -> list[Fault]:
    placed = Counter(place.layer for place in worker.places)
    if placed != Counter(worker.layers):
        return [
            Fault("PAGE-PLACES", f"layers {worker.layers} have places {dict(placed)}")
        ]
    page = {layer.name: layer.page_bytes for group in groups for layer in group}
    group_of = {layer.name: g for g, group in enumerate(groups) for layer in group}
    last = worker.num_blocks - 1
    for place in worker.places:
        end = place.offset + last * place.stride + page[place.layer]
        if end > place.allocation_bytes or place.stride < page[place.layer]:
            return [
                Fault(
                    "PAGE-PLACES",
                    f"{place.layer}: {worker.num_blocks} pages of {page[place.layer]} "
                    f"bytes, {place.stride} apart from {place.offset}, do not fit "
                    f"{place.allocation_bytes} bytes",
                )
            ]
    for number, one in enumerate(worker.places):
        for other in worker.places[:number]:
            same_group = group_of[one.layer] == group_of[other.layer]
            if one.allocation == other.allocation and _collide(
                one, other, page, last, same_block=same_group
            ):
                return [
                    Fault(
                        "PAGE-OVERLAP",
                        f"blocks of {other.layer} and {one.layer} that may be alive at "
                        "once share bytes",
                    )
                ]
    return []


def _collide(
    one: Place, other: Place, page: dict[str, int], last: int, *, same_block: bool
) -> bool:
    """Whether pages of two different blocks, or of one if it may be, share bytes."""
    if one.stride == other.stride:
        # Only the distance of the two block numbers matters.
        around = (one.offset - other.offset) // one.stride
        pairs = [(d, 0) if d >= 0 else (0, -d) for d in range(-around - 2, 3 - around)]
    else:
        blocks = {*range(COMPARED_BLOCKS), *range(last + 1 - COMPARED_BLOCKS, last + 1)}
        pairs = [(b, c) for b in blocks for c in blocks if min(b, c) >= 0]
    for b, c in pairs:
        if max(b, c) > last or (b == c and not same_block):
            continue
        start = one.offset + b * one.stride
        other_start = other.offset + c * other.stride
        if (
            start < other_start + page[other.layer]
            and other_start < start + page[one.layer]
        ):
            return True
    return False
