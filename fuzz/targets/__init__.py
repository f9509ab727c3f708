"""Runs of real vLLM code, one module a target; vLLM is imported only here."""
