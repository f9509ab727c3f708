"""Real kernels in value mode beside plain float64, for a process that has a tree.

A result is how far the worst element is from its reference, as a multiple of what
rounding allows it. What is allowed is counted, not tried out: half a unit in the last
place of the dtype that is stored, and for all that comes before, the unit of float32
times the number of operations in a row, times the sum of the terms' magnitudes.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch

from fuzz.execution import Executor
from invariants.memory import launches
from invariants.memory.findings import Finding, Undecided
from invariants.memory.launches import Log, checked_launches
from invariants.memory.regions import Memory

Tensor = torch.Tensor


@dataclass(frozen=True)
class Outcome:
    """What a launch came to.

    Attributes:
        excess: Of each output, the worst error as a multiple of the allowed one.
    """

    excess: dict[str, float]
    findings: tuple[Finding, ...]
    undecided: tuple[Undecided, ...]
    launches: tuple[str, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(finding.kind for finding in self.findings)


def unit(dtype: torch.dtype) -> float:
    """The largest relative error of rounding to nearest: half the dtype's epsilon."""
    return torch.finfo(dtype).eps / 2


def excess(got: Tensor, want: Tensor, inner: Tensor) -> float:
    """The worst error, as a multiple of what is allowed.

    Args:
        got: An output in its own dtype.
        want: The same in float64.
        inner: What is allowed before the output is rounded to its dtype.
    """
    least = torch.finfo(got.dtype).smallest_normal * unit(got.dtype)
    allowed = inner + unit(got.dtype) * (want.abs() + inner) + least
    ratio = (got.double() - want).abs() / allowed
    return float(torch.nan_to_num(ratio, nan=torch.inf).max())


@contextmanager
def on_a_gpu() -> Iterator[None]:
    """Wrappers ask what GPU there is: the one that kernels are lowered for.

    Where a wrapper has another path for the CPU, this takes the one for GPUs.
    """
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability

    platform = type(current_platform)
    capability = DeviceCapability(9, 0)
    with (
        patch("torch.cuda.get_device_capability", lambda *_, **__: tuple(capability)),
        patch.object(platform, "get_device_capability", lambda *_, **__: capability),
        patch.object(platform, "is_cpu", lambda *_: False),
        patch.object(platform, "is_cuda", lambda *_: True),
    ):
        yield


def for_a_gpu(name: str) -> ModuleType:
    """A module as it is on a GPU; some bind other functions where there is none."""
    with on_a_gpu():
        return importlib.reload(importlib.import_module(name))


@contextmanager
def changed(
    module: str, kernel: str, planted: tuple[str, str] | None
) -> Iterator[None]:
    """A kernel with one piece of its source replaced, for a planted fault.

    Args:
        module: Where the kernel is.
        kernel: Its name.
        planted: What stands there, once, and what shall; None for no fault.
    """
    if planted is None:
        yield
        return
    jitted: Any = getattr(importlib.import_module(module), kernel)
    while not hasattr(jitted, "_unsafe_update_src"):
        jitted = jitted.fn
    before, (right, wrong) = jitted.src, planted
    assert before.count(right) == 1, (kernel, right, before.count(right))
    jitted._unsafe_update_src(before.replace(right, wrong))
    # Kernels that are lowered already are found by function, not by source.
    launches._kernel.cache_clear()
    try:
        yield
    finally:
        jitted._unsafe_update_src(before)
        launches._kernel.cache_clear()


def outcome(log: Log, **worst: float) -> Outcome:
    return Outcome(
        excess=worst,
        findings=log.findings,
        undecided=log.undecided,
        launches=tuple(launch.kernel for launch in log.launches),
    )


def module(*names: str) -> str:
    """The first of some modules that the tree has."""
    root = Path(importlib.import_module("vllm").__file__ or "").parents[1]
    return next(
        name for name in names if (root / f"{name.replace('.', '/')}.py").exists()
    )


# --- cache write ----------------------------------------------------------------------

CACHE_WRITE = "vllm.v1.attention.ops.triton_reshape_and_cache_flash"


def cache_write(
    _: Executor, cache: str, dtype: str, planted: tuple[str, str] | None = None
) -> Outcome:
    """`triton_reshape_and_cache_flash`, with two padding tokens."""
    ops = for_a_gpu(CACHE_WRITE)
    generator = torch.Generator().manual_seed(1)
    tokens, heads, size, blocks, slots = 7, 3, 40, 5, 4
    kind = getattr(torch, dtype)

    def drawn() -> Tensor:
        return torch.randn(tokens, heads, size, generator=generator).to(kind)

    key, value = drawn(), drawn()
    stored = torch.float8_e4m3fn if cache == "fp8" else kind
    caches = [torch.zeros(blocks, slots, heads, size, dtype=stored) for _ in range(2)]
    mapping = torch.tensor([3, 19, -1, 0, 8, 9, -1], dtype=torch.int64)
    scales = (torch.tensor(0.25), torch.tensor(3.0))
    memory = Memory()
    for each in (key, value, mapping):
        memory.read_only(each)
    with (
        on_a_gpu(),
        changed(CACHE_WRITE, "reshape_and_cache_kernel_flash", planted),
        checked_launches(memory, values=True) as log,
    ):
        ops.triton_reshape_and_cache_flash(key, value, *caches, mapping, cache, *scales)
    worst = {}
    for name, source, target, scale in zip(
        ("key", "value"), (key, value), caches, scales, strict=True
    ):
        want = torch.zeros(blocks * slots, heads, size, dtype=torch.float64)
        divisor = scale.double() if cache == "fp8" else 1.0
        held = mapping >= 0
        want[mapping[held]] = source[held].double() / divisor
        want = want.view_as(target)
        # One division in float32 comes before the rounding to 8 bits.
        inner = want.abs() * unit(torch.float32) * (cache == "fp8")
        worst[name] = excess(target, want, inner)
    return outcome(log, **worst)


def cache_write_per_head(_: Executor, cache: str) -> Outcome:
    """The form that keeps a scale per token and head."""
    ops = for_a_gpu(CACHE_WRITE)
    generator = torch.Generator().manual_seed(2)
    tokens, heads, size, blocks, slots = 5, 2, 24, 3, 4
    stored = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}[cache]
    largest = 127.0 if cache == "int8" else 448.0
    key, value = (
        torch.randn(tokens, heads, size, generator=generator).to(torch.bfloat16)
        for _ in range(2)
    )
    caches = [torch.zeros(blocks, slots, heads, size, dtype=stored) for _ in range(2)]
    scales = [torch.zeros(blocks, slots, heads) for _ in range(2)]
    mapping = torch.tensor([11, 2, -1, 4, 5], dtype=torch.int64)
    more = []
    if (
        "kv_quant_mode"
        in ops.triton_reshape_and_cache_flash_per_token_head_quant.__code__.co_varnames
    ):
        from vllm.v1.kv_cache_interface import get_kv_quant_mode

        more = [get_kv_quant_mode(f"{cache}_per_token_head")]
    with checked_launches(values=True) as log:
        ops.triton_reshape_and_cache_flash_per_token_head_quant(
            key, value, *caches, *scales, mapping, *more
        )
    worst = {}
    single = unit(torch.float32)
    held = mapping >= 0
    for name, source, target, scale in zip(
        ("key", "value"), (key, value), caches, scales, strict=True
    ):
        numbers = source[held].double()
        unit_of = (numbers.abs().amax(dim=-1) / largest).clamp(min=1e-6)
        found = scale.flatten(0, 1)[mapping[held]]
        worst[f"{name} scale"] = excess(found, unit_of, 2 * single * unit_of)
        want = numbers / unit_of[..., None]
        got = target.flatten(0, 1)[mapping[held]]
        inner = 4 * single * want.abs()
        if cache == "int8":
            # To an integer, a fraction is cut off or rounded.
            ratio = (got.double() - want).abs() / (1.0 + inner)
            worst[name] = float(ratio.max())
        else:
            worst[name] = excess(got, want, inner)
    return outcome(log, **worst)


# --- causal convolution ---------------------------------------------------------------

CONVOLUTION = "vllm.model_executor.layers.mamba.ops.causal_conv1d"
WIDTH = 4


def _convolved(
    history: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor]:
    """SiLU of a causal convolution ``[dim, tokens]``, and what rounding allows.

    Products are rounded to bf16, sums to float32; SiLU grows an error by less than 1.1.
    """
    length = inputs.shape[1]
    whole = torch.cat([history, inputs], dim=1).double()
    windows = whole.unfold(1, WIDTH, 1)[:, -length:]
    terms = windows * weight.double()[:, None]
    total = terms.sum(-1) + bias.double()[:, None]
    size = terms.abs().sum(-1) + bias.double().abs()[:, None]
    slack = (unit(torch.bfloat16) + (WIDTH + 8) * unit(torch.float32)) * size
    return total * total.sigmoid(), 1.1 * slack


def convolution(
    _: Executor, form: str, planted: tuple[str, str] | None = None
) -> Outcome:
    """`causal_conv1d_fn` or `causal_conv1d_update`, in bf16 with SiLU and a bias."""
    ops = for_a_gpu(CONVOLUTION)
    generator = torch.Generator().manual_seed(6)
    dim, lengths = 20, (9, 1, 13) if form == "fn" else (1, 1, 1)
    low = torch.bfloat16

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(low)

    tokens = sum(lengths)
    inputs = normal(tokens, dim).T
    weight, bias = normal(dim, WIDTH), normal(dim)
    states = normal(6, WIDTH - 1, dim).transpose(1, 2)
    before = states.clone()
    indices = torch.tensor([3, 1, 5], dtype=torch.int32)
    fresh = [False, True, False] if form == "fn" else [False] * 3
    starts = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    kernel = {
        "fn": "_causal_conv1d_fwd_kernel",
        "update": "_causal_conv1d_update_kernel",
    }
    given = inputs.clone(memory_format=torch.preserve_format)
    with (
        changed(CONVOLUTION, kernel[form], planted),
        checked_launches(values=True) as log,
    ):
        if form == "fn":
            got = ops.causal_conv1d_fn(
                given,
                weight,
                bias,
                states,
                starts,
                cache_indices=indices,
                has_initial_state=torch.tensor([not each for each in fresh]),
                activation="silu",
            )
        else:
            got = ops.causal_conv1d_update(
                given.T.contiguous(), states, weight, bias, "silu", indices
            ).T
    outputs: list[float] = []
    want_states = before.double()
    for at, length in enumerate(lengths):
        rows = slice(int(starts[at]), int(starts[at]) + length)
        history = before[indices[at]]
        if fresh[at]:
            history = torch.zeros_like(history)
        want, slack = _convolved(history, inputs[:, rows], weight, bias)
        outputs.append(excess(got[:, rows], want, slack))
        kept = torch.cat([history, inputs[:, rows]], dim=1)[:, -(WIDTH - 1) :]
        want_states[indices[at]] = kept.double()
    none = torch.zeros_like(want_states)
    return outcome(log, output=max(outputs), state=excess(states, want_states, none))
