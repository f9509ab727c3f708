"""Page sizes of hybrid models: what unifying and planning KV-cache pages must keep.

A contract case is a mix of layer specs for `unify_kv_cache_spec_page_size`; a wired one
is a model, a drafter and a deployment that the tree's own code turns into specs, groups
and memory. The laws themselves: page_laws, page_layers, page_plan.
"""

from dataclasses import dataclass
from typing import Literal

from invariants.hybrid_config import HybridConfig, built_faults, misfit
from invariants.model import Judgement, Origin, Raised, Violation
from invariants.page_laws import INVARIANTS, TARGET
from invariants.page_layers import (
    Fault,
    has_small_padded_attention,
    is_padded,
    layer_faults,
    refusal_needed,
)
from invariants.page_plan import Plan, group_faults, worker_faults
from invariants.page_refusal import REFUSAL, plan_labels, refusal_faults
from invariants.specs import Kind, LayerSpec, SeenLayer, flaw

__all__ = ["INVARIANTS", "Case", "Observation", "judge"]

UNIFY = "unify_kv_cache_spec_page_size"
# Where a wrong page ends: unifying asserts its size, the spec that it is large enough.
PADDING_SITES = (UNIFY, "AttentionSpec.page_size_bytes")
PADDED_ATTENTION = f"{UNIFY}: padded attention"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Layers in dict order for a contract case, a configuration for a wired one."""

    format_version: Literal[1]
    origin: Origin
    layers: tuple[LayerSpec, ...] = ()
    config: HybridConfig | None = None

    def __post_init__(self) -> None:
        if (self.config is None) != (self.origin == "contract") or (
            bool(self.layers) != (self.origin == "contract")
        ):
            raise ValueError("a contract case has layers, a wired one a configuration")
        wrong = [flaw(spec) for spec in self.layers]
        wrong.append(misfit(self.config) if self.config else None)
        if found := next((text for text in wrong if text), None):
            raise ValueError(found)


@dataclass(frozen=True, kw_only=True)
class Unified:
    """What one call of `unify` gave: layers in its order, or what it raised."""

    raised: Raised | None
    layers: tuple[SeenLayer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class UnifyCalls:
    """Calls of `unify` on one mix of layers.

    Attributes:
        given: The input before the first call; `kept` the same input after it.
        first: The call; `again` a call on its result, None when it raised.
        reordered: A call on the same layers in the opposite dict order.
    """

    given: tuple[SeenLayer, ...]
    kept: tuple[SeenLayer, ...]
    first: Unified
    again: Unified | None
    reordered: Unified


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What the tree did.

    Attributes:
        may_pad: Kinds whose padded pages this release can read.
        must_pad: Kinds that its documentation promises to pad.
    """

    may_pad: tuple[Kind, ...]
    must_pad: tuple[Kind, ...]
    unify: UnifyCalls | None = None
    plan: Plan | None = None


def judge(case: Case, observation: Observation) -> Judgement:
    """Judge one observation; see `page_laws` for the laws.

    Raises:
        ValueError: The observation is not one of this case's origin.
    """
    if case.origin == "contract" and observation.unify is not None:
        return _judge_unify(observation.unify, observation)
    if case.config is not None and observation.plan is not None:
        return _judge_plan(case.config, observation.plan, observation)
    raise ValueError(
        f"a {case.origin} case wants "
        f"{'unify calls' if case.origin == 'contract' else 'a plan'} observed"
    )


def _violation(
    fault: Fault, *, origin: Origin, site: str, raised: Raised | None = None
) -> Violation:
    return Violation(
        invariant=fault.law,
        target=TARGET,
        origin=origin,
        site=site,
        message=fault.text,
        evidence={} if raised is None else {"raised": raised.message},
        exception="" if raised is None else raised.type,
    )


def _escape(
    law: str, raised: Raised, layers: tuple[SeenLayer, ...], origin: Origin
) -> Violation:
    """The violation that an undocumented exception is."""
    shown = ", ".join(
        f"{layer.spec.kind} {layer.page_bytes}{' (padded)' if is_padded(layer) else ''}"
        for layer in layers
    )
    text = f"{raised.type} {raised.message!r:.200} for pages: {shown or 'none yet'}"
    # A page that was padded before is another cause than a state that cannot be scaled,
    # with the same assertion at its end.
    padded = raised.site in PADDING_SITES and has_small_padded_attention(layers)
    site = PADDED_ATTENTION if padded else raised.site
    return _violation(Fault(law, text), origin=origin, site=site, raised=raised)


def _judge_unify(calls: UnifyCalls, observation: Observation) -> Judgement:
    given, labels = calls.given, _mix_labels(calls.given)
    answer = "PAGE-UNIFY-ANSWER"
    judged = {answer, "PAGE-UNIFY-INPUT"}
    violations = []
    faults = []
    if calls.kept != given:
        faults.append(Fault("PAGE-UNIFY-INPUT", "the layers that were passed changed"))
    raised = calls.first.raised
    if raised is not None and raised.type != REFUSAL:
        violations.append(_escape(answer, raised, given, "contract"))
    elif raised is not None:
        judged |= {"PAGE-UNIFY-REFUSAL", "PAGE-UNIFY-ORDER"}
        labels.add("refused")
        if not refusal_needed(given, observation.must_pad):
            text = f"refused pages {[layer.page_bytes for layer in given]}"
            faults.append(Fault("PAGE-UNIFY-REFUSAL", text))
        if calls.reordered.raised is None:
            text = "refuses these layers, and not in the opposite order"
            faults.append(Fault("PAGE-UNIFY-ORDER", text))
    else:
        labels.add("unified")
        new = {layer.name: layer for layer in calls.first.layers}
        if any(old.name in new and new[old.name] != old for old in given):
            labels.add("changed")
        judged |= {law.id for law in INVARIANTS if "unified" in (law.contract or ())}
        faults += _unified_faults(calls, observation)
    violations += [_violation(fault, origin="contract", site=UNIFY) for fault in faults]
    return Judgement(
        judged=frozenset(judged),
        violations=tuple(violations),
        labels=frozenset(labels),
    )


def _unified_faults(calls: UnifyCalls, observation: Observation) -> list[Fault]:
    old = {layer.name: layer for layer in calls.given}
    new = {layer.name: layer for layer in calls.first.layers}
    sizes = sorted({layer.page_bytes for layer in calls.first.layers})
    faults = []
    if len(sizes) > 1:
        faults.append(Fault("PAGE-UNIFY-ONE-SIZE", f"pages of {sizes} bytes"))
    if list(old) != [layer.name for layer in calls.first.layers]:
        text = f"layers {list(old)} became {list(new)}"
        faults.append(Fault("PAGE-UNIFY-LAYERS", text))
    if calls.again != calls.first:
        text = "unifying the result changes it, or fails"
        faults.append(Fault("PAGE-UNIFY-AGAIN", text))
    other = calls.reordered
    if other.raised is not None or new != {seen.name: seen for seen in other.layers}:
        text = "the opposite order of layers gives other specs, or fails"
        faults.append(Fault("PAGE-UNIFY-ORDER", text))
    for name in old.keys() & new.keys():
        faults += layer_faults(
            given=old[name],
            final=new[name],
            may_pad=observation.may_pad,
            promotes=False,
        )
    return sorted(faults)


def _mix_labels(layers: tuple[SeenLayer, ...]) -> set[str]:
    largest = max((layer.page_bytes for layer in layers), default=0)
    labels = set()
    for layer in layers:
        below = layer.page_bytes < largest
        if below:
            labels.add("pages differ")
        if layer.spec.mamba is not None:
            where = "below the largest page" if below else "of the largest page"
            labels.add(f"state {where}")
        elif below and largest % layer.page_bytes:
            labels.add("attention page that does not divide")
    if has_small_padded_attention(layers):
        labels.add("padded attention below the largest page")
    return labels


def _judge_plan(
    config: HybridConfig, plan: Plan, observation: Observation
) -> Judgement:
    answer = "PAGE-PLAN-ANSWER"
    judged = {answer}
    violations = []
    faults = [
        ("get_kv_cache_spec", fault) for fault in built_faults(config, plan.layers)
    ]
    if plan.layers:
        judged.add("PAGE-BUILT")
    if plan.raised is not None:
        refused = refusal_faults(config, plan, observation.must_pad)
        if refused is None:
            violations.append(_escape(answer, plan.raised, plan.layers, "wired"))
        else:
            judged.add("PAGE-PLAN-REFUSAL")
            faults += [("get_kv_cache_configs", fault) for fault in refused]
    else:
        judged |= {law.id for law in INVARIANTS if "planned" in (law.wired or ())}
        faults += [
            ("get_kv_cache_groups", fault)
            for fault in group_faults(plan, observation.may_pad)
        ]
        if not any(fault.law == "PAGE-PARTITION" for _, fault in faults):
            faults += [
                ("get_kv_cache_configs", fault)
                for fault in worker_faults(plan, config.deployment)
            ]
    violations += [
        _violation(fault, origin="wired", site=site) for site, fault in faults
    ]
    return Judgement(
        judged=frozenset(judged),
        violations=tuple(violations),
        labels=frozenset(plan_labels(config, plan)),
    )
