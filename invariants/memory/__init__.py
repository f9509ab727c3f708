"""Every memory access of a real Triton kernel, checked on the CPU."""
