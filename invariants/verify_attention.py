"""Speculative-verify attention over a paged KV cache: cases, geometry and laws.

A case names a pool of any size, block tables, query lengths and a kernel. The laws:
the process survives (no address outside the batch's own blocks), the output equals
dense float64 attention over the same blocks, and nothing else is written.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from invariants.kernel_shapes import KernelShape
from invariants.model import Death, Invariant, Judgement, Origin, Raised, Violation
from invariants.scheduling import NULL_BLOCK, PrefixLayout

TARGET = "verify_attention"
INT32_LIMIT = 2**31
# Virtual memory of one case; 48 bits of address space have room for several.
POOL_BYTES_MAX = 2**44

# unified_3d offers split-KV scratch; whether it is used is the tree's decision.
Kernel = Literal[
    "unified_2d", "unified_3d", "spec_decode_attn", "control_broken", "control_fixed"
]
SITES: dict[Kernel, str] = {
    "unified_2d": "kernel_unified_attention",
    "unified_3d": "kernel_unified_attention",
    "spec_decode_attn": "SpecDecodeAttention.run",
    "control_broken": "splitkv_control_partial",
    "control_fixed": "splitkv_control_partial",
}
Dtype = Literal["bfloat16", "float16", "float32"]
CacheDtype = Literal["auto", "fp8", "int8_per_token_head", "fp8_per_token_head"]
# Where keys and values of a block lie: keys then values (0.20.1), beside each other in
# every head (0.33.0), or in two tensors; scales lie after each head, or in tensors of
# their own.
Page = Literal["halves", "interleaved", "apart"]
# Physical order of tokens and heads: NHD, HND, or all blocks of a head after all of the
# one before (LHBNC of 0.33.0).
Order = Literal["tokens", "heads", "planes"]
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Strides and sizes of a pool, in elements of the cache but where it says else.

    Keys and values have the same strides; float32 scales are measured in float32.
    """

    element_bytes: int
    key_offset: int
    value_offset: int
    block_stride: int
    slot_stride: int
    head_stride: int
    key_scale_offset: int
    value_scale_offset: int
    scale_strides: tuple[int, int, int]
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """One launch.

    Attributes:
        layout: Block tables of one KV-cache group; ``num_tokens`` are the keys of each
            request, its query tokens included, which are the last of them.
        query_lens: ``[requests]`` query tokens, at most 65 (one and 64 drafts).
        window: Keys that a token sees, itself included; 0 for all. Columns that a
            layout has forgotten lie outside of every token's window.
        page: Only for contract cases; of wired ones the release decides.
        order: Whether a page goes token by token, head by head, or has one head only.
        layers: Layers whose pages lie side by side in one block; the last is read.
        padding: Unused elements (contract) or bytes (wired) at the end of each page,
            as pools shared with a larger page have them.
        fused_query: Whether the query is a view of a fused QKV projection.
        seed: Of the contents.
    """

    format_version: Literal[1]
    origin: Origin
    kernel: Kernel
    dtype: Dtype
    cache: CacheDtype
    shape: KernelShape
    layout: PrefixLayout
    query_lens: tuple[Annotated[int, msgspec.Meta(ge=1, le=65)], ...]
    window: Annotated[int, msgspec.Meta(ge=0, le=2**20)]
    page: Page
    order: Order
    layers: Annotated[int, msgspec.Meta(ge=1, le=64)]
    padding: Annotated[int, msgspec.Meta(ge=0, le=2**26, multiple_of=16)]
    fused_query: bool
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]

    def __post_init__(self) -> None:
        layout = self.layout
        if len(layout.block_sizes) != 1 or not layout.num_tokens:
            raise ValueError("a launch needs one KV-cache group and a request")
        if len(self.query_lens) != len(layout.num_tokens):
            raise ValueError(
                f"{len(self.query_lens)} query lengths for {len(layout.num_tokens)} "
                "requests"
            )
        for request, (tokens, length) in enumerate(
            zip(layout.num_tokens, self.query_lens, strict=True)
        ):
            first = tokens - length
            if first < 0:
                raise ValueError(
                    f"request {request} has {length} query tokens of {tokens}"
                )
            forgotten = layout.forgotten_tokens(request)
            if forgotten and not 0 < self.window <= first + 1 - forgotten:
                raise ValueError(
                    f"request {request} has forgotten {forgotten} tokens, and its "
                    f"token {first} sees them: the window is {self.window}"
                )
        if self.scaled and self.shape.head_size % 4:
            raise ValueError(
                f"a head size of {self.shape.head_size} with float32 scales after each "
                "head; it must be a multiple of 4"
            )
        if layout.block_sizes[0] > 2**14:
            size = layout.block_sizes[0]
            raise ValueError(f"a block of {size} tokens; at most 16384")
        size = geometry(self).size_bytes
        if size > POOL_BYTES_MAX:
            raise ValueError(f"a pool of {size} bytes; at most {POOL_BYTES_MAX}")

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.layout.block_sizes[0]

    @property
    def scaled(self) -> bool:
        """Whether every token and head of the cache has a float32 scale."""
        return self.cache.endswith("_per_token_head")

    @property
    def top_block(self) -> int:
        """Largest block id that the launch may read."""
        return max(self.layout.owned_ids())

    @property
    def may_wrap(self) -> bool:
        """Whether an id or a head times its stride passes 2**31 in a contract pool."""
        place = geometry(self)
        strides = [(place.block_stride, place.head_stride)]
        if self.scaled:
            strides.append((place.scale_strides[0], place.scale_strides[2]))
        last = self.shape.kv_heads - 1
        return any(
            max(self.top_block * block, last * head) >= INT32_LIMIT
            for block, head in strides
        )


def geometry(case: Case) -> Geometry:
    """Strides of a contract case's pool; of a wired one, what they are without tree."""
    size = ITEM_BYTES[case.dtype] if case.cache == "auto" else 1
    heads, slots = case.shape.kv_heads, case.block_size
    inline = case.scaled and case.page != "apart"
    width = case.shape.head_size + (4 if inline else 0)
    cell = 2 * width if case.page == "interleaved" else width
    # Heads in a page, and pages of a block: planes keep each head's pages apart.
    inside, planes = (1, heads) if case.order == "planes" else (heads, 1)
    half = slots * inside * cell
    page = half * (2 if case.page == "halves" else 1) + case.padding
    # Scales in line are read as float32: pages start on 4 bytes.
    page = -(-page // 4) * 4
    block_stride = page * case.layers
    first = page * (case.layers - 1)
    plane = case.layout.pool_blocks * block_stride
    slot_stride, head_stride = {
        "tokens": (heads * cell, cell),
        "heads": (cell, slots * cell),
        "planes": (cell, plane),
    }[case.order]
    pool = plane * planes
    value = {
        "halves": first + half,
        "interleaved": first + width,
        "apart": first + pool,
    }
    end = pool * size * (2 if case.page == "apart" else 1)
    if inline:
        scales = (block_stride // 4, slot_stride // 4, head_stride // 4)
        key_scale = (first + case.shape.head_size) // 4
        value_scale = (value[case.page] + case.shape.head_size) // 4
    else:
        scales = (slots * heads, heads, 1)
        key_scale = -(-end // 4)
        value_scale = key_scale + case.layout.pool_blocks * slots * heads
        if case.scaled:
            end = 4 * (value_scale + case.layout.pool_blocks * slots * heads)
    return Geometry(
        element_bytes=size,
        key_offset=first,
        value_offset=value[case.page],
        block_stride=block_stride,
        slot_stride=slot_stride,
        head_stride=head_stride,
        key_scale_offset=key_scale,
        value_scale_offset=value_scale,
        scale_strides=scales,
        size_bytes=end,
    )


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
    labels = _labels(case, observation)
    if observation.skipped:
        return Judgement(judged=frozenset(), violations=(), labels=labels)
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
        violations.append(_mismatch(case, observation.mismatch))
    judged = frozenset({ADDRESS.id, ENDS.id, RAISES.id, VALUES.id, WRITES.id})
    return Judgement(judged=judged, violations=tuple(violations), labels=labels)


def _judge_death(case: Case, death: Death) -> Judgement:
    broken = ADDRESS if death.cause in {"signal 11", "signal 7"} else ENDS
    place = geometry(case)
    message = (
        f"the process died ({death.cause}) with blocks up to {case.top_block} of "
        f"{case.layout.pool_blocks}, about {place.block_stride} elements each"
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


def _mismatch(case: Case, found: Mismatch) -> Violation:
    return _violation(
        case,
        VALUES,
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
        target=TARGET,
        origin=case.origin,
        site=site or SITES[case.kernel],
        message=message,
        evidence=evidence or {},
        exception=exception,
    )


def _labels(case: Case, observation: Observation) -> frozenset[str]:
    """Boundaries that this launch showed; none when it did not run."""
    if observation.skipped:
        return frozenset({f"skipped: {observation.skipped}"})
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
