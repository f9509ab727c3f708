"""Measurements of the harness, each a command that prints its figures."""
