"""How fast: what `benchmarks.gpu_bench` is made of."""
