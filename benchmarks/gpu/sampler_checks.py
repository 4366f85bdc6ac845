"""The sampler on a device against the sampler on the CPU: the same seeds draw the same tokens."""

from collections.abc import Iterator

import torch

from benchmarks.gpu.report import Check
from daemon.engine.sampler import Sampler, SampleResult
from daemon.request import SamplingParams

VOCAB = 128_256
ROWS, STEPS = 64, 16
DIFFERENT_SHARE = 2e-3
"""Sums of 100,000 terms round differently on each device: a draw at a border may fall over it."""

KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.9),
    "top-k": SamplingParams(top_k=40),
    "top-p": SamplingParams(top_p=0.9),
    "top-p wide": SamplingParams(temperature=3.0, top_p=0.95),
    "min-p": SamplingParams(min_p=0.05),
    "penalties": SamplingParams(
        temperature=0.8,
        presence_penalty=0.6,
        frequency_penalty=0.4,
        repetition_penalty=1.2,
        logit_bias=((7, 4.0), (9, -100.0)),
        min_tokens=4,
        stop_token_ids=(11,),
    ),
}


def sampler_checks(device: str) -> Iterator[Check]:
    """Shares of drawn tokens that differ, and differences of log-probabilities."""
    generator = torch.Generator().manual_seed(0)
    logits = [torch.randn(ROWS, VOCAB, generator=generator) * 4 for _ in range(STEPS)]
    for name, sampling in KINDS.items():
        here, there = _draws(logits, sampling, "cpu"), _draws(logits, sampling, device)
        pairs = list(zip(here, there, strict=True))
        different = sum(int((a.tokens != b.tokens.cpu()).sum()) for a, b in pairs)
        yield Check(f"sampler {name}", different / (ROWS * STEPS), DIFFERENT_SHARE, "of the draws")
    yield Check("sampler logprobs", _logprob_error(logits[0], device), 1e-3)
    yield Check("sampler NaN is refused", 0.0 if _refuses_nan(device) else float("nan"), 0.0)


def _draws(logits: list[torch.Tensor], sampling: SamplingParams, device: str) -> list[SampleResult]:
    """An answer of STEPS tokens in every row; each device counts its own tokens."""
    sampler = Sampler(VOCAB, device, eos_ids=(2,))
    for slot in range(ROWS):
        fields = {name: getattr(sampling, name) for name in sampling.__struct_fields__}
        sampler.join(slot, SamplingParams(**fields | {"seed": slot}), 5, [1, 2, 3, 4, 5])
    rows = list(range(ROWS))
    return [
        sampler.sample(step.to(device), rows, [5 + index] * ROWS)
        for index, step in enumerate(logits)
    ]


def _logprob_error(logits: torch.Tensor, device: str) -> float:
    results = []
    for where in ("cpu", device):
        sampler = Sampler(VOCAB, where)
        sampler.join(0, SamplingParams(temperature=0.0, logprobs=5), 1)
        results.append(sampler.sample(logits.to(where), [0] * ROWS, [1] * ROWS).logprobs)
    here, there = results
    if here is None or there is None or (here.top_ids != there.top_ids).any():
        return float("nan")
    return float(abs(here.top_values - there.top_values).max())


def _refuses_nan(device: str) -> bool:
    logits = torch.zeros(2, VOCAB, device=device)
    logits[1, 5] = torch.nan
    sampler = Sampler(VOCAB, device)
    for slot in (0, 1):
        sampler.join(slot, SamplingParams(), 1)
    try:
        sampler.sample(logits, [0, 1], [1, 1])
    except ValueError as error:
        return "[1]" in str(error)
    return False
