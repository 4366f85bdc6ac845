"""`GET /metrics`: what Prometheus is told, in vLLM's names under the prefix `llmd:`."""
