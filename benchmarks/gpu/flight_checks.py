"""Steps that begin before the one before them is read: same tokens, and nothing waits."""

import warnings
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.attempts import attempted, failed
from benchmarks.gpu.report import Check
from benchmarks.gpu.story import Kind, Sizes, Story, told
from benchmarks.gpu.tiny_engines import VOCAB, tiny_engine, tiny_folder, tiny_load
from daemon.engine.protocol import Plan, Reply
from daemon.engine.step import Begun, Engine
from daemon.request import SamplingParams
from tests.api.folder import EOS

NUM_PLACES = 96
BUSY_CYCLES = 150_000_000
"""Of a GPU's clock: some 80 ms, in which a step is queued if nothing waits."""

PLAIN = (
    Kind(SamplingParams(temperature=0.0, ignore_eos=True, logprobs=3)),
    Kind(SamplingParams(temperature=1.5, top_p=0.9, ignore_eos=True)),
    Kind(SamplingParams(temperature=1.0, top_k=20, min_p=0.02, ignore_eos=True, logprobs=0)),
    Kind(
        SamplingParams(
            temperature=0.8,
            presence_penalty=0.6,
            frequency_penalty=0.4,
            repetition_penalty=1.2,
            logit_bias=((7, 4.0), (9, -100.0)),
            min_tokens=4,
            stop_token_ids=(11,),
        )
    ),
    Kind(SamplingParams(ignore_eos=True, prompt_logprobs=2), swapped=False),
)
GRAMMAR = Kind(
    SamplingParams(
        stop_token_ids=(EOS,),
        ignore_eos=True,
        grammar='{"grammars": [{"lark_grammar": "start: /[ab ]{40}/"}]}',
    ),
    swapped=False,
)


def flight_checks(device: str, num_plans: int = 120, seeds: int = 3) -> Iterator[Check]:
    """Stories told one step after another and two in flight; in bfloat16 and float32."""
    with tiny_folder() as folder, torch.inference_mode():
        for dtype in ("bfloat16", "float32") if device.startswith("cuda") else ("float32",):
            checks = partial(_checks, folder, device, dtype, num_plans, seeds)
            yield from attempted(f"flights {dtype}", checks)


def _checks(folder: Path, device: str, dtype: str, num_plans: int, seeds: int) -> Iterator[Check]:
    load = tiny_load(folder, device, dtype, num_host_blocks=NUM_PLACES)
    engine = tiny_engine(load)
    sizes = Sizes(VOCAB, load.block_size, load.num_blocks, load.max_slots, NUM_PLACES)
    kinds = PLAIN
    if find_spec("llguidance") is not None:
        kinds = (*PLAIN, GRAMMAR)
    for seed in range(seeds):
        name = f"flights {dtype}, story {seed}"
        story = Story(seed, sizes, kinds)
        alone = list(told(story, engine.begin, num_plans, depth=1))
        note = f"of {num_plans} plans, {story.num_swaps} swaps, {story.num_forks} forks"
        if not story.num_swaps or not story.num_forks:
            yield failed(name, f"the story tells nothing: {note}")
        together = list(told(Story(seed, sizes, kinds), engine.begin, num_plans, depth=2))
        yield Check(name, _different(alone, together), 0, note)
    if device.startswith("cuda"):
        for _told_before in told(Story(0, sizes, PLAIN), engine.begin, num_plans, depth=2):
            pass
        yield from _wait_checks(engine, Story(0, sizes, PLAIN), num_plans, f"flights {dtype}")
    assert engine.swap is not None
    engine.swap.close()


def _different(one: list[tuple[Plan, Reply]], other: list[tuple[Plan, Reply]]) -> int:
    """How many answers are not the same in tokens, reasons, errors and log-probabilities."""
    if len(one) != len(other):
        return max(len(one), len(other))
    pairs = zip(one, other, strict=True)
    return sum(_said(ours) != _said(theirs) for (_, ours), (_, theirs) in pairs)


def _said(reply: Reply) -> tuple[object, ...]:
    """All of an answer but its times, to be compared bit by bit."""
    columns = [reply.tokens, reply.reasons]
    if reply.logprobs is not None:
        told = reply.logprobs
        columns += [told.rows, told.chosen, told.top_ids, told.top_values]
    for prompt in reply.prompts:
        columns += [prompt.chosen, prompt.top_ids, prompt.top_values]
    octets = tuple(np.asarray(column).tobytes() for column in columns)
    return reply.step, octets, reply.errors


def _wait_checks(engine: Engine, story: Story, num_plans: int, name: str) -> Iterator[Check]:
    """Plans whose `begin` waits for the device, which has much else to do before.

    The same story was told before: everything is compiled and captured.
    """
    late: list[int] = []
    places: set[str] = set()

    def begin(plan: Plan) -> Begun:
        torch.cuda._sleep(BUSY_CYCLES)
        awake = torch.cuda.Event()
        awake.record()
        with warnings.catch_warnings(record=True) as told_of:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            begun = engine.begin(plan)
            torch.cuda.set_sync_debug_mode("default")
        places.update(
            f"{Path(one.filename).name}:{one.lineno}"
            for one in told_of
            if "synchronizing CUDA" in str(one.message)
        )
        if awake.query():
            late.append(plan.batch.step)
        return begun

    list(told(story, begin, num_plans, depth=2))
    yield Check(f"{name}: plans whose begin waits", len(late), 0, f"{late[:9]}")
    yield Check(f"{name}: calls that wait", len(places), 0, " ".join(sorted(places)[:4]))
