"""Log-probabilities of a prompt's own tokens equal transformers', however the prompt is cut."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.model.model import CausalModel
from daemon.engine.step import scoring
from daemon.engine.step.step import Engine
from daemon.protocol.worker import PromptLogprobs
from daemon.state.request import SamplingParams
from tests.engine.driver import Driver, Running
from tests.engine.model.test_exactness import driver, load, prompt
from tests.engine.tiny import greedy, reference, save

DEPTH = 3
ASKS = SamplingParams(temperature=0.0, ignore_eos=True, prompt_logprobs=DEPTH)
TOLERANCE = 2e-3


@pytest.fixture(scope="module", params=["llama", "opt"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def shared(name: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder: Path = save(name, tmp_path_factory.mktemp(name))
    return load(folder)


@pytest.fixture
def engine(shared: Engine) -> Any:
    """The same one each time; every slot is left at the end."""
    yield shared
    for slot in range(8):
        shared.scorer.leave(slot)


def step(engine: Engine, plans: Driver, work: list[tuple[Running, int]]) -> list[PromptLogprobs]:
    with torch.inference_mode():
        reply = engine.run(plans.plan(work))
    plans.take(work, reply)
    return list(reply.prompts)


def held_against(name: str, tokens: list[int], told: list[PromptLogprobs]) -> None:
    """Fail unless every token but the first was told once, as transformers computes it."""
    with torch.no_grad():
        logits = reference(name)(torch.tensor([tokens])).logits[0].float()
    expected = logits.log_softmax(-1)
    told.sort(key=lambda one: one.start)
    starts = np.cumsum([1, *(len(one.chosen) for one in told)])
    assert [one.start for one in told] == starts[:-1].tolist()
    assert starts[-1] == len(tokens)
    chosen = np.concatenate([one.chosen for one in told])
    values = np.concatenate([one.top_values for one in told]).reshape(-1, DEPTH)
    ids = np.concatenate([one.top_ids for one in told]).reshape(-1, DEPTH)
    own = expected[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])]
    best = expected[:-1].topk(DEPTH)
    np.testing.assert_allclose(chosen, own.numpy(), atol=TOLERANCE)
    np.testing.assert_allclose(values, best.values.numpy(), atol=TOLERANCE)
    assert (ids == best.indices.numpy()).mean() > 0.98  # but for near ties


@pytest.mark.parametrize(("chunk", "piece"), [(64, 128), (40, 7), (1, 4)])
def test_chunks_and_pieces(
    engine: Engine, name: str, monkeypatch: pytest.MonkeyPatch, chunk: int, piece: int
) -> None:
    monkeypatch.setattr(scoring, "PIECE_TOKENS", piece)
    plans, tokens = driver(), prompt(41, 3)
    neighbour = plans.add(0, prompt(12, 4))
    assert step(engine, plans, [(neighbour, 12)]) == []
    asks = plans.add(1, tokens, ASKS)
    told: list[PromptLogprobs] = []
    while asks.num_computed < len(tokens):
        count = min(chunk, len(tokens) - asks.num_computed)
        told += step(engine, plans, [(neighbour, 1), (asks, count)])
    for _ in range(3):
        assert step(engine, plans, [(neighbour, 1), (asks, 1)]) == []
    assert {one.sequence for one in told} == {101}
    held_against(name, tokens, told)
    # What is computed twice is computed the same: the answers do not know of it.
    assert asks.outputs == greedy(reference(name), tokens, len(asks.outputs))
    assert neighbour.outputs == greedy(reference(name), prompt(12, 4), len(neighbour.outputs))


def test_a_prompt_that_is_computed_again_is_told_again(engine: Engine, name: str) -> None:
    plans, tokens = driver(), prompt(30, 8)
    first = plans.add(0, tokens, ASKS)
    step(engine, plans, [(first, 20)])
    plans.leave(first)
    again = plans.add(2, tokens, ASKS)
    held_against(name, tokens, step(engine, plans, [(again, 30)]))


def test_nothing_is_computed_twice(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    computed, largest = [], []

    def states(self: CausalModel, batch: FlatBatch, *rest: Any) -> torch.Tensor:
        computed.append(len(batch.tokens))
        return plain_states(self, batch, *rest)

    def head(self: CausalModel, rows: torch.Tensor) -> torch.Tensor:
        largest.append(len(rows))
        return plain_head(self, rows)

    plain_states, plain_head = CausalModel.states, CausalModel.head
    monkeypatch.setattr(CausalModel, "states", states)
    monkeypatch.setattr(CausalModel, "head", head)
    monkeypatch.setattr(scoring, "PIECE_TOKENS", 8)
    plans, tokens = driver(), prompt(41, 3)
    asks = plans.add(1, tokens, ASKS)
    for count in (30, 11):
        step(engine, plans, [(asks, count)])
    assert computed == [30, 11]
    assert max(largest) == 8


def test_a_prompt_of_one_token_has_none(engine: Engine) -> None:
    plans = driver()
    single = plans.add(0, [7], ASKS)
    assert step(engine, plans, [(single, 1)]) == []
    assert len(single.outputs) == 1
