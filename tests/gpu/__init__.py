"""What needs a GPU is right: `make gpu-check` runs it part by part, `pytest -m gpu` too."""
