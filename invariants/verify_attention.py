"""Speculative-verify attention over a paged KV cache: its laws, and their judgement.

The process survives (no address outside of the batch's blocks), the output equals dense
float64 attention over the same blocks, and nothing else is written.
"""

from dataclasses import dataclass

from invariants.model import Death, Invariant, Judgement, Raised, Violation
from invariants.scheduling import NULL_BLOCK
from invariants.verify_case import INT32_LIMIT, Case, Kernel, geometry

TARGET = "verify_attention"
SITES: dict[Kernel, str] = {
    "unified_2d": "kernel_unified_attention",
    "unified_3d": "kernel_unified_attention",
    "spec_decode_attn": "SpecDecodeAttention.run",
    "control_broken": "splitkv_control_partial",
    "control_fixed": "splitkv_control_partial",
}


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """The element whose error is the most times what is allowed.

    Attributes:
        outside: Elements beyond their tolerance; NaN counts.
        token: Row of the output.
        got: As text, for JSON has no NaN.
    """

    outside: int
    elements: int
    token: int
    head: int
    dim: int
    got: str
    expected: str
    allowed: str


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a launch did.

    Attributes:
        skipped: The designed reason why nothing ran, "" when it did.
        raised: What escaped the wrapper.
        split: Whether the split-KV path ran.
        block_stride: Of the keys, in elements, as the kernel was given it.
        head_stride: The same.
        scale_stride: Of the scales from block to block in float32, 0 without.
        scale_head_stride: Of the scales from head to head.
        element_bytes: Of the cache.
        mismatch: None when every element is within its tolerance.
        changed: Inputs, pages and neighbouring rows that the call wrote to.
        twin_differs: Elements in which the control's two arms differ, None when only
            one ran.
    """

    skipped: str = ""
    raised: Raised | None = None
    split: bool = False
    block_stride: int = 0
    head_stride: int = 0
    scale_stride: int = 0
    scale_head_stride: int = 0
    element_bytes: int = 0
    mismatch: Mismatch | None = None
    changed: tuple[str, ...] = ()
    twin_differs: int | None = None


# Its name in a target that holds one in an observation of its own.
LaunchObservation = Observation

PAST_ELEMENTS = "block offset beyond 2^31 elements"
PAST_BYTES = "block offset beyond 2^31 bytes, not elements"
PAST_SCALES = "scale offset beyond 2^31"
BELOW = "every offset below 2^31 bytes"
PAST_HEADS = "head offset beyond 2^31 elements"
LAST_BLOCK = "last block of the pool"
SHARED = "shared prefix block"
SPLIT = "split-KV ran"
SINGLE_QUERY = "one query token each"
LONG_QUERY = "more than 8 query tokens"
RAGGED = "ragged batch"

_PLACES = (PAST_ELEMENTS, PAST_BYTES, LAST_BLOCK, SHARED)
_VALUES = ("bfloat16", "float16", "fp8", "int8_per_token_head", SPLIT, SINGLE_QUERY)

ADDRESS = Invariant(
    id="VERIFY-ADDRESS",
    target=TARGET,
    statement=(
        "Every address lies in the blocks that the batch owns; no other page exists "
        "here, so that a killed process (signal 11) is the expected outcome of an "
        "unfixed tree, not an accident of the run."
    ),
    severity="crash",
    wired=_PLACES,
    contract=(*_PLACES, PAST_SCALES, PAST_HEADS),
)
ENDS = Invariant(
    id="VERIFY-ENDS",
    target=TARGET,
    statement="A launch ends within its limits of time and memory.",
    severity="crash",
    wired=(LONG_QUERY,),
    contract=(LONG_QUERY,),
)
RAISES = Invariant(
    id="VERIFY-RAISES",
    target=TARGET,
    statement="A launch that the wrapper's asserts allow raises nothing.",
    severity="crash",
    wired=(RAGGED,),
    contract=(RAGGED,),
)
VALUES = Invariant(
    id="VERIFY-VALUES",
    target=TARGET,
    statement=(
        "The output is dense causal attention over the block tables, within the "
        "rounding that dtype and number of keys allow, whatever unwritten slots hold."
    ),
    severity="corruption",
    wired=(*_VALUES, RAGGED, LONG_QUERY, SHARED),
    contract=(*_VALUES, RAGGED, LONG_QUERY, SHARED),
)
WRITES = Invariant(
    id="VERIFY-WRITES",
    target=TARGET,
    statement="A launch writes its own output rows and nothing else of its arguments.",
    severity="corruption",
    wired=(RAGGED,),
    contract=(RAGGED,),
)
ARMS = Invariant(
    id="VERIFY-ARMS",
    target=TARGET,
    statement=(
        "Where no offset passes 2^31, the control's broken and fixed arms agree bit "
        "for bit: the cure changes addresses only."
    ),
    severity="corruption",
    contract=(BELOW,),
)
INVARIANTS = (ADDRESS, ENDS, RAISES, VALUES, WRITES, ARMS)


def judge(case: Case, observation: Observation | Death) -> Judgement:
    """Check one launch; the controls' own arithmetic is never a finding."""
    if isinstance(observation, Death):
        return _judge_death(case, observation)
    if observation.skipped:
        return Judgement(
            judged=frozenset(),
            violations=(),
            labels=frozenset(),
            skipped=observation.skipped,
        )
    labels = boundaries(case, observation)
    if case.kernel == "control_fixed":
        return _judge_arms(case, observation, labels)
    if observation.raised is not None:
        raised = observation.raised
        violation = _violation(
            case,
            RAISES,
            f"{raised.type}: {raised.message}",
            site=raised.site,
            exception=raised.type,
        )
        return Judgement(
            judged=frozenset({RAISES.id}), violations=(violation,), labels=labels
        )
    violations = []
    if observation.changed:
        changed = ", ".join(observation.changed)
        violations.append(_violation(case, WRITES, f"the call wrote to {changed}"))
    if observation.mismatch is not None:
        violations.append(mismatch_of(case, observation.mismatch, law=VALUES))
    judged = frozenset({ADDRESS.id, ENDS.id, RAISES.id, VALUES.id, WRITES.id})
    return Judgement(judged=judged, violations=tuple(violations), labels=labels)


def _judge_death(case: Case, death: Death) -> Judgement:
    broken = ADDRESS if death.cause in {"signal 11", "signal 7"} else ENDS
    place = geometry(case)
    message = (
        f"the process died ({death.cause}) with blocks up to {case.top_block} of "
        f"{case.layout.pool_blocks}, about {place.block_stride} elements apart, and "
        f"{case.shape.kv_heads} heads, {place.head_stride} apart"
    )
    if broken is ADDRESS:
        message += "; a killed process is the expected outcome of an unfixed tree"
    violation = _violation(
        case,
        broken,
        message,
        exception=death.cause,
        evidence={"top_block": case.top_block, "block_stride": place.block_stride},
    )
    return Judgement(
        judged=frozenset({broken.id}), violations=(violation,), labels=frozenset()
    )


def _judge_arms(
    case: Case, observation: Observation, labels: frozenset[str]
) -> Judgement:
    if observation.twin_differs is None:
        return Judgement(judged=frozenset(), violations=(), labels=labels)
    message = f"the arms differ in {observation.twin_differs} elements"
    violations = (_violation(case, ARMS, message),) if observation.twin_differs else ()
    return Judgement(judged=frozenset({ARMS.id}), violations=violations, labels=labels)


def mismatch_of(case: Case, found: Mismatch, *, law: Invariant) -> Violation:
    """What an output that is not dense attention's breaks."""
    return _violation(
        case,
        law,
        f"{found.outside} of {found.elements} elements are outside their tolerance; "
        f"token {found.token}, head {found.head}, dim {found.dim} is {found.got}, "
        f"expected {found.expected} within {found.allowed}",
        evidence={
            "at": [found.token, found.head, found.dim],
            "got": found.got,
            "expected": found.expected,
            "allowed": found.allowed,
        },
    )


def _violation(
    case: Case,
    law: Invariant,
    message: str,
    *,
    site: str = "",
    exception: str = "",
    evidence: dict[str, int | str | list[int]] | None = None,
) -> Violation:
    return Violation(
        invariant=law.id,
        target=law.target,
        origin=case.origin,
        site=site or SITES[case.kernel],
        message=message,
        evidence=evidence or {},
        exception=exception,
    )


def boundaries(case: Case, observation: Observation) -> frozenset[str]:
    """Boundaries that this launch showed."""
    offset = case.top_block * observation.block_stride
    heads = (case.shape.kv_heads - 1) * observation.head_stride
    scale_heads = (case.shape.kv_heads - 1) * observation.scale_head_stride
    owned = [block for row in case.layout.block_ids[0] for block in row]
    real = [block for block in owned if block != NULL_BLOCK]
    shown = {
        case.dtype: True,
        case.cache: True,
        case.kernel: True,
        PAST_ELEMENTS: offset >= INT32_LIMIT,
        PAST_BYTES: offset < INT32_LIMIT <= offset * observation.element_bytes,
        PAST_HEADS: max(heads, scale_heads) >= INT32_LIMIT,
        BELOW: max(offset, heads) * observation.element_bytes < INT32_LIMIT,
        PAST_SCALES: case.top_block * observation.scale_stride >= INT32_LIMIT,
        LAST_BLOCK: case.top_block == case.layout.pool_blocks - 1,
        SHARED: len(set(real)) < len(real),
        SPLIT: observation.split,
        SINGLE_QUERY: max(case.query_lens) == 1,
        LONG_QUERY: max(case.query_lens) > 8,
        RAGGED: len(set(case.query_lens)) > 1,
        "forgotten columns": len(real) < len(owned),
    }
    return frozenset(label for label, seen in shown.items() if seen)
