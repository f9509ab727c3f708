"""What must hold: cases, observations, reference models and their judgements."""
