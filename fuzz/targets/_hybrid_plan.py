"""From a configuration to the plan of its KV caches, through the tree's own code.

The stages are those of an engine's start: block-size alignment as CUDA runs it
(`Platform.update_block_size_for_backend`; the CPU platform has its own), specs from the
layers as model runner V2 collects them, grouping, and the workers' configurations.
The memory that profiling would find is computed from the case instead.
"""

import inspect
from importlib import import_module
from itertools import pairwise
from typing import Any

from fuzz.targets._escaped import tree_raised
from fuzz.targets._hybrid_config import configured
from fuzz.targets._kv_cache_specs import planning_module, seen
from invariants.hybrid_config import Deployment, HybridConfig
from invariants.page_plan import (
    Place,
    Plan,
    Stage,
    Worker,
    blocks_needed,
    bytes_per_block,
)
from invariants.specs import SeenLayer

Groups = tuple[tuple[SeenLayer, ...], ...]
# What one of two pipeline stages has more than the other.
RICHER_BLOCKS = 5


class _Progress:
    """What one run has seen so far; `stage` is the stage that is running."""

    def __init__(self) -> None:
        self.stage: Stage = "align"
        self.layers: tuple[SeenLayer, ...] = ()
        self.groups: Groups = ()
        self.stages: tuple[tuple[str, ...], ...] = ()
        self.memory_bytes: tuple[int, ...] = ()
        self.workers: tuple[Worker, ...] = ()


def planned(case: HybridConfig) -> Plan:
    """Plan a configuration's KV caches; what escapes the tree's code is part of it."""
    progress, raised = _Progress(), None
    with configured(case) as vllm_config:
        try:
            _advance(progress, case, vllm_config)
        except Exception as error:  # noqa: BLE001 - observed, if it is the tree's
            raised = tree_raised(error)
    return Plan(
        stage=progress.stage,
        raised=raised,
        layers=progress.layers,
        groups=progress.groups,
        stages=progress.stages,
        memory_bytes=progress.memory_bytes,
        workers=progress.workers,
    )


def _advance(progress: _Progress, case: HybridConfig, vllm_config: Any) -> None:
    platform = import_module("vllm.platforms.interface").Platform
    platform.update_block_size_for_backend(vllm_config)
    vllm_config.validate_block_size()

    progress.stage = "specs"
    runner = import_module("vllm.v1.worker.gpu.attn_utils")
    specs = runner.get_kv_cache_spec(vllm_config)
    progress.layers = tuple(seen(name, spec) for name, spec in specs.items())
    stages = _stages(specs, case)
    progress.stages = tuple(tuple(stage) for stage in stages)

    progress.stage = "groups"
    groups = _groups(vllm_config, stages, case.deployment)
    progress.groups = tuple(_group_layers(group) for group in groups)

    progress.stage = "configs"
    progress.memory_bytes = _budget(progress, case.deployment)
    planning = planning_module()
    assert planning is not None
    arguments = [vllm_config, stages, list(progress.memory_bytes)]
    if _takes_groups(planning.get_kv_cache_configs):
        arguments.append(groups)
    configs = planning.get_kv_cache_configs(*arguments)
    # The groups that count are those that the workers allocate.
    progress.groups = _allocated_groups(configs)
    progress.workers = tuple(
        Worker(
            layers=names,
            memory_bytes=memory,
            num_blocks=config.num_blocks,
            places=_places(config),
        )
        for config, names, memory in zip(
            configs, progress.stages, progress.memory_bytes, strict=True
        )
    )
    progress.stage = "done"


def _stages(specs: dict[str, Any], case: HybridConfig) -> list[dict[str, Any]]:
    """Layers split evenly over pipeline stages; the drafter is on the last."""
    names = list(specs)
    count = case.deployment.pipeline_stages
    cuts = [len(names) * stage // count for stage in range(count + 1)]
    if case.drafter is not None:
        cuts[1:-1] = [min(cut, len(case.target.layers)) for cut in cuts[1:-1]]
    return [
        {name: specs[name] for name in names[start:end]}
        for start, end in pairwise(cuts)
    ]


def _takes_groups(configure: Any) -> bool:
    """Since 0.33 the caller groups first and hands the groups over."""
    return "global_kv_cache_groups" in inspect.signature(configure).parameters


def _groups(vllm_config: Any, stages: list[dict[str, Any]], served: Deployment) -> Any:
    planning = planning_module()
    assert planning is not None
    layout = import_module("vllm.v1.attention.backends.utils")
    if hasattr(layout, "resolve_kv_cache_layout"):
        _resolve_layout(layout, vllm_config, stages, served)
    if hasattr(planning, "get_global_kv_cache_groups"):
        return planning.get_global_kv_cache_groups(vllm_config, stages)
    merged = {name: spec for stage in stages for name, spec in stage.items()}
    return planning.get_kv_cache_groups(vllm_config, merged)


def _resolve_layout(
    layout: Any, vllm_config: Any, stages: list[dict[str, Any]], served: Deployment
) -> None:
    """Choose the pages' physical layout as the engine core does, from 0.30 on."""
    layers = vllm_config.compilation_config.static_forward_context.values()
    backends = {layer.get_attn_backend() for layer in layers}
    supported = layout.get_supported_kv_cache_layouts(sorted(backends, key=str))
    outermost = [each for each in supported if each.is_block_outermost]
    if served.block_outermost and outermost:
        supported = outermost
    layout.resolve_kv_cache_layout(
        vllm_config,
        [[each.name for each in supported]] * len(stages),
        [spec for stage in stages for spec in stage.values()],
    )


def _group_layers(group: Any) -> tuple[SeenLayer, ...]:
    """A group's layers with their own specs, or with the one that all share."""
    own = getattr(group.kv_cache_spec, "kv_cache_specs", {})
    return tuple(
        seen(name, own.get(name, group.kv_cache_spec)) for name in group.layer_names
    )


def _allocated_groups(configs: list[Any]) -> Groups:
    """The same groups as all workers see them together."""
    by_worker = [config.kv_cache_groups for config in configs]
    return tuple(
        tuple(layer for group in parts for layer in _group_layers(group))
        for parts in zip(*by_worker, strict=True)
    )


def _budget(progress: _Progress, served: Deployment) -> tuple[int, ...]:
    """Bytes for each worker: one request's blocks, more or fewer, and some bytes.

    Of two stages one has more blocks, the first or the last by turns, for all workers
    must plan with what the poorest has.
    """
    blocks = blocks_needed(progress.groups, served, at_most=False)
    blocks += served.spare_blocks
    richer = served.spare_blocks % 2 if len(progress.stages) > 1 else None
    return tuple(
        max(
            0,
            (blocks + (RICHER_BLOCKS if stage == richer else 0))
            * bytes_per_block(progress.groups, names)
            + served.spare_bytes,
        )
        for stage, names in enumerate(progress.stages)
    )


def _places(config: Any) -> tuple[Place, ...]:
    """Where layers' pages lie, from tensors of either form.

    Up to 0.28 a tensor is an allocation that some layers share, or with a block stride
    a slot of each block of the one allocation; from 0.30 on it is a run of layers in
    the one allocation.
    """
    pages = {
        layer.name: layer.page_bytes
        for group in config.kv_cache_groups
        for layer in _group_layers(group)
    }
    places = []
    for number, tensor in enumerate(config.kv_cache_tensors):
        if hasattr(tensor, "layers"):
            spots = [
                (name, 0, tensor.offset + rank * tensor.layer_stride)
                for rank, name in enumerate(tensor.layers)
            ]
        elif getattr(tensor, "block_stride", 0):
            spots = [(name, 0, tensor.offset) for name in tensor.shared_by]
        else:
            spots = [(name, number, 0) for name in tensor.shared_by]
        places += [
            Place(
                layer=name,
                allocation=allocation,
                allocation_bytes=tensor.size,
                offset=offset,
                stride=getattr(tensor, "block_stride", 0) or pages[name],
            )
            for name, allocation, offset in spots
        ]
    return tuple(places)
