"""The CPU's compiled draws and edits against the plainest ones that there are, and torch's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.engine.cpu import calls
from daemon.engine.cpu.calls import SampleColumns
from daemon.engine.cpu.kernels import run_program
from daemon.engine.cpu.kernels_sample import FEW
from daemon.engine.cpu.sampler_ops import CpuSamplerOps
from daemon.engine.cpu.team import Team
from daemon.engine.sampler import Sampler
from daemon.engine.sampler.edits import SlotEdits
from daemon.engine.sampler.noise import BLOCK, UInts, keys, noise
from daemon.engine.sampler.rules import DrawRules, Float64
from daemon.engine.sampler.sample_columns import EDIT_COLUMNS, FARTHEST, INVERSE, TOP_K, TOP_P
from daemon.state.request import SamplingParams
from daemon.wire.columns import Int32
from tests.engine.sampler.reference import distribution

LIKELY = 20 / 512
"""A token of this chance is among 512 draws: but for one time in 10 ** 9."""


def drawn(logits: torch.Tensor, sampling: SamplingParams) -> Int32:
    """What each row of `logits` [R, V] draws, each with a seed of its own."""
    count = len(logits)
    rules = DrawRules.greedy(count, 1).rules
    rules[:, INVERSE] = 1.0 / sampling.temperature
    rules[:, TOP_K], rules[:, TOP_P] = sampling.top_k, sampling.top_p
    rules[:, FARTHEST] = -np.log(sampling.min_p) if sampling.min_p else np.inf
    found, broken, tokens = np.empty((3, count), np.int32)
    drawing = SampleColumns(rules, places(count), found, broken, tokens)
    Team(run_program).run(calls.sample(logits, drawing))
    assert not broken.any() and tokens.tolist() == found.tolist()
    return found


def places(count: int) -> UInts:
    return keys(np.arange(count, dtype=np.uint64), np.full(count, 5))


def near(row: torch.Tensor, sampling: SamplingParams, factor: float) -> Float64:
    """Probabilities where a cut is that much farther."""
    nudged = {
        "top_p": min(1.0, sampling.top_p * factor),
        "min_p": min(1.0, sampling.min_p / factor),
    }
    if sampling.top_p == 1.0:
        nudged["top_p"] = 1.0
    numbers = row.double().numpy()
    return distribution(
        numbers,
        SamplingParams(sampling.temperature, top_k=sampling.top_k, **nudged),  # type: ignore[arg-type]
    )


@settings(max_examples=150, deadline=None)
@given(
    levels=st.lists(st.integers(0, 8), min_size=2, max_size=40),
    times=st.sampled_from([1, 1, 30]),
    shift=st.integers(0, 1),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.77, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.03, 0.26, 1.0]),
    temperature=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_what_stays_is_what_a_full_sort_keeps(
    levels: list[int],
    times: int,
    shift: int,
    top_k: int,
    top_p: float,
    min_p: float,
    temperature: float,
) -> None:
    """Many ties; wide rows of them cannot be gathered."""
    row = torch.tensor(levels * times, dtype=torch.float32) / 3 - shift * max(levels) / 3
    row[1::2] = torch.where(row[1::2] == 0.0, -0.0, row[1::2])
    top_k = 0 if top_k >= len(row) else top_k
    sampling = SamplingParams(temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    got = set(drawn(row.expand(512, -1).contiguous(), sampling).tolist())
    least, most = (near(row, sampling, factor) for factor in (1 - 1e-5, 1 + 1e-5))
    may = set(np.flatnonzero(most).tolist())
    must = {int(one) for one in np.flatnonzero((least > LIKELY) & (most > LIKELY))}
    assert must <= got <= may


@pytest.mark.parametrize("width", [1, BLOCK - 1, BLOCK, FEW + 1, 5003, 49_152])
@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, 30.0])
@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(1.0),
        SamplingParams(0.3),
        SamplingParams(1.7, top_k=700),
        SamplingParams(1.0, top_k=40, top_p=0.9),
        SamplingParams(1.0, top_p=0.97, min_p=0.01),
        SamplingParams(2.0, min_p=1e-9),
    ],
)
def test_the_best_score_within_the_cuts_is_drawn(
    width: int, scale: float, sampling: SamplingParams
) -> None:
    chance = np.random.default_rng(width)
    logits = torch.from_numpy(chance.standard_normal((6, width), np.float32) * np.float32(scale))
    logits[:, :: max(2, width // 3)] = -torch.inf
    logits[:, 0] = logits[:, -1] = 1.5 * scale
    scores = noise(places(6)[:, None], np.arange(width))
    inverse = np.float32(1.0 / sampling.temperature)
    for row, token, own in zip(logits, drawn(logits, sampling), scores, strict=True):
        depths = (row.max() - row).numpy() * inverse
        least, most = (near(row, sampling, factor) > 0 for factor in (1 - 1e-5, 1 + 1e-5))
        allowed = [np.where(kept, own - depths, -np.inf) for kept in (least, most)]
        assert token in [int(one.argmax()) for one in allowed]


KINDS = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.4, -0.3]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -1.1]),
    logit_bias=st.sampled_from([(), ((3, 2.5), (0, -100.0)), ((5, 1.0), (5, 2.0), (999, 1.0))]),
    min_tokens=st.integers(0, 6),
)


@given(KINDS, st.lists(st.integers(0, 19), max_size=30), st.integers(0, 9), st.integers(0, 99))
def test_edits_are_those_of_torch(
    sampling: SamplingParams, history: list[int], num_prompt: int, seed: int
) -> None:
    """To the last bit, for several tokens on end."""
    width, num_prompt = 20, min(num_prompt, len(history))
    plain, compiled = (SlotEdits(sampling, num_prompt, history, (2, 7), width) for _ in range(2))
    rows = np.zeros((1, EDIT_COLUMNS), np.int64)
    chance = np.random.default_rng(seed)
    compiled.fill(rows[0], len(history), 3)
    drawing = SampleColumns(
        DrawRules.greedy(1, 1).rules, places(1), *np.empty((3, 1), np.int32), rows
    )
    for time in range(3):
        logits = torch.from_numpy(chance.standard_normal((1, width), np.float32))
        expected = logits[0].clone()
        plain.apply(expected, len(history) + time)
        Team(run_program).run(calls.edit(logits, rows))
        assert torch.equal(logits[0], expected)
        Team(run_program).run(calls.sample(logits, drawing))
        plain.append(int(drawing.drawn[0]))
    compiled.filled(3)
    row = torch.from_numpy(chance.standard_normal(width, np.float32))
    other = row.clone()
    plain.apply(row, len(history) + 3)
    compiled.apply(other, len(history) + 3)
    assert torch.equal(row, other)


def test_a_history_that_is_not_whole_is_refused() -> None:
    sampler = Sampler(20, "cpu", ops=CpuSamplerOps(20, Team(run_program)))
    sampler.join(0, SamplingParams(frequency_penalty=0.5), 2, [3, 4])
    with pytest.raises(ValueError, match="the token at 5 follows 2 known tokens"):
        sampler.rules([0], [5], 3)
    assert sampler.rules([0], [2], 3) is not None
    sampler.join(0, SamplingParams(logprobs=1), 2)
    assert sampler.rules([0], [2], 3) is None, "something is told of them"
