"""Drafts change no token: whatever is drafted, the answers are those without."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from daemon.engine.model.model import CausalModel
from daemon.engine.sampler import Drafted
from daemon.engine.step.drafts import kept_of, rows_of
from daemon.engine.step.step import Engine
from daemon.engine.worker.start import start
from daemon.protocol.worker import Load
from daemon.state.request import FinishReason, SamplingParams
from tests.engine.driver import Driver, Running
from tests.engine.tiny import CONTEXT_LEN, VOCAB_SIZE, save

BLOCK_SIZE, NUM_BLOCKS = 8, 96
GREEDY = SamplingParams(temperature=0.0)
KINDS = {
    "greedy": GREEDY,
    "sampled": SamplingParams(temperature=1.5, seed=5, ignore_eos=True),
    "cut": SamplingParams(temperature=0.9, top_k=9, top_p=0.9, min_p=0.01, seed=6),
    "penalised": SamplingParams(
        temperature=0.7, seed=7, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3
    ),
    "held": SamplingParams(temperature=1.0, seed=8, min_tokens=9, logit_bias=((1, 4.0), (7, 2.0))),
    "stopped": SamplingParams(temperature=1.2, seed=9, stop_token_ids=tuple(range(20, 30))),
    "told": SamplingParams(temperature=0.8, seed=10, logprobs=3, repetition_penalty=1.1),
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Engine]:
    made: dict[tuple[str, str], Engine] = {}

    def engine(name: str, kv_dtype: str) -> Engine:
        if (name, kv_dtype) not in made:
            folder = save(name, tmp_path_factory.mktemp(name))
            made[name, kv_dtype] = loaded(folder, kv_dtype)
        return made[name, kv_dtype]

    return engine


def loaded(folder: Path, kv_dtype: str) -> Engine:
    message = Load(
        model=str(folder),
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_slots=8,
        max_len=CONTEXT_LEN,
        max_batch_tokens=64,
        kv_dtype=kv_dtype,
    )
    with torch.inference_mode():
        return start(message, lambda stage, done: None)[0]


Draft = Callable[[Running], list[int]]
Told = list[tuple[float, ...]]


def answers(engine: Engine, draft: Draft, num_tokens: int = 40) -> tuple[list[list[int]], Told]:
    """What each kind of sequence gets, all of them together, and what is told of one's tokens."""
    plans = Driver(BLOCK_SIZE, random.Random(1).sample(range(NUM_BLOCKS), NUM_BLOCKS))
    running = []
    for slot, (name, sampling) in enumerate(KINDS.items()):
        prompt = random.Random(name).choices(range(2, VOCAB_SIZE), k=9 + slot)
        running.append(plans.add(slot, prompt, sampling))
    told: Told = []
    while going := [one for one in running if len(one.outputs) < num_tokens and not ended(one)]:
        work = [(one, len(one.tokens) - one.num_computed) for one in going]
        drafts = [
            draft(one)[: num_tokens - len(one.outputs) - 1] if count == 1 else []
            for one, count in work
        ]
        with torch.inference_mode():
            reply = engine.run(plans.plan(work, drafts if any(drafts) else None))
        plans.take(work, reply)
        if reply.logprobs is not None:
            assert len(reply.logprobs.rows) == len(reply.logprobs.chosen)
            told += logprobs(reply.logprobs.chosen, reply.logprobs.top_values)
    for one in running:
        plans.leave(one)
    with torch.inference_mode():
        engine.run(plans.plan([]))
    return [one.outputs for one in running], told


def logprobs(chosen: np.ndarray, top: np.ndarray) -> Iterator[tuple[float, ...]]:
    for one, best in zip(chosen, top.reshape(len(chosen), -1), strict=True):
        yield (float(one), *map(float, best))


def ended(one: Running) -> bool:
    return bool(one.reasons) and one.reasons[-1] != FinishReason.NONE


def nothing(_one: Running) -> list[int]:
    return []


@pytest.mark.parametrize(
    ("name", "kv_dtype"), [("llama", ""), ("qwen3", ""), ("llama", "int8"), ("opt", "")]
)
def test_drafts_change_no_token(
    name: str, kv_dtype: str, engines: Callable[[str, str], Engine]
) -> None:
    engine = engines(name, kv_dtype)
    plain, told = answers(engine, nothing)
    assert told and all(len(one) > 1 for one in plain)
    chance = random.Random(3)
    lengths = {9 + slot: outputs for slot, outputs in enumerate(plain)}

    def right(one: Running) -> list[int]:
        return lengths[one.num_prompt_tokens][len(one.outputs) :][: chance.randrange(9)]

    def wrong(one: Running) -> list[int]:
        return chance.choices(range(VOCAB_SIZE), k=chance.randrange(6))

    def half(one: Running) -> list[int]:
        return [token if chance.random() < 0.8 else 1 for token in right(one)]

    for draft in (right, wrong, half):
        again, told_again = answers(engine, draft)
        assert again == plain
        assert np.allclose(told_again, told, atol=1e-3)


def test_right_drafts_save_steps(engines: Callable[[str, str], Engine]) -> None:
    engine, plans = engines("llama", ""), Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    truth = answers(engine, nothing)[0][1]
    one = plans.add(0, random.Random("sampled").choices(range(2, VOCAB_SIZE), k=10))
    plans.joins[0] = msgspec.structs.replace(plans.joins[0], sampling=KINDS["sampled"])
    counts = []
    for drafts in ([], truth[1:5], truth[6:8], [0, *truth[9:]], [*truth[10:12], 0, 0]):
        work = [(one, len(one.tokens) - one.num_computed)]
        with torch.inference_mode():
            reply = engine.run(plans.plan(work, [drafts]))
        plans.take(work, reply)
        counts.append(len(reply.tokens))
    assert counts == [1, 5, 3, 1, 3] and one.outputs == truth[:13]
    plans.leave(one)
    engine.run(plans.plan([]))


def drawn(rows: list[list[tuple[int, int, bool, bool]]]) -> tuple[np.ndarray, Drafted, np.ndarray]:
    """Rows of (draw, expected, is end, is broken), of sequences that each expect nothing last."""
    flat = [one for row in rows for one in (*row[:-1], (row[-1][0], -1, *row[-1][2:]))]
    draws, expected, ends, broken = (np.array(column) for column in zip(*flat, strict=True))
    firsts = np.array([not index for row in rows for index in range(len(row))])
    return draws, Drafted(expected, ends, firsts), broken


BITS = st.tuples(st.integers(0, 1), st.integers(0, 1), st.booleans(), st.booleans())


@given(st.lists(st.lists(BITS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_draw_counts_while_all_before_it_were_expected(
    rows: list[list[tuple[int, int, bool, bool]]],
) -> None:
    draws, drafted, broken = drawn(rows)
    kept = drafted.kept(draws, broken)
    wanted = []
    for row in rows:
        going = True
        for index, (draw, expected, is_end, is_broken) in enumerate(row):
            wanted.append(going and (index == 0 or not is_broken))
            last = index == len(row) - 1
            going = going and draw == expected and not (is_end or is_broken or last)
    assert kept.tolist() == wanted
    found = kept_of(drafted, kept)
    assert found.counts.sum() == kept.sum() and (found.counts > 0).all()
    assert found.rows[found.lasts].size == len(rows)


def test_nothing_is_drafted_where_numbers_would_be_others(
    engines: Callable[[str, str], Engine],
) -> None:
    """As where a product of few tokens is exact, and one of more rounds."""

    class Rounding(CausalModel):
        def alike(self, count: int, other: int) -> bool:
            return other <= 2

    whole = engines("llama", "")
    engine = replace(whole, model=Rounding(whole.model._forward))
    plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    truth = answers(whole, nothing)[0][0]
    one = plans.add(0, random.Random("greedy").choices(range(2, VOCAB_SIZE), k=9), GREEDY)
    for drafts, count in (([], 1), (truth[1:4], 1), (truth[2:3], 2)):
        work = [(one, len(one.tokens) - one.num_computed)]
        with torch.inference_mode():
            reply = engine.run(plans.plan(work, [drafts]))
        plans.take(work, reply)
        assert len(reply.tokens) == count
    assert one.outputs == truth[:4]
    plans.leave(one)
    engine.run(plans.plan([]))


def test_what_a_plan_may_not_say(engines: Callable[[str, str], Engine]) -> None:
    engine = engines("llama", "")
    plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    one = plans.add(0, [3] * 9, GREEDY)
    with pytest.raises(ValueError, match="2 drafts where there are 2"):
        engine.run(plans.plan([(one, 9)], [[4, 4]]))


def test_drafts_look_at_the_tokens_and_at_the_sampled_ones(
    engines: Callable[[str, str], Engine],
) -> None:
    slots = engines("llama", "").slots
    plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    decoding = plans.add(0, [3, 4, 5], GREEDY)
    decoding.num_computed = 2
    chunk = plans.add(1, list(range(2, 22)), GREEDY)
    plan = plans.plan([(decoding, 1), (chunk, 9)], [[6, 7], []])
    assert rows_of(plan, slots, lambda _count, _other: True).drafted is not None
    for differing in ((10, 12), (1, 3)):
        rows = rows_of(plan, slots, lambda *counts, bad=differing: counts != bad)
        assert rows.drafted is None
        assert rows.batch.num_tokens == 10
