"""The prefix and the common labels of metrics."""

PREFIX = "llmd:"
MODEL = "model_name"
ENGINE = "engine"
"""The label of an instance's name; Prometheus uses `instance` for the server itself."""
