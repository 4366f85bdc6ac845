"""A small model's shapes, in which kernels are tried through Triton's interpreter."""

from daemon.engine.verify.kernels.subject import (
    CHANNELS_DECAY,
    HEADS_DECAY,
    SCANS_CHANNELS,
    SCANS_HEADS,
    RecurrentSizes,
    Subject,
)

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
    experts=(("Q4_0", 9, 64),),
    compress=True,
    recurrent=(
        RecurrentSizes(70, 4, HEADS_DECAY, 4, 2, (16, 12)),
        RecurrentSizes(24, 4, CHANNELS_DECAY, 2, 2, (8, 8)),
        RecurrentSizes(300, 3, SCANS_HEADS, 4, 2, (6, 10)),
        RecurrentSizes(70, 4, SCANS_CHANNELS, 70, 1, (1, 5)),
        RecurrentSizes(32, 2),
    ),
    longest=40,
)
