"""What the draw of a step's tokens takes, for greedy rows and for filtered ones."""

from collections.abc import Callable, Iterator

import numpy as np
import torch

from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.job import Job
from benchmarks.gpu.speed.limits import STATE_BYTES
from benchmarks.gpu.timing import host_seconds, seconds
from daemon.engine.sampler import Sampler
from daemon.state.request import SamplingParams

ROWS, TINY_ROWS = (1, 32, 256), (2,)
VOCAB, TINY_VOCAB = 128_256, 512
SETS = 4  # of logits that take turns, so that a small batch does not find its own in the cache
KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.8),
    "top-k, top-p and min-p": SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.02),
    "top-p of most tokens": SamplingParams(top_p=0.95),
    "penalties": SamplingParams(temperature=0.8, repetition_penalty=1.1, presence_penalty=0.1),
    "log-probabilities of 5": SamplingParams(temperature=0.8, logprobs=5),
}


@torch.inference_mode()
def sampler_figures(job: Job) -> Iterator[Figure]:
    """Microseconds of the device for a draw, and of the host; the limit reads the logits once."""
    vocab = TINY_VOCAB if job.tiny else VOCAB
    for rows in TINY_ROWS if job.tiny else ROWS:
        sets = [torch.randn(rows, vocab, device=job.device).bfloat16() for _ in range(SETS)]
        for name, sampling in KINDS.items():
            sampler = Sampler(vocab, job.device)
            for slot in range(rows):
                sampler.join(slot, sampling, 8, list(range(8)))
            draw = _drawing(sampler, sets)
            draw_s = seconds(draw, job.device, 2 if job.tiny else 20)
            host_s = min(host_seconds(draw) for _ in range(3))
            limit_s = rows * vocab * STATE_BYTES / job.limits.bytes_per_s
            yield Figure(
                f"draw, {rows} rows, {name}",
                draw_s * 1e6,
                "us",
                note=f"reading the logits once takes {limit_s * 1e6:.1f}",
                raw={"draw_s": draw_s, "host_s": host_s, "limit_s": limit_s},
            )


def _drawing(sampler: Sampler, sets: list[torch.Tensor]) -> Callable[[], None]:
    """Sample one token of each row, one position further each time."""
    slots = np.arange(len(sets[0]))
    drawn = 0

    def draw() -> None:
        nonlocal drawn
        sampler.sample(sets[drawn % len(sets)], slots, np.full(len(slots), 8 + drawn))
        drawn += 1

    return draw
