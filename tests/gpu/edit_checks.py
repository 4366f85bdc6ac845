"""The sampler's edits and masks of logits, bit by bit as on the CPU."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks.gpu.report import Check
from daemon.engine.cuda.sampler_ops import CudaSamplerOps
from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.ops import Edited, SamplerOps, TorchSamplerOps
from daemon.state.request import SamplingParams
from tests.gpu.attempts import attempted

VOCAB = 301
SLOTS = (70, 3, 150, 9)
"""More than there is room for at first."""
PROMPTS = (60, 128, 150, 64)
"""Lengths; histories grow past their first room."""
STEPS = 8
ENDS = (2, 5, VOCAB + 3)
BIAS = tuple((token, token % 7 - 3.0) for token in range(0, 290, 3))
KINDS = (
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.3),
    SamplingParams(
        repetition_penalty=0.8, logit_bias=((5, 3.0), (6, -100.0), (5, 4.0), (400, 9.0))
    ),
    SamplingParams(frequency_penalty=-0.1, logit_bias=BIAS, min_tokens=3),
    SamplingParams(min_tokens=5, logit_bias=((2, 1.0),)),
)


def edit_checks(device: str) -> Iterator[Check]:
    """Numbers that differ from the CPU's, over the steps of a few answers."""
    for dtype in (torch.float32, torch.bfloat16):
        yield from attempted(f"edit {dtype}", partial(_edits, dtype, device))
    yield from attempted("forbid", partial(_masks, device))


def _edits(dtype: torch.dtype, device: str) -> Iterator[Check]:
    generator = torch.Generator().manual_seed(7)
    places = (
        ("cpu", TorchSamplerOps(VOCAB)),
        (device, CudaSamplerOps(VOCAB, torch.device(device))),
    )
    for slot, length, sampling in zip(SLOTS, PROMPTS, KINDS, strict=True):
        # Few distinct tokens, so that most occur many times.
        prompt = torch.randint(0, 40, (length,), generator=generator).numpy()
        for _, ops in places:
            ops.join(slot, sampling, length, prompt, ENDS)
    # Rows of a batch in another order than those of the copy.
    order, different = np.array([5, 0, 2, 3]), 0
    for step in range(STEPS):
        logits = (torch.randn(6, VOCAB, generator=generator) * 3).to(dtype)
        tokens = torch.randint(0, 40, (6,), generator=generator)
        edited = Edited(np.arange(4), order, np.array(SLOTS), np.array(PROMPTS) + step)
        here, there = (_one(ops, logits, tokens, edited, where) for where, ops in places)
        different += int((here != there).sum())
    kind = str(dtype).removeprefix("torch.")
    yield Check(f"edit logits {kind}", different, 0, "numbers")


def _one(
    ops: SamplerOps, logits: torch.Tensor, tokens: torch.Tensor, edited: Edited, device: str
) -> torch.Tensor:
    """A step's edited rows [4, V], back on the CPU; then these tokens are taken as drawn."""
    logits = logits.to(device)
    copy = logits.index_select(0, torch.from_numpy(edited.rows).to(device)).float()
    ops.edit(copy, logits, edited)
    ops.append(tokens.to(device), edited)
    return copy.cpu()


def _masks(device: str) -> Iterator[Check]:
    """Masks with more words than the vocabulary needs."""
    chance, different = np.random.default_rng(3), 0
    for vocab, words in ((VOCAB, 10), (VOCAB, 13), (64, 2)):
        masks = chance.integers(-(2**31), 2**31, (2, words)).astype(np.int32)
        logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(words))
        allowed = Allowed(np.array([3, 1]), masks)
        copies = [logits.clone(), logits.to(device, copy=True)]
        TorchSamplerOps(vocab).forbid(copies[0], allowed)
        CudaSamplerOps(vocab, torch.device(device)).forbid(copies[1], allowed)
        different += int((copies[0] != copies[1].cpu()).sum())
    yield Check("forbid what a mask forbids", different, 0, "numbers")
