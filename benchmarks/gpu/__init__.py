"""What `benchmarks.gpu_bench` is made of, and what `tests/gpu` shares with it."""
