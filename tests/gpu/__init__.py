"""Checks that need a GPU: `make gpu-check` runs them part by part, `pytest -m gpu` too."""
