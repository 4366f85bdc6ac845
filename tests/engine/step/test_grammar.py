"""Answers that follow a grammar: the engine's tokens equal a plain loop's, whatever happens."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLTokenizer
from transformers import AutoModelForCausalLM

from daemon.engine.step.step import Engine
from daemon.models.grammar import BROKEN_OFF, Compiler
from daemon.state.request import FinishReason, SamplingParams
from tests.api.folder import EOS, tokenizer
from tests.e2e.tiny import tiny_folder
from tests.engine.driver import Driver, Running
from tests.engine.model.test_exactness import driver, load, run

PROMPT = list(range(40, 61))
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "color": {"enum": ["red", "green", "blue"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 2},
    },
    "required": ["name", "color", "sizes"],
    "additionalProperties": False,
}
COMPACT = {"whitespace_flexible": False}
SHORT = LLMatcher.grammar_from_json_schema(
    {**SCHEMA, "properties": {**SCHEMA["properties"], "sizes": {"const": [7]}}}, overrides=COMPACT
)
LETTERS = LLMatcher.grammar_from_regex("[ab]{6}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("grammar") / "tiny")


@pytest.fixture(scope="module")
def shared(folder: Path) -> Engine:
    return load(folder)


@pytest.fixture
def engine(shared: Engine) -> Any:
    """The same one each time; every slot is left at the end."""
    yield shared
    for slot in range(8):
        shared.grammars.leave(slot)
        shared.sampler.leave(slot)


def greedy(grammar: str, **fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, grammar=grammar, **fields)


def text(sequence: Running) -> str:
    decoded: str = tokenizer().decode(sequence.outputs, skip_special_tokens=True)
    return decoded


def finish(engine: Engine, plans: Driver, sequences: list[Running], limit: int = 80) -> None:
    """Steps of all that have not ended."""
    while going := [s for s in sequences if not any(s.reasons) and len(s.outputs) < limit]:
        run(engine, plans, [(s, len(s.tokens) - s.num_computed) for s in going])


def answer(engine: Engine, sampling: SamplingParams, limit: int = 80) -> Running:
    """One sequence alone, to its end."""
    plans = driver()
    sequence = plans.add(0, PROMPT, sampling)
    finish(engine, plans, [sequence], limit)
    plans.leave(sequence)
    run(engine, plans, [])
    return sequence


def plain_loop(folder: Path, grammar: str) -> list[int]:
    """Greedy tokens of transformers' model, of those that a new matcher allows each time."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").float()
    vocabulary = LLTokenizer(str(folder / "tokenizer.json"), eos_token=EOS)
    outputs: list[int] = []
    while EOS not in outputs:
        matcher = LLMatcher(vocabulary, grammar)
        assert matcher.consume_tokens(outputs)
        octets = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(octets, bitorder="little")
        with torch.no_grad():
            logits = model(torch.tensor([PROMPT + outputs])).logits[0, -1].numpy()
        logits[allowed[: len(logits)] == 0] = -np.inf
        outputs.append(int(logits.argmax()))
    return outputs


def test_an_answer_is_the_plain_loop_s(engine: Engine, folder: Path) -> None:
    sequence = answer(engine, greedy(SHORT))
    assert sequence.outputs == plain_loop(folder, SHORT)
    assert sequence.reasons[-1] == FinishReason.STOP
    value = json.loads(text(sequence))
    assert list(value) == ["name", "color", "sizes"]
    assert value["color"] in {"red", "green", "blue"}
    assert value["sizes"] == [7]


def test_neighbours_and_chance_change_nothing(engine: Engine) -> None:
    free = SamplingParams(seed=5, ignore_eos=True)
    wanted = [
        *(SamplingParams(seed=seed, grammar=SHORT) for seed in range(3)),
        SamplingParams(seed=4, grammar=LETTERS, top_k=20),
        SamplingParams(seed=4, grammar=LETTERS, top_p=0.9, min_p=0.01, frequency_penalty=0.5),
        free,
    ]
    plans = driver()
    together = [plans.add(slot, PROMPT, sampling) for slot, sampling in enumerate(wanted)]
    finish(engine, plans, together, 150)
    for sequence, sampling in zip(together, wanted, strict=True):
        alone = answer(engine, sampling, 150)
        assert sequence.outputs == alone.outputs
        assert any(sequence.reasons) == (sampling is not free)
    assert len({tuple(s.outputs) for s in together[:3]}) == 3


@pytest.mark.parametrize("kept", [1, 9])
def test_recompute_goes_on_where_the_answer_was(engine: Engine, kept: int) -> None:
    sampling = SamplingParams(seed=11, grammar=SHORT)
    whole = answer(engine, sampling).outputs
    plans = driver()
    first = plans.add(2, PROMPT, sampling)
    while len(first.outputs) < kept:
        run(engine, plans, [(first, len(first.tokens) - first.num_computed)])
    plans.leave(first)
    again = plans.add(3, first.tokens, sampling)
    # A sequence that comes back brings its outputs as history, behind the same prompt.
    plans.joins = [msgspec.structs.replace(plans.joins[0], num_prompt_tokens=len(PROMPT))]
    finish(engine, plans, [again])
    assert first.outputs + again.outputs == whole


def test_min_tokens_and_bias_keep_to_the_grammar(engine: Engine) -> None:
    letters = LLMatcher.grammar_from_regex("[ab]{1,40}")
    eager = answer(engine, greedy(letters, logit_bias=((EOS, 100.0),)))
    assert len(eager.outputs) == 2  # a piece, and the end as soon as there may be one
    patient = answer(engine, greedy(letters, logit_bias=((EOS, 100.0),), min_tokens=7))
    assert len(patient.outputs) == 8
    assert patient.outputs.index(EOS) == 7
    # What is complete ends, however many tokens were hoped for.
    complete = answer(engine, greedy(LETTERS, min_tokens=60))
    assert len(text(complete)) == 6
    assert complete.reasons[-1] == FinishReason.STOP


def test_a_stop_token_waits_until_the_grammar_is_complete(engine: Engine) -> None:
    stop = tokenizer().token_to_id("b")
    bias = ((stop, 100.0),)
    sequence = answer(engine, greedy(LETTERS, stop_token_ids=(stop,), logit_bias=bias))
    assert tokenizer().decode(sequence.outputs[:-1]) == "a" * 6
    assert sequence.outputs[-1] == stop
    assert sequence.reasons == [0] * (len(sequence.outputs) - 1) + [FinishReason.STOP]


def test_a_step_in_flight_behind_the_end_does_no_harm(engine: Engine) -> None:
    plans = driver()
    sequence = plans.add(0, PROMPT, greedy(LETTERS))
    finish(engine, plans, [sequence])
    for _ in range(2):
        run(engine, plans, [(sequence, 1)])
    assert text(sequence)[:6] == text(answer(engine, greedy(LETTERS)))


Spoil = Callable[[pytest.MonkeyPatch, Engine], str]


def wrong(_patch: pytest.MonkeyPatch, _engine: Engine) -> str:
    return LLMatcher.grammar_from_lark("start: nowhere")


def too_complex(_patch: pytest.MonkeyPatch, _engine: Engine) -> str:
    alternatives = " | ".join("s " * count for count in range(1, 40))
    return LLMatcher.grammar_from_lark(f'start: s\ns: {alternatives} | "a" | ')


def no_library(patch: pytest.MonkeyPatch, engine: Engine) -> str:
    patch.setitem(sys.modules, "llguidance", None)
    patch.setattr(engine.grammars, "_compiler", None)
    return LETTERS


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (wrong, "nowhere"),
        (too_complex, "too much is possible at once"),
        (no_library, "a grammar needs llguidance"),
    ],
)
def test_what_cannot_be_followed_ends_its_own_sequence(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, spoil: Spoil, said: str
) -> None:
    neighbour = SamplingParams(seed=3, ignore_eos=True)
    expected = answer(engine, neighbour, 4).outputs
    plans = driver()
    grammar = spoil(monkeypatch, engine)
    sequences = [plans.add(0, PROMPT, greedy(grammar)), plans.add(1, PROMPT, neighbour)]
    while not any(sequences[0].reasons):
        work = [(one, len(one.tokens) - one.num_computed) for one in sequences]
        with torch.inference_mode():
            reply = engine.run(plans.plan(work))
        plans.take(work, reply)
    assert reply.reasons.tolist() == [FinishReason.ERROR, FinishReason.NONE]
    ((row, why),) = reply.errors
    assert row == 0
    assert said in why
    assert "\n" not in why
    finish(engine, plans, sequences[1:], 4)
    assert sequences[1].outputs[:4] == expected


def test_limits_that_others_used_up_are_no_answer_s_fault(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = answer(engine, greedy(LETTERS)).outputs

    def used_up(self: Compiler, grammar: str) -> LLMatcher:
        spent = self.matcher_anew(grammar)
        spent.consume_token(EOS)
        assert spent.is_error()
        return spent

    monkeypatch.setattr(Compiler, "matcher", used_up)
    assert answer(engine, greedy(LETTERS)).outputs == expected


def test_no_end_token_no_grammar(engine: Engine) -> None:
    plans = driver()
    sequence = plans.add(0, PROMPT, greedy(LETTERS, ignore_eos=True))
    with torch.inference_mode():
        reply = engine.run(plans.plan([(sequence, len(PROMPT))]))
    assert reply.errors == ((0, f"{BROKEN_OFF}a grammar needs a token that ends the answer"),)


def test_a_vocabulary_that_is_not_the_model_s(folder: Path) -> None:
    known = tokenizer().get_vocab_size()
    assert Compiler(folder, known + 70).mask_words == -(-(known + 70) // 32)
    assert Compiler(folder, 100).mask_words == -(-known // 32)
