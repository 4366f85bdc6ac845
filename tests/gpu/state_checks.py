"""Recurrent layers by their kernels, against torch, in the sizes of models."""

from collections.abc import Iterator
from functools import partial

import msgspec

from benchmarks.gpu.report import Check
from daemon.engine.verify.kernels import state_cases
from daemon.engine.verify.kernels.bench import Bench
from daemon.engine.verify.kernels.subject import (
    CHANNELS_DECAY,
    HEADS_DECAY,
    SCANS_CHANNELS,
    SCANS_HEADS,
    RecurrentSizes,
)
from tests.engine.verify.kernels.subject import SUBJECT
from tests.gpu.attempts import attempted

MODELS = {
    "Qwen3-Next 80B": RecurrentSizes(8192, 4, HEADS_DECAY, 32, 16, (128, 128)),
    "Kimi Linear 48B": RecurrentSizes(12_288, 4, CHANNELS_DECAY, 32, 32, (128, 128)),
    "Granite 4 H small": RecurrentSizes(8448, 4, SCANS_HEADS, 128, 1, (64, 128)),
    "Nemotron 3 nano": RecurrentSizes(6144, 4, SCANS_HEADS, 64, 8, (64, 128)),
    "Falcon-H1 34B": RecurrentSizes(4608, 4, SCANS_HEADS, 32, 2, (128, 256)),
    "Falcon Mamba 7B": RecurrentSizes(8192, 4, SCANS_CHANNELS, 8192, 1, (1, 16)),
    "LFM2 8B": RecurrentSizes(2048, 3),
}
"""Recurrent layers: what their models are."""


def state_checks(device: str) -> Iterator[Check]:
    """Each layer of a model on a GPU; on a CPU those of a small one."""
    large = device.startswith("cuda")
    models = MODELS if large else {str(it.rule or "alone"): it for it in SUBJECT.recurrent}
    for name, sizes in models.items():
        for dtype in ("float32", "float16", "bfloat16") if large else ("bfloat16",):
            subject = msgspec.structs.replace(
                SUBJECT, device=device, dtype=dtype, recurrent=(sizes,)
            )
            said = f"states of {name} {dtype}"
            yield from attempted(said, partial(_tried, said, Bench(subject)))


def _tried(name: str, bench: Bench) -> Iterator[Check]:
    state_cases.try_states(bench)
    yield Check(name, 0, bench.limit)
