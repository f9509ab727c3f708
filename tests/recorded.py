"""What is run on a card and in the checker alike, and what a card left of it.

Names stand for calls, so that a recording is plain data: generated integer kernels bit
for bit, operations on floats by their error, kernels of releases by theirs.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from types import MappingProxyType
from typing import Any

import hypothesis
import msgspec

from invariants.kernel_shapes import KernelShape
from invariants.scheduling import PrefixLayout
from invariants.verify_case import CacheDtype, Case, Dtype, Kernel
from tests import (
    value_attention,
    value_checks,
    value_delta_rule,
    value_launches,
)
from tests import value_results as results
from tests.memory_differential import Contents, checked, memory_of, module_of
from tests.memory_programs import Program, programs

Call = tuple[Callable[..., Any], tuple[Any, ...]]
WIDE = ("float64", "float32")
ALL = (*WIDE, "float16", "bfloat16")


class RecordedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A generated kernel, and a digest of each tensor that its launch left."""

    program: Program
    outputs: tuple[str, ...] = ()


class RecordedLaunch(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a release's wrapper.

    Attributes:
        kernels: That ran, in order.
        excess: Of each output, the worst error as a multiple of the allowed one.
        skipped: Why it cannot be made there, "" when it was.
    """

    kernels: tuple[str, ...]
    excess: dict[str, float]
    skipped: str


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one run on a card left.

    Attributes:
        checks: Of each, elements that differ or the worst error as a multiple of what
            is allowed.
        kernels: By release and name.
        launches: Of the catalogue, by release and name: why a launch was not made, or
            what its own check of the integers says; "" where it is content.
    """

    card: str
    driver: str
    torch: str
    triton: str
    date: str
    command: str
    programs: tuple[RecordedProgram, ...]
    checks: dict[str, float | str]
    kernels: dict[str, dict[str, RecordedLaunch]]
    launches: dict[str, dict[str, str]]


# --- generated kernels ----------------------------------------------------------------


def drawn_programs(count: int) -> list[RecordedProgram]:
    """Different generated kernels, the same at every call."""
    drawn: dict[str, RecordedProgram] = {}

    @hypothesis.seed(11)
    @hypothesis.settings(
        max_examples=2 * count,
        database=None,
        deadline=None,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(programs())
    def draw(program: Program) -> None:
        if len(drawn) < count:
            drawn.setdefault(program.source, RecordedProgram(program=program))

    draw()
    return list(drawn.values())


def outputs_of(program: Program) -> Contents:
    """What a launch inside `checked_launches` leaves in inputs and outputs."""
    import torch

    from invariants.memory.launches import checked_launches

    memory = memory_of(program)
    tensors = [torch.from_numpy(each) for each in memory]
    kernel = module_of(program.source).kernel
    with checked_launches():
        kernel[program.grid](*tensors, *program.numbers, STORES=program.stores)
    return memory


def digests(contents: Contents) -> tuple[str, ...]:
    """A digest of each tensor."""
    return tuple(hashlib.sha256(each.tobytes()).hexdigest()[:32] for each in contents)


def compared(programs: tuple[RecordedProgram, ...]) -> list[str]:
    """What becomes of each program in the checker, in a prepared process.

    Returns:
        `same` memory or `other` memory as the card's; `told` where the checker says
        that numbers wrap on their way into an address or a branch.
    """
    return [_compared(each) for each in programs]


def _compared(recorded: RecordedProgram) -> str:
    outcome = checked(recorded.program)
    if outcome.findings or outcome.undecided:
        return "told"
    return "same" if digests(outcome.memory) == recorded.outputs else "other"


# --- operations on floats -------------------------------------------------------------


def _calls(function: Callable[..., float], *choices: Sequence[str]) -> dict[str, Call]:
    return {
        f"{function.__name__}({', '.join(chosen)})": (function, chosen)
        for chosen in product(*choices)
    }


_FORMATS = tuple(value_checks.FORMATS)
_INTEGERS = ("int8", "int16", "int32", "int64")
CHECKS: Mapping[str, Call] = MappingProxyType(
    {
        **_calls(value_checks.two_numbers, tuple(value_checks.OF_TWO), ALL),
        **_calls(value_checks.one_number, tuple(value_checks.OF_ONE), WIDE),
        **_calls(value_checks.exact_numbers),
        **_calls(value_checks.all_numbers, _FORMATS),
        **_calls(value_checks.rounded, _FORMATS, ("float32",)),
        **_calls(value_checks.rounded, _FORMATS[:2], ("bfloat16", "float16")),
        **_calls(value_checks.to_integers, _INTEGERS, ALL),
        **_calls(value_checks.from_integers, ALL[:3], _INTEGERS),
        **_calls(value_checks.same_bits),
        **_calls(results.product, (*ALL[1:], *_FORMATS[:2], "int8"), ("ieee",)),
        **_calls(results.product, ("float32",), ("tf32",)),
        **_calls(results.rearranged, (*ALL, *_FORMATS[:2])),
        **_calls(results.own_pace),
    }
)


# --- kernels of releases --------------------------------------------------------------

ATTENTION = Case(
    format_version=1,
    origin="contract",
    kernel="unified_2d",
    dtype="bfloat16",
    cache="auto",
    shape=KernelShape(kv_heads=2, queries_per_kv=2, head_size=32),
    layout=PrefixLayout(
        pool_blocks=5,
        block_sizes=(16,),
        num_tokens=(37, 4),
        block_ids=(((3, 4, 1), (2,)),),
        prefix_tokens=(0, 0),
    ),
    query_lens=(3, 1),
    window=0,
    page="halves",
    order="tokens",
    layers=1,
    padding=0,
    fused_query=True,
    seed=1,
)


def attention_case(kernel: Kernel, dtype: Dtype, cache: CacheDtype) -> Case:
    """A launch of attention with two requests; the older release splits keys of one."""
    return replace(
        ATTENTION,
        kernel=kernel,
        cache=cache,
        dtype=dtype,
        page="apart" if cache.endswith("head") else "halves",
        query_lens=(1, 1) if kernel == "unified_3d" else ATTENTION.query_lens,
    )


ATTENTION_KERNELS: tuple[Kernel, ...] = (
    "unified_2d",
    "unified_3d",
    "control_fixed",
)
ATTENTION_CACHES: tuple[tuple[Dtype, CacheDtype], ...] = (
    ("float16", "auto"),
    ("bfloat16", "auto"),
    ("bfloat16", "fp8"),
    ("bfloat16", "int8_per_token_head"),
    ("bfloat16", "fp8_per_token_head"),
)
KERNELS: Mapping[str, Call] = MappingProxyType(
    {
        **{
            f"cache write, {cache} of {dtype}": (
                value_launches.cache_write,
                (cache, dtype),
            )
            for cache, dtype in (
                ("fp8", "bfloat16"),
                ("auto", "float32"),
                ("auto", "float16"),
                ("auto", "bfloat16"),
            )
        },
        **{
            f"cache write, {cache} per token and head": (
                value_launches.cache_write_per_head,
                (cache,),
            )
            for cache in ("int8", "fp8")
        },
        "recurrent": (value_delta_rule.recurrent, ()),
        "packed decode": (value_delta_rule.packed_decode, ()),
        "sigmoid gating": (value_delta_rule.sigmoid_gating, ()),
        "convolution": (value_launches.convolution, ("fn",)),
        "convolution of a token": (value_launches.convolution, ("update",)),
        "after a masked tile": (value_attention.after_a_masked_tile, (20.0,)),
        **{
            f"{kernel}, {cache} of {dtype}": (
                value_attention.attention,
                (attention_case(kernel, dtype, cache),),
            )
            for kernel in ATTENTION_KERNELS
            for dtype, cache in ATTENTION_CACHES
        },
    }
)
