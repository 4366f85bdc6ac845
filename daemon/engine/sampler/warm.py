"""The first draws, before anyone waits for one: a GPU's kernels are compiled when first used."""

import msgspec
import numpy as np
import torch

from daemon.engine.sampler.allowed import Allowed
from daemon.engine.sampler.sampler import Sampler
from daemon.state.request import SamplingParams

_KINDS = (SamplingParams(temperature=0.0), SamplingParams(), SamplingParams(top_p=0.9))


def warm(sampler: Sampler, dtype: torch.dtype) -> None:
    """Draw in every way there is, from logits of `dtype`; before any sequence takes a slot."""
    logits = torch.zeros(2, sampler.vocab_size, dtype=dtype, device=sampler.device)
    masks = np.full((1, -(-sampler.vocab_size // 32)), -1, np.int32)
    for kind in _KINDS:
        sampler.join(0, kind, 1)
        edited = msgspec.structs.replace(kind, frequency_penalty=0.5, logprobs=1)
        sampler.join(1, edited, 1, [0])
        # One row of the logits themselves, one of a copy.
        sampler.sample(logits, [0, 1], [1, 1], Allowed(np.array([1]), masks))
    for slot in (0, 1):
        sampler.leave(slot)
