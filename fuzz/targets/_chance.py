"""Random numbers that the case chose, and scratch that is known, inside real wrappers.

A wrapper draws its random numbers and makes its own tensors, which nobody else sees.
While this mode is on, the draws are those of the case, and what is made empty is
poisoned and declared as scratch, so that reading it before a store is a finding.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from fuzz.targets._real_launch import virtual
from invariants.memory.regions import Memory

# No token, state or count is this large.
POISON = 0x7EADBEEF
# Tensors with more elements exist as addresses only.
_ELEMENTS_MAX = 2**26
_SCRATCH_MAX = 2**20
_EMPTY = (torch.empty, torch.empty_like, torch.Tensor.new_empty)


class Chance(TorchFunctionMode):
    """The draws of one call.

    Args:
        memory: Where scratch is declared.
        uniform: ``[tokens]`` float64, what `torch.rand` gives.
        exponential: ``[requests, vocab]`` float32, what `exponential_` fills in.
    """

    def __init__(
        self,
        memory: Memory,
        *,
        uniform: torch.Tensor | None = None,
        exponential: torch.Tensor | None = None,
    ) -> None:
        super().__init__()
        self._memory = memory
        self._uniform = uniform
        self._exponential = exponential

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answer what the case decides; pass everything else on."""
        named = kwargs or {}
        if func is torch.rand and self._uniform is not None:
            return self._uniform.clone()
        if func is torch.Tensor.exponential_ and self._exponential is not None:
            return args[0].copy_(self._exponential.expand(args[0].shape))
        first = args[0] if args else None
        if isinstance(first, torch.Tensor) and first.numel() > _ELEMENTS_MAX:
            if func is torch.Tensor.softmax:
                return virtual(first.shape, named["dtype"])
            if func is torch.Tensor.argmax:
                return torch.zeros(first.shape[0], dtype=torch.int64)
        made = func(*args, **named)
        if func in _EMPTY and 0 < made.numel() <= _SCRATCH_MAX:
            made.fill_(POISON if not made.dtype.is_floating_point else torch.nan)
            self._memory.scratch(made)
        return made
