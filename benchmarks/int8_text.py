"""What 8-bit KV does to the embedded model's text: `python -m benchmarks.int8_text`.

Every sequence leaves for the host pool and comes back in the middle of its greedy answer, packed as
ALISE's equation 8 says, once or after every so many tokens; or all stay, in a pool that holds keys
and values in 8 bits. What is compared, with a run in which every sequence stayed, in float32:

the same     how many greedy answers are the same to the last token, and how much of an answer comes
             before the first other token. Swapped plain, answers must not differ at all
perplexity   of one text, the answers of the run that stayed: as that run found it, and as a run
             does whose sequences are given that text token by token and swapped on the way
apart        mean distance of the log-probabilities of those tokens between these two
"""

import argparse
import os
from collections.abc import Iterator, Sequence
from itertools import islice, product
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from daemon.config.paths import default_cache
from daemon.engine.process import keep_compiled
from daemon.engine.step.step import Engine
from daemon.engine.worker.start import start
from daemon.length_models.prediction import Float32
from daemon.models.embedded import model_folder
from daemon.protocol.worker import Load, Reply
from daemon.state.request import SamplingParams
from daemon.wire.columns import Int32
from tests.engine.driver import Driver, Running

BLOCK_SIZE, NUM_BLOCKS, BATCH = 16, 512, 8
SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True, logprobs=0)
SCORING = SamplingParams(temperature=0.0, ignore_eos=True, prompt_logprobs=0)
TASKS = (
    "Explain {} to a child.",
    "Write a short story about {}.",
    "List five facts about {}.",
    "Compare {} with something else that people know.",
    "Why does {} matter? Answer briefly.",
    "Here are notes: {0} is old; {0} is useful; {0} is hard to make. Sum them up.",
)
TOPICS = ("gravity", "a lighthouse", "bread", "the number seven", "chess", "rain", "steel", "sleep")


def main() -> None:
    """Print a line for each way of swapping."""
    parser = argparse.ArgumentParser(prog="int8_text", description=__doc__)
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    arguments = parser.parse_args()
    folder = model_folder("", default_cache())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [tokenizer.encode(text).ids for text in islice(_texts(), arguments.prompts)]
    with torch.inference_mode():
        stayed = Answers(_engine(folder, False), prompts, arguments.tokens, ())
        for name, compress, every in (("plain", False, 16), ("int8", True, 0), ("int8", True, 16)):
            moments = range(8, arguments.tokens, every) if every else (8,)
            engine = _engine(folder, compress)
            swapped = Answers(engine, prompts, arguments.tokens, moments)
            forced = scored(engine, prompts, stayed.tokens, moments)
            found = f"{_same(stayed, swapped)}, {_scores(stayed, forced)}"
            print(f"{name}, {len(moments)} round trips: {found}", flush=True)
        for kv_dtype in ("int8", "fp8"):
            engine = _engine(folder, False, kv_dtype)
            held = Answers(engine, prompts, arguments.tokens, ())
            forced = scored(engine, prompts, stayed.tokens, ())
            found = f"{_same(stayed, held)}, {_scores(stayed, forced)}"
            print(f"a pool of {kv_dtype}: {found}", flush=True)


def _texts() -> Iterator[str]:
    for topic, task in product(TOPICS, TASKS):
        asked = task.format(topic)
        yield f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n"


def _engine(folder: Path, compress: bool, kv_dtype: str = "") -> Engine:
    load = Load(
        model=str(folder),
        device="cpu",
        dtype="float32",
        block_size=BLOCK_SIZE,
        num_blocks=NUM_BLOCKS,
        max_slots=BATCH,
        max_len=1024,
        max_batch_tokens=128,
        num_host_blocks=NUM_BLOCKS,
        compress=compress,
        kv_dtype=kv_dtype,
    )
    return start(load, lambda stage, done: None)[0]


class Answers:
    """The greedy answers [prompt, token] to some prompts, and the log-probability of each token."""

    def __init__(
        self, engine: Engine, prompts: list[list[int]], num_tokens: int, moments: Sequence[int]
    ) -> None:
        """At `moments`, numbers of tokens, each sequence leaves and comes back."""
        self._engine = engine
        tokens, scores = [], []
        for first in range(0, len(prompts), BATCH):
            part = prompts[first : first + BATCH]
            columns = list(self._steps(part, num_tokens, moments))
            tokens.append(np.stack([reply.tokens for reply in columns], 1))
            scores.append(np.stack([reply.logprobs.chosen for reply in columns], 1))
        self.tokens, self.scores = np.concatenate(tokens), np.concatenate(scores)

    def _steps(
        self, prompts: list[list[int]], num_tokens: int, moments: Sequence[int]
    ) -> Iterator[Reply]:
        plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
        rows = [plans.add(slot, prompt, SAMPLING) for slot, prompt in enumerate(prompts)]
        yield self._run(plans, rows)
        for count in range(1, num_tokens):
            if count in moments:
                _swap(self._engine, plans, rows)
            yield self._run(plans, rows)
        _end(self._engine, plans, rows)

    def _run(self, plans: Driver, rows: list[Running]) -> Reply:
        work = [(row, len(row.tokens) - row.num_computed) for row in rows]
        reply = self._engine.run(plans.plan(work))
        plans.take(work, reply)
        return reply


def scored(
    engine: Engine, prompts: list[list[int]], answers: Int32, moments: Sequence[int]
) -> Float32:
    """[prompt, token]: log-probabilities of given answers [prompt, token], swapped at `moments`."""
    scores = np.full(answers.shape, np.nan, np.float32)
    for first in range(0, len(prompts), BATCH):
        part = slice(first, first + BATCH)
        _score(engine, prompts[part], answers[part], moments, scores[part])
    assert not np.isnan(scores).any()
    return scores


def _score(
    engine: Engine,
    prompts: list[list[int]],
    answers: Int32,
    moments: Sequence[int],
    scores: Float32,
) -> None:
    """Prompt and answer together are a prompt whose tokens' log-probabilities are asked for."""
    plans = Driver(BLOCK_SIZE, list(range(NUM_BLOCKS)))
    whole = [prompt + answer for prompt, answer in zip(prompts, answers.tolist(), strict=True)]
    rows = [plans.add(slot, tokens, SCORING) for slot, tokens in enumerate(whole)]
    slots = {join.sequence: join.slot for join in plans.joins}
    for count in range(answers.shape[1]):
        if count in moments:
            _swap(engine, plans, rows)
        sizes = [1 if count else len(prompt) for prompt in prompts]
        work = list(zip(rows, sizes, strict=True))
        reply = engine.run(plans.plan(work))
        plans.take(work, reply)
        for told in reply.prompts:
            scores[slots[told.sequence], count] = told.chosen[-1]  # of the token to come
    _end(engine, plans, rows)


def _swap(engine: Engine, plans: Driver, rows: list[Running]) -> None:
    """Every block out, then in again, in its old place."""
    blocks = [block for row in rows for block in row.blocks]
    plans.outs = [(block, place) for place, block in enumerate(blocks)]
    engine.run(plans.plan([]))
    plans.ins = [(place, block) for place, block in enumerate(blocks)]
    plans.awaits = plans.step + 1
    engine.run(plans.plan([]))


def _end(engine: Engine, plans: Driver, rows: list[Running]) -> None:
    for row in rows:
        plans.leave(row)
    engine.run(plans.plan([]))


def _same(stayed: Answers, swapped: Answers) -> str:
    same = stayed.tokens == swapped.tokens
    whole = same.all(1)
    common = np.where(whole, same.shape[1], same.argmin(1))
    return (
        f"{whole.mean():.0%} of {len(whole)} answers the same, "
        f"{common.mean() / same.shape[1]:.0%} of their tokens before the first other one"
    )


def _scores(stayed: Answers, forced: Float32) -> str:
    before, after = (float(np.exp(-scores.mean())) for scores in (stayed.scores, forced))
    return (
        f"perplexity of the text of those that stayed {before:.4f} and {after:.4f}, "
        f"log-probabilities {abs(stayed.scores - forced).mean():.1e} apart"
    )


if __name__ == "__main__":
    os.environ["TQDM_DISABLE"] = "1"
    keep_compiled(default_cache())
    main()
