"""A step's keys and values, where they must lie in a cache, and what lies there.

The model is a dictionary from slot to row: the step's own rows, quantised where the
cache is. It is never asked where a kernel put them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fuzz.targets._paged_cache import placed_views
from fuzz.targets._sparse_pool import POISON, SparsePool
from invariants.kv_write import Mismatch
from invariants.kv_write_case import PADDING_SLOT, Case
from invariants.verify_case import Geometry

# Rows of the step's tensors beyond those that have slots, which wrappers allow whose
# grid goes by slots (v1/attention/backends/flash_attn_diffkv.py, 0.20.1).
_SPARE_ROWS = 2
# Heads of queries before those of keys in a fused projection.
_QUERY_HEADS = 3
# Of an fp8 cache: exact in float32, so that a quotient is rounded once.
_KEY_UNIT, _VALUE_UNIT = 0.5, 2.0
_LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
# Half a step of int8; half of the last bit of e4m3, of what is normal and below.
_INT8_ROUNDING = 0.5
_FP8_ROUNDING, _FP8_SUBNORMAL = 2.0**-4, 2.0**-10
# float32 arithmetic on the way: a quotient, a reciprocal and a product.
_SLACK = 1e-6


@dataclass(frozen=True, kw_only=True)
class Step:
    """The tensors of a step beside the cache.

    Attributes:
        key: ``[tokens + spare, kv_heads, head_size]``; spare rows are NaN.
        value: ``[tokens + spare, kv_heads, value_size]``.
        slots: ``[tokens]`` int64.
        key_unit: ``[1]`` float32, divides the keys of an fp8 cache.
        value_unit: The same of values.
    """

    key: torch.Tensor
    value: torch.Tensor
    slots: torch.Tensor
    key_unit: torch.Tensor
    value_unit: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class KvRows:
    """The cache by parts, and the tensors that a wrapper is given of it.

    Attributes:
        views: Keys, values and scales of both, or one tensor of keys and values.
        key: ``[blocks, slots, kv_heads, head_size]``, or 5 axes with heads first.
        value: The same of values, or 4 axes with heads first.
    """

    views: tuple[torch.Tensor, ...]
    key: torch.Tensor
    value: torch.Tensor
    key_scale: torch.Tensor | None
    value_scale: torch.Tensor | None


def make_step(case: Case) -> Step:
    """Keys and values from the case's seed."""
    source = torch.Generator().manual_seed(case.seed)
    by_slots = case.origin == "contract" and case.form != "per_token_head"
    rows = len(case.slots) + (_SPARE_ROWS if by_slots else 0)
    heads = case.kv_heads
    sizes = (case.head_size, case.value_size)
    made = []
    for size in sizes:
        numbers = torch.randn((rows, heads, size), generator=source)
        numbers[len(case.slots) :] = torch.nan
        made.append(numbers.to(getattr(torch, case.dtype)))
    if case.fused:
        query = torch.zeros((rows, _QUERY_HEADS * case.head_size), dtype=made[0].dtype)
        flat = torch.cat([query, *(each.flatten(1) for each in made)], dim=1)
        widths = [query.shape[1], *(heads * size for size in sizes)]
        _, *parts = torch.split(flat, widths, dim=1)
        made = [
            part.view(rows, heads, size)
            for part, size in zip(parts, sizes, strict=True)
        ]
    return Step(
        key=made[0],
        value=made[1],
        slots=torch.tensor(case.slots, dtype=torch.int64),
        key_unit=torch.tensor([_KEY_UNIT]),
        value_unit=torch.tensor([_VALUE_UNIT]),
    )


def placed(case: Case, place: Geometry, pool: SparsePool) -> KvRows:
    """The cache where a geometry says that it is."""
    plain = placed_views(case.reading, place, pool)
    if case.form == "diffkv":
        both = (*plain.key.shape[:-1], case.head_size + case.value_size)
        joint = torch.as_strided(
            plain.key, both, plain.key.stride(), plain.key.storage_offset()
        )
        key, value = torch.split(joint, [case.head_size, case.value_size], dim=-1)
        return KvRows(
            views=(joint,), key=key, value=value, key_scale=None, value_scale=None
        )
    if case.form == "heads_first":
        key, value = _heads_first(case, plain.key, plain.value)
        return KvRows(
            views=(key, value), key=key, value=value, key_scale=None, value_scale=None
        )
    return KvRows(
        views=tuple(plain.tensors()),
        key=plain.key,
        value=plain.value,
        key_scale=plain.key_scale,
        value_scale=plain.value_scale,
    )


def _heads_first(
    case: Case, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[blocks, heads, parts, slots, part]`` and ``[blocks, heads, size, slots]``."""
    blocks, slots, heads, size = key.shape
    block_stride, _, head_stride, _ = key.stride()
    part = case.part
    return (
        torch.as_strided(
            key,
            (blocks, heads, size // part, slots, part),
            (block_stride, head_stride, slots * part, part, 1),
            key.storage_offset(),
        ),
        torch.as_strided(
            value,
            (blocks, heads, size, slots),
            (block_stride, head_stride, slots, 1),
            value.storage_offset(),
        ),
    )


def _places(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Block and offset of each written token."""
    slots = torch.tensor(case.written, dtype=torch.int64)
    return slots // case.block_size, slots % case.block_size


def _read(case: Case, view: torch.Tensor) -> torch.Tensor:
    """``[written, kv_heads, ...]``, what lies in the slots of the step."""
    blocks, offsets = _places(case)
    if case.form != "heads_first":
        return view[blocks, offsets]
    return view[blocks, :, :, offsets].flatten(2)


def erase_rows(case: Case, rows: KvRows) -> None:
    """Make the slots of the step what they were before it."""
    blocks, offsets = _places(case)
    for view in (rows.key, rows.value, rows.key_scale, rows.value_scale):
        if view is None:
            continue
        at: tuple[Any, ...] = (blocks, offsets)
        if case.form == "heads_first":
            at = (blocks, slice(None), slice(None), offsets)
        poison = torch.full((view.element_size(),), POISON, dtype=torch.uint8)
        view[at] = poison.view(view.dtype).squeeze()


def compared(case: Case, step: Step, rows: KvRows) -> tuple[Mismatch, ...]:
    """What differs between the slots of the step and the model, one for each tensor."""
    written = [at for at, slot in enumerate(case.slots) if slot != PADDING_SLOT]
    found: list[Mismatch] = []
    for name, source, view, scales, unit in (
        ("key", step.key, rows.key, rows.key_scale, step.key_unit),
        ("value", step.value, rows.value, rows.value_scale, step.value_unit),
    ):
        expected, got = source[written], _read(case, view)
        if scales is None:
            if case.cache == "fp8":
                expected = (expected.float() / unit).to(got.dtype)
            found += _worst(case, name, got.double(), expected.double(), 0.0)
            continue
        # Of each token and head, in steps of its own size.
        numbers = expected.double()
        sizes = numbers.abs().amax(-1, keepdim=True) / _LARGEST[got.dtype]
        read = _read(case, scales).double()[..., None]
        found += _worst(case, f"{name} scale", read, sizes, _SLACK * sizes)
        steps = numbers / sizes
        allowed = _rounding(got.dtype, steps) + _SLACK * _LARGEST[got.dtype]
        found += _worst(case, name, got.double(), steps, allowed)
    return tuple(found)


def _rounding(dtype: torch.dtype, steps: torch.Tensor) -> torch.Tensor:
    """How far the nearest number of a quantised cache may be."""
    if dtype == torch.int8:
        return torch.full_like(steps, _INT8_ROUNDING)
    return (_FP8_ROUNDING * steps.abs()).clamp(min=_FP8_SUBNORMAL)


def _worst(
    case: Case,
    name: str,
    got: torch.Tensor,
    expected: torch.Tensor,
    allowed: torch.Tensor | float,
) -> Iterator[Mismatch]:
    """The element furthest beyond what is allowed, if any is; NaN is."""
    excess = torch.nan_to_num((got - expected).abs() - allowed, nan=torch.inf)
    wrong = int((excess > 0).sum())
    if not wrong:
        return
    _, heads, size = excess.shape
    at = int(excess.argmax())
    yield Mismatch(
        kind="scales" if name.endswith("scale") else "rows",
        tensor=name,
        elements=wrong,
        slot=case.written[at // (heads * size)],
        head=at // size % heads,
        dim=at % size,
        got=f"{float(got.flatten()[at]):.6g}",
        expected=f"{float(expected.flatten()[at]):.6g}",
    )
