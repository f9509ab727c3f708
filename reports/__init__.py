"""What a run found: events in, one JSON document out, and its renderings."""
