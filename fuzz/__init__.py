"""Running vLLM under test: trees, targets, properties and profiles."""
