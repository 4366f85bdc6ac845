"""The worker process: torch, transformers and Triton live here and nowhere else."""
