"""Requests with the lengths of the Azure conversation trace, and prompts of their own."""

from dataclasses import dataclass

import numpy as np

from daemon.lab.workload.build import AZURE_CONV, build
from daemon.lab.workload.workload import WorkloadSpec
from daemon.wire.columns import Int32

FIRST_ID = 300
"""Above the ends and the bytes of a made-up vocabulary."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one stream asks for."""

    prompt: Int32
    max_tokens: int


def azure_requests(count: int, max_len: int, vocab: int, seed: int) -> list[Request]:
    """The trace's first `count` requests within `max_len` tokens; other seeds, other prompts."""
    spec = WorkloadSpec(name=AZURE_CONV, requests=count, arrivals="closed")
    workload = build(spec, max_len)
    chance = np.random.default_rng(seed)
    lengths = zip(workload.prompt_tokens.tolist(), workload.output_tokens.tolist(), strict=True)
    return [
        Request(chance.integers(FIRST_ID, vocab, prompt).astype(np.int32), output)
        for prompt, output in lengths
    ]
