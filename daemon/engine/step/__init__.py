"""One step of the engine: from a plan to sampled tokens."""
