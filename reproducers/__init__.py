"""Saved faults: the smallest case, the fixed implementation, and their replay."""
