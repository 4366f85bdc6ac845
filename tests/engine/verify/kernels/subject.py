"""A small model's shapes, in which kernels are tried through Triton's interpreter."""

from daemon.engine.verify.kernels.subject import Subject

SUBJECT = Subject(
    device="cpu",
    dtype="float32",
    kv_dtype="",
    block_size=8,
    max_blocks=6,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    rotary_dim=16,
    head_norms=True,
    hidden=32,
    gated=48,
    vocab=193,
    products=((64, 32, False),),
    quantised=(("Q4_K", 9, 256), ("fp8/32", 7, 96)),
    compress=True,
    longest=40,
)
