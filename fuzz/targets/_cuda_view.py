"""CPU tensors for code that asks a tensor whether it is on a CUDA device."""

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def as_cuda(tensor: "torch.Tensor") -> "torch.Tensor":
    """The same memory as a tensor that says it is on a CUDA device."""
    return tensor.as_subclass(_cuda_view())


@cache
def _cuda_view() -> "type[torch.Tensor]":
    import torch

    class CudaView(torch.Tensor):
        """A CPU tensor that takes the branch of a GPU's."""

        is_cuda = True

    return CudaView
