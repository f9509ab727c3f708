"""Fixed implementations, one module a target."""
