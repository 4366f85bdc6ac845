"""The sampler as the worker uses it: slots, history, edits, log-probabilities, errors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.engine.sampler import Sampled, Sampler
from daemon.engine.worker.warm_up import warm
from daemon.state.request import SamplingParams
from tests.engine.sampler import reference

VOCAB = 31
EOS = (2,)


def one(sampler: Sampler, row: torch.Tensor, slot: int, position: int) -> int:
    return int(sampler.sample(row.unsqueeze(0), [slot], [position]).tokens[0])


def test_greedy_is_argmax_and_leaves_the_logits_alone() -> None:
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0))
    logits[1, [4, 9]] = 50.0
    before = logits.clone()
    sampler = Sampler(VOCAB, "cpu", EOS)
    for slot in range(6):
        sampler.join(slot, SamplingParams(temperature=0.0 if slot else 1e-9), 3)
    result = sampler.sample(logits, list(range(6)), [3] * 6)
    assert torch.equal(result.tokens, logits.argmax(-1))
    assert result.tokens.dtype == torch.int64 and result.read().logprobs is None
    assert torch.equal(logits, before)


penalties = st.builds(
    SamplingParams,
    temperature=st.just(0.0),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.7, -0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logit_bias=st.sampled_from([(), ((5, 3.0), (6, -100.0), (5, 4.0), (400, 9.0))]),
    stop_token_ids=st.sampled_from([(), (7, 8)]),
    ignore_eos=st.booleans(),
    min_tokens=st.sampled_from([0, 3]),
)


@settings(max_examples=80, deadline=None)
@given(sampling=penalties, seed=st.integers(0, 2**16), cut=st.integers(0, 8))
def test_edits_follow_the_reference_through_an_answer(
    sampling: SamplingParams, seed: int, cut: int
) -> None:
    """Greedy answers of 12 tokens, the sequence leaving and joining again after `cut` of them."""
    logits = torch.randn(12, VOCAB, generator=torch.Generator().manual_seed(seed))
    prompt, outputs = [1, 2, 5, 5, 30], []
    ends = () if sampling.ignore_eos else EOS
    sampler = Sampler(VOCAB, "cpu", EOS)
    sampler.join(3, sampling, 5, np.asarray(prompt, np.int32))
    known = tuple(b for b in sampling.logit_bias if b[0] < VOCAB)
    plain = SamplingParams(**{**_fields(sampling), "logit_bias": known})
    for step in range(12):
        if step == cut:
            sampler.leave(3)
            sampler.join(9, sampling, 5, prompt + outputs)
        token = one(sampler, logits[step], 9 if step >= cut else 3, 5 + step)
        row = reference.edited(logits[step].double().numpy(), plain, prompt, outputs, ends)
        assert row[token] >= row.max() - 1e-5
        outputs.append(token)


def _fields(sampling: SamplingParams) -> dict[str, object]:
    return {name: getattr(sampling, name) for name in sampling.__struct_fields__}


def test_histories_grow_past_their_first_room() -> None:
    sampling = SamplingParams(temperature=0.0, frequency_penalty=1.0)
    sampler = Sampler(VOCAB, "cpu")
    sampler.join(0, sampling, 1, [3])
    drawn = [one(sampler, torch.zeros(VOCAB), 0, 1 + i) for i in range(10 * VOCAB)]
    assert np.bincount(drawn, minlength=VOCAB).tolist() == [10] * VOCAB


def test_a_gap_in_the_history_is_an_error() -> None:
    sampler = Sampler(VOCAB, "cpu")
    sampler.join(0, SamplingParams(presence_penalty=1.0), 1, [3])
    with pytest.raises(ValueError, match="follows 1 known"):
        one(sampler, torch.zeros(VOCAB), 0, 5)


def test_a_slot_forgets_its_last_sequence() -> None:
    sampler = Sampler(VOCAB, "cpu")
    sampler.join(0, SamplingParams(temperature=0.0, logit_bias=((4, 50.0),)), 1)
    assert one(sampler, torch.zeros(VOCAB), 0, 1) == 4
    sampler.join(0, SamplingParams(temperature=0.0), 1)
    assert one(sampler, torch.zeros(VOCAB), 0, 1) == 0


def test_min_tokens_hold_ends_back_and_eos_is_free_when_ignored() -> None:
    row = torch.zeros(VOCAB)
    row[2], row[7] = 9.0, 8.0
    for sampling, first in (
        (SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(7,)), 0),
        (SamplingParams(temperature=0.0, min_tokens=2), 7),
        (SamplingParams(temperature=0.0, min_tokens=2, ignore_eos=True), 2),
    ):
        sampler = Sampler(VOCAB, "cpu", EOS)
        sampler.join(0, sampling, 4)
        assert [one(sampler, row, 0, 4 + i) for i in range(3)] == [first, first, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_of_the_raw_distribution(dtype: torch.dtype) -> None:
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(1)).to(dtype)
    sampler = Sampler(VOCAB, "cpu")
    sampler.join(0, SamplingParams(temperature=0.0, logprobs=3, logit_bias=((8, 99.0),)), 2)
    sampler.join(1, SamplingParams(), 2)
    sampler.join(2, SamplingParams(temperature=0.3, top_k=2, logprobs=0), 2)
    sampler.join(3, SamplingParams(logprobs=5), 2)
    result = sampler.sample(logits, [0, 1, 2, 3], [2] * 4)
    expected = logits.float().log_softmax(-1)
    got = result.read().logprobs
    assert got is not None and result.tokens[0] == 8
    assert got.rows.tolist() == [0, 2, 3] and got.rows.dtype == np.int32
    assert got.top_ids.dtype == np.int32 and got.chosen.dtype == np.float32
    chosen = expected[torch.arange(4), result.tokens][[0, 2, 3]]
    np.testing.assert_allclose(got.chosen, chosen, atol=1e-5)
    best = expected[[0, 2, 3]].topk(5).values
    np.testing.assert_allclose(got.top_values.reshape(3, 5), best, atol=1e-5)
    ids = torch.from_numpy(got.top_ids.reshape(3, 5).astype(np.int64))
    np.testing.assert_allclose(expected[[0, 2, 3]].gather(1, ids), best, atol=1e-5)


def test_only_the_drawn_tokens_logprob() -> None:
    sampler = Sampler(VOCAB, "cpu")
    sampler.join(0, SamplingParams(logprobs=0), 2)
    got = sampler.sample(torch.zeros(1, VOCAB), [0], [2]).read().logprobs
    assert got is not None and len(got.top_ids) == len(got.top_values) == 0
    np.testing.assert_allclose(got.chosen, [-np.log(VOCAB)], rtol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_k", [0, 5])
def test_broken_logits_end_their_own_rows_alone(bad: float, temperature: float, top_k: int) -> None:
    logits = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(3))

    def drawn() -> Sampled:
        sampler = Sampler(VOCAB, "cpu")
        for slot in range(5):
            penalty = 0.5 if slot in {1, 2} else 0.0
            sampling = SamplingParams(temperature, top_k, seed=slot, presence_penalty=penalty)
            sampler.join(slot, sampling, 1, [slot])
        return sampler.sample(logits, range(5), [1] * 5)

    whole = drawn()
    assert not len(whole.read().broken)
    logits[1, 17] = bad
    logits[4] = -torch.inf
    part = drawn()
    assert part.read().broken.tolist() == [1, 4]
    assert part.tokens[[1, 4]].tolist() == [0, 0]
    assert torch.equal(part.tokens[[0, 2, 3]], whole.tokens[[0, 2, 3]])


def test_masked_tokens_are_never_drawn() -> None:
    logits = torch.full((64, VOCAB), -torch.inf)
    logits[:, [3, 11]] = 0.0
    for sampling in (SamplingParams(), SamplingParams(top_p=0.99), SamplingParams(top_k=9)):
        sampler = Sampler(VOCAB, "cpu")
        sampler.join(0, sampling, 1)
        tokens = sampler.sample(logits, [0] * 64, np.arange(1, 65)).tokens
        assert set(tokens.tolist()) == {3, 11}


def test_first_draws_leave_nothing_behind() -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(5))
    samplers = [Sampler(VOCAB, "cpu", EOS) for _ in range(2)]
    warm(samplers[0], torch.bfloat16)
    drawn = []
    for sampler in samplers:
        for slot in (0, 1):
            sampler.join(slot, SamplingParams(seed=slot, min_tokens=slot), 1)
        drawn.append(sampler.sample(logits, [0, 1], [1, 1]).read())
    assert drawn[0].tokens.tolist() == drawn[1].tokens.tolist()
    assert drawn[0].logprobs is None and drawn[0].tokens.dtype == np.int32


def test_rows_that_are_edited_do_not_change_the_others() -> None:
    """The edited ones are drawn from a copy; NaN in one of either kind ends that row alone."""
    logits = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(6)).bfloat16()
    kinds = [
        SamplingParams(seed=slot, logit_bias=((slot, 2.0),) if slot % 2 else ())
        for slot in range(6)
    ]

    def drawn(rows: list[int]) -> Sampled:
        sampler = Sampler(VOCAB, "cpu")
        for slot in rows:
            sampler.join(slot, kinds[slot], 1)
        return sampler.sample(logits[rows], rows, [1] * len(rows))

    alone = [int(drawn([row]).tokens[0]) for row in range(6)]
    assert drawn([0, 1, 2, 3, 4, 5]).tokens.tolist() == alone
    assert drawn([3, 0, 5]).tokens.tolist() == [alone[3], alone[0], alone[5]]
    logits[2, 0] = logits[3, 0] = torch.nan
    broken = drawn([0, 1, 2, 3, 4, 5]).read()
    assert broken.broken.tolist() == [2, 3]
    alone[2] = alone[3] = 0
    assert broken.tokens.tolist() == alone
