"""Steps that are computed several times draw what so many single steps draw."""

import random
from collections.abc import Callable

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from daemon.engine.batch.multi_step import MOST_TIMES, KeptTokens
from daemon.engine.cpu import calls
from daemon.engine.cpu.calls import SampleColumns
from daemon.engine.cpu.kernels import run_program
from daemon.engine.cpu.team import Team
from daemon.engine.model.model import CausalModel
from daemon.engine.sampler.choose_tokens import choose_tokens
from daemon.engine.sampler.columns import SlotColumns
from daemon.engine.sampler.rules import DrawRules
from daemon.engine.step.step import Engine
from daemon.protocol.worker import Reply
from daemon.state.request import FinishReason, SamplingParams
from tests.engine.driver import Driver, Running
from tests.engine.step.test_drafts import BLOCK_SIZE, KINDS, NUM_BLOCKS, ended, loaded, logprobs
from tests.engine.tiny import VOCAB_SIZE, save

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
ENDING = SamplingParams(temperature=0.0, stop_token_ids=tuple(range(0, VOCAB_SIZE, 9)))
UNTOLD = {name: one for name, one in KINDS.items() if one.logprobs < 0}
GREEDY_KINDS = {"one": GREEDY, "other": GREEDY, "ending": ENDING}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Engine]:
    made: dict[tuple[str, str], Engine] = {}

    def engine(name: str, kv_dtype: str) -> Engine:
        if (name, kv_dtype) not in made:
            made[name, kv_dtype] = loaded(save(name, tmp_path_factory.mktemp(name)), kv_dtype)
        return made[name, kv_dtype]

    return engine


def run_several(engine: Engine, plans: Driver, rows: list[Running], times: int) -> Reply:
    """A step of decodes, so many times."""
    for row in rows:
        plans.grow(row, len(row.tokens) + times - 1)
    work = [(row, 1) for row in rows]
    plan = plans.plan(work)
    batch = msgspec.structs.replace(plan.batch, times=times)
    reply = engine.run(msgspec.structs.replace(plan, batch=batch))
    plans.take(work, reply)
    return reply


def answers(
    engine: Engine, kinds: dict[str, SamplingParams], times: Callable[[], int], most: int = 40
) -> tuple[list[list[int]], list[tuple[float, ...]]]:
    """What each kind of sequence gets, all of them together, and what is told of one's tokens."""
    plans = Driver(BLOCK_SIZE, random.sample(range(NUM_BLOCKS), NUM_BLOCKS))
    running, told = [], list[tuple[float, ...]]()
    for slot, (name, sampling) in enumerate(kinds.items()):
        prompt = random.Random(name).choices(range(2, VOCAB_SIZE), k=9 + slot)
        running.append(plans.add(slot, prompt, sampling))
    work = [(one, len(one.tokens)) for one in running]
    with torch.inference_mode():
        replies = [engine.run(plans.plan(work))]
        plans.take(work, replies[0])
        while going := [one for one in running if len(one.outputs) < most and not ended(one)]:
            least = min(most - len(one.outputs) for one in going)
            replies.append(run_several(engine, plans, going, min(times(), least)))
        for one in running:
            plans.leave(one)
        engine.run(plans.plan([]))
    for reply in replies:
        if reply.logprobs is not None:
            told += logprobs(reply.logprobs.chosen, reply.logprobs.top_values)
    return [one.outputs for one in running], told


@pytest.mark.parametrize("kinds", [GREEDY_KINDS, UNTOLD, KINDS], ids=["greedy", "untold", "any"])
@pytest.mark.parametrize(
    ("name", "kv_dtype"), [("llama", ""), ("qwen3", ""), ("llama", "int8"), ("opt", "")]
)
def test_they_draw_the_same(
    name: str,
    kv_dtype: str,
    kinds: dict[str, SamplingParams],
    engines: Callable[[str, str], Engine],
) -> None:
    engine, chance = engines(name, kv_dtype), random.Random(2)
    plain, told = answers(engine, kinds, lambda: 1)
    several, told_again = answers(engine, kinds, lambda: chance.randint(1, MOST_TIMES))
    assert several == plain and bool(told) == (kinds is KINDS)
    assert np.allclose(told_again, told, atol=1e-3)
    if kinds is GREEDY_KINDS:
        assert len(plain[2]) < 40, "none ended by itself"


def test_rows_of_whose_draws_nothing_is_told_stay_in_their_program(
    engines: Callable[[str, str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, calls_of = engines("llama", ""), list[int]()
    logits = CausalModel.logits

    def counted(self: CausalModel, *parts: object) -> torch.Tensor:
        calls_of.append(1)
        return logits(self, *parts)  # type: ignore[arg-type]

    monkeypatch.setattr(CausalModel, "logits", counted)
    answers(engine, {"one": GREEDY}, lambda: 8, 33)
    assert len(calls_of) == 1, "the prompt's alone"
    answers(engine, UNTOLD, lambda: 8, 33)
    assert len(calls_of) == 2
    answers(engine, {"told": KINDS["told"]}, lambda: 8, 33)
    assert len(calls_of) == 2 + 33, "its draws are the sampler's"


def test_a_row_whose_logits_are_no_numbers_fails_alone(
    engines: Callable[[str, str], Engine],
) -> None:
    """The keys of one sequence are not numbers from the middle of a step on."""
    engine = engines("llama", "")
    plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    prompts = [random.Random(n).choices(range(2, VOCAB_SIZE), k=BLOCK_SIZE - 2) for n in range(2)]
    rows = [plans.add(slot, prompt) for slot, prompt in enumerate(prompts)]
    work = [(row, len(row.tokens)) for row in rows]
    with torch.inference_mode():
        plans.take(work, engine.run(plans.plan(work)))
        engine.cache.blocks[rows[1].blocks[0]].fill_(torch.nan)
        reply = run_several(engine, plans, rows, 6)
        assert reply.reasons.tolist() == [0, FinishReason.ERROR]
        assert reply.counts.tolist() == [6, 1] and reply.tokens.size == 7
        assert [row for row, _ in reply.errors] == [6]
        engine.cache.blocks[rows[1].blocks[0]].zero_()
        for row in rows:
            plans.leave(row)
        engine.run(plans.plan([]))


@pytest.mark.parametrize("ends_at", [0, 3, 7])
def test_a_row_that_has_ended_is_computed_on(
    ends_at: int, engines: Callable[[str, str], Engine]
) -> None:
    """The next plan was made before anybody knew of its end, and begins where all times end."""
    engine, times = engines("llama", ""), 8
    penalised = SamplingParams(temperature=0.0, frequency_penalty=0.5, ignore_eos=True)
    outputs = answers(engine, {"penalised": penalised}, lambda: 1, times + 1)[0][0]
    ending = msgspec.structs.replace(penalised, stop_token_ids=(outputs[1 + ends_at],))
    plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    prompt = random.Random("penalised").choices(range(2, VOCAB_SIZE), k=9)
    row = plans.add(0, prompt, ending)
    with torch.inference_mode():
        plans.take([(row, 9)], engine.run(plans.plan([(row, 9)])))
        reply = run_several(engine, plans, [row], times)
        assert reply.reasons.tolist() == [FinishReason.STOP]
        assert reply.counts.tolist() == [outputs.index(outputs[1 + ends_at])]
        missing = times - int(reply.counts[0])
        row.num_computed, row.tokens = row.num_computed + missing, row.tokens + [0] * missing
        assert engine.run(plans.plan([(row, 1)])).tokens.size == 1
        plans.leave(row)
        engine.run(plans.plan([]))


def test_what_is_no_step_of_decodes_is_refused(engines: Callable[[str, str], Engine]) -> None:
    engine = engines("llama", "")
    plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    row = plans.add(0, [2, 3, 4])
    plan = plans.plan([(row, 3)])
    batch = msgspec.structs.replace(plan.batch, times=2)
    with pytest.raises(ValueError, match="not all of its rows decode"):
        engine.run(msgspec.structs.replace(plan, batch=batch))
    batch = msgspec.structs.replace(plan.batch, times=MOST_TIMES + 1)
    with pytest.raises(ValueError, match="8 times at most, not 9"):
        engine.run(msgspec.structs.replace(plan, batch=batch))
    plans.leave(row)
    engine.run(plans.plan([]))


@given(st.data())
def test_what_counts_of_each_row(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, MOST_TIMES)))
    reasons = data.draw(arrays.arrays(np.uint8, shape, elements=st.sampled_from([0, 0, 0, 1, 3])))
    tokens = np.arange(reasons.size, dtype=np.int32).reshape(shape)
    kept = KeptTokens.of(reasons)
    expected: list[int] = []
    for row, why in enumerate(reasons.tolist()):
        end = next((time for time, reason in enumerate(why) if reason), shape[1] - 1)
        num = 1 if why[end] == FinishReason.ERROR else end + 1
        assert kept.reasons[row] == why[end] and kept.firsts[row] == len(expected)
        expected += tokens[row, :num].tolist()
    assert kept.of_all(tokens).tolist() == expected


ODD = [0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), -float("nan"), 1e-42]


@given(st.data())
def test_the_draw_is_the_samplers(data: st.DataObject) -> None:
    """Ties, infinities and what is no number among them."""
    width = data.draw(st.sampled_from([1, 7, 512, 513, 1200]))
    numbers = st.sampled_from(ODD) | st.floats(width=32)
    seeds = data.draw(st.lists(numbers, min_size=1, max_size=6))
    chance = np.random.default_rng(data.draw(st.integers(0, 99)))
    logits = torch.from_numpy(chance.choice(np.array(seeds, np.float32), (2, width)))
    drawn, broken, tokens = np.full((3, 2), -1, np.int32)
    rules = DrawRules.greedy(2, 1)
    drawing = SampleColumns(rules.rules, rules.keys[0], drawn, broken, tokens)
    Team(run_program).run(calls.sample(logits, drawing))
    columns = SlotColumns(width)
    columns.join(0, GREEDY, edited=False)
    expected = choose_tokens(logits, columns.rows(np.zeros(2, np.int64)), np.zeros(2, np.int64))
    assert [drawn.tolist(), broken.tolist()] == expected.tolist()
    assert tokens.tolist() == drawn.tolist()
