"""Rows that only some tokens may be drawn of: by every kind of draw, and no other row changes."""

import numpy as np
import pytest
import torch

from daemon.engine.sampler import Sampler
from daemon.engine.sampler.allowed import Allowed
from daemon.state.request import SamplingParams

VOCAB_SIZE = 301
ROWS = 7

WAYS = [
    SamplingParams(temperature=0.0),
    SamplingParams(seed=3),
    SamplingParams(seed=3, top_k=40),
    SamplingParams(seed=3, top_k=200),
    SamplingParams(seed=3, top_p=0.7),
    SamplingParams(seed=3, min_p=0.05),
    SamplingParams(seed=3, logit_bias=((5, 100.0),), min_tokens=4, logprobs=2),
]


def bits(tokens: list[int], words: int = -(-VOCAB_SIZE // 32)) -> np.ndarray:
    wanted = np.zeros(words * 32, np.uint8)
    wanted[tokens] = 1
    return np.packbits(wanted, bitorder="little").view(np.int32)


def sampler(sampling: SamplingParams) -> Sampler:
    made = Sampler(VOCAB_SIZE, "cpu", eos_ids=(1,))
    for slot in range(ROWS):
        made.join(slot, sampling, num_prompt_tokens=10)
    return made


@pytest.mark.parametrize("sampling", WAYS)
@pytest.mark.parametrize("words", [10, 12])
def test_only_what_is_allowed_is_drawn(sampling: SamplingParams, words: int) -> None:
    torch.manual_seed(1)
    logits = 3 * torch.randn(ROWS, VOCAB_SIZE)
    before = logits.clone()
    allowed = {0: [300], 2: [7, 31, 32, 63], 5: list(range(100, 280)), 6: [0]}
    masks = np.stack([bits(tokens, words) for tokens in allowed.values()])
    bound = Allowed(np.array(list(allowed)), masks)
    slots, positions = range(ROWS), [10] * ROWS
    free = sampler(sampling).sample(logits, slots, positions)
    drawn = sampler(sampling).sample(logits, slots, positions, bound)
    tokens = drawn.tokens.tolist()
    for row in range(ROWS):
        if row in allowed:
            assert tokens[row] in allowed[row]
        else:
            assert tokens[row] == free.tokens[row]
    assert torch.equal(logits, before)
    logprobs = drawn.read().logprobs
    if logprobs is not None:  # those of the model, not of what is left of it
        chosen = before.log_softmax(-1)[torch.arange(ROWS), drawn.tokens]
        np.testing.assert_allclose(logprobs.chosen, chosen.numpy(), rtol=1e-5)


def test_a_draw_among_few_has_their_own_odds() -> None:
    logits = torch.zeros(2000, VOCAB_SIZE)
    logits[:, 9] = np.log(3.0)
    made = Sampler(VOCAB_SIZE, "cpu")
    made.join(0, SamplingParams(seed=8, top_k=50), num_prompt_tokens=0)
    rows = np.arange(2000)
    bound = Allowed(rows, np.repeat(bits([4, 9])[None], 2000, axis=0))
    drawn = made.sample(logits, np.zeros(2000, np.int64), rows, bound).tokens
    assert 0.70 < float((drawn == 9).double().mean()) < 0.80
    assert set(drawn.tolist()) == {4, 9}
