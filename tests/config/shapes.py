"""Models for tests of what fits where: their shapes alone."""

from daemon.models.shape import ModelShape

LLAMA_3_8B = ModelShape(
    model_type="llama",
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    hidden_size=4096,
    vocab_size=128256,
    context_len=8192,
    num_params=8_000_000_000,
    dtype="bfloat16",
)
