"""llmd: serve language models on one workstation with several GPUs."""

__version__ = "0.1.0"
