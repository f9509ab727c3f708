"""The survey of a tree's Triton kernels."""
