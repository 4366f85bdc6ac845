"""What `benchmarks.gpu_check` and `benchmarks.gpu_bench` are made of."""
