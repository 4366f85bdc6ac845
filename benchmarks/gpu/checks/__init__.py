"""How right: what `benchmarks.gpu_check` is made of."""
