"""What may happen: Hypothesis strategies that draw cases."""
