"""Tensors of a step by what the kernels may do with them, and what became of them."""

from collections.abc import Iterable, Sequence

import torch

from invariants.draft_inputs import Output
from invariants.draft_inputs_model import MARGIN, UNTOUCHED
from invariants.memory.regions import Memory, Ownership


class Tensors:
    """The memory of one step.

    Attributes:
        memory: What is declared so far.
    """

    def __init__(self) -> None:
        self.memory = Memory()
        self._made: list[tuple[str, torch.Tensor]] = []
        self._states: list[tuple[str, torch.Tensor, torch.Tensor]] = []

    def given(
        self, values: Iterable[int], dtype: torch.dtype = torch.int32
    ) -> torch.Tensor:
        """``[values]``, an input."""
        tensor = torch.tensor(list(values), dtype=dtype)
        self.memory.read_only(tensor)
        return tensor

    def output(
        self, name: str, count: int, dtype: torch.dtype = torch.int32
    ) -> torch.Tensor:
        """``[count]`` untouched elements, and a margin that is looked at as well."""
        fill = 0 if dtype == torch.bool else UNTOUCHED
        tensor = torch.full((count + MARGIN,), fill, dtype=dtype)
        self._made.append((name, tensor))
        return tensor

    def see(self, name: str, tensor: torch.Tensor) -> None:
        """Take a tensor for one of the outputs."""
        self._made.append((name, tensor))

    def state(
        self,
        name: str,
        tensor: torch.Tensor,
        rows: Sequence[int],
        *,
        writable: bool = True,
        whole: bool = True,
    ) -> torch.Tensor:
        """A tensor of a row per state, of which a step may touch those of its requests.

        Args:
            name: Of the tensor.
            tensor: ``[states, ...]``.
            rows: States of the step.
            writable: Whether they may be stored to.
            whole: Whether the tensor is compared, all of it.
        """
        allowed = rows if writable else ()
        self.memory.own(tensor, Ownership.of(tensor, readable=rows, writable=allowed))
        if whole:
            kept = tensor.clone()
            self._states.append((name, tensor, kept))
            kept[list(rows)] = 0
        return tensor

    def outputs(self) -> tuple[Output, ...]:
        """Everything that was made, flat."""
        return tuple(
            Output(
                name=name,
                numbers=tuple(int(each) for each in tensor.flatten().tolist()),
            )
            for name, tensor in self._made
        )

    def stray(self) -> tuple[str, ...]:
        """State tensors that changed in rows that are no request's of the step."""
        changed = []
        for name, tensor, kept in self._states:
            others = kept != 0
            if not bool((tensor[others] == kept[others]).all()):
                changed.append(name)
        return tuple(changed)
