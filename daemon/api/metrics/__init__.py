"""`GET /metrics`: metrics for Prometheus, in vLLM's names under the prefix `llmd:`."""
