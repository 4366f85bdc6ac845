"""How metrics are called, and the labels that all of them have."""

PREFIX = "llmd:"
MODEL = "model_name"
ENGINE = "engine"
"""An instance's name; `instance` is what Prometheus calls the server that it asks."""
