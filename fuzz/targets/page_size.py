"""Runs page-size unification and the planning of KV caches on a case.

Contract cases call `unify_kv_cache_spec_page_size` on specs made as the case says;
wired ones go through `_hybrid_plan`. Planning moved from `v1/core/kv_cache_utils.py`
(up to 0.32) to `v1/core/kv_cache_planning.py`.
"""

from typing import Any

from fuzz.edits import SourceEdit
from fuzz.runtime import Control, Runtime
from fuzz.targets._escaped import tree_raised
from fuzz.targets._hybrid_plan import planned
from fuzz.targets._kv_cache_specs import (
    PLANNING_MODULES,
    UNIFY_FUNCTION,
    made,
    padded_kinds,
    planning_module,
    seen,
)
from invariants.model import Raised
from invariants.page_size import Case, Observation, Unified, UnifyCalls
from invariants.specs import LayerSpec, SeenLayer

RUNTIME = Runtime(platform="cpu", triton="jit")

CONTROLS: tuple[Control, ...] = (
    Control(
        name="page_size: unifies in place",
        origin="contract",
        edits=(
            SourceEdit(
                modules=PLANNING_MODULES,
                function=UNIFY_FUNCTION,
                old="new_kv_cache_spec = {}",
                new="new_kv_cache_spec = kv_cache_spec",
            ),
        ),
        invariant="PAGE-UNIFY-INPUT",
        cases=200,
    ),
    Control(
        name="page_size: plans one block too many",
        origin="wired",
        edits=(
            SourceEdit(
                modules=PLANNING_MODULES,
                function="get_kv_cache_config_from_groups",
                old="num_blocks = available_memory // bytes_per_block",
                new="num_blocks = available_memory // bytes_per_block + 1",
            ),
            SourceEdit(
                modules=PLANNING_MODULES,
                function="get_num_blocks",
                old="num_blocks = max(num_blocks, 0)",
                new="num_blocks = num_blocks + 1",
            ),
        ),
        invariant="PAGE-BLOCKS",
        cases=200,
    ),
)


def absent() -> str | None:
    """Why this tree has no page-size unification, None when it has."""
    if planning_module() is None:
        return f"no function {UNIFY_FUNCTION} in {' or '.join(PLANNING_MODULES)}"
    return None


def run(case: Case) -> Observation:
    """Run the tree's code on a case and observe what it did."""
    may_pad, must_pad = padded_kinds(opted_in=case.config is None)
    if case.config is None:
        calls = _unify_calls(case.layers)
        return Observation(may_pad=may_pad, must_pad=must_pad, unify=calls)
    plan = planned(case.config)
    return Observation(may_pad=may_pad, must_pad=must_pad, plan=plan)


def _unify_calls(layers: tuple[LayerSpec, ...]) -> UnifyCalls:
    specs = {f"layer.{number}": made(spec) for number, spec in enumerate(layers)}
    # Objects of its own: a function that changes its input must not spoil the other.
    opposite = {f"layer.{n}": made(layers[n]) for n in reversed(range(len(layers)))}
    given = _layers(specs)
    result, first = _unified(specs)
    return UnifyCalls(
        given=given,
        kept=_layers(specs),
        first=first,
        again=None if result is None else _unified(dict(result))[1],
        reordered=_unified(opposite)[1],
    )


def _unified(specs: dict[str, Any]) -> tuple[dict[str, Any] | None, Unified]:
    try:
        result = getattr(planning_module(), UNIFY_FUNCTION)(specs)
        layers = _layers(result)
    except NotImplementedError as refusal:
        # An answer, and so it is from a function of ours in the tree's place.
        name = type(refusal).__name__
        return None, Unified(
            raised=Raised(type=name, message=str(refusal), site=UNIFY_FUNCTION)
        )
    except Exception as error:  # noqa: BLE001 - whatever escapes is what was observed
        return None, Unified(raised=tree_raised(error))
    return result, Unified(raised=None, layers=layers)


def _layers(specs: dict[str, Any]) -> tuple[SeenLayer, ...]:
    return tuple(seen(name, spec) for name, spec in specs.items())
