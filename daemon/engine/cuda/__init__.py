"""How steps are computed on a GPU: kernels called, uploads queued, whole decode steps captured."""
