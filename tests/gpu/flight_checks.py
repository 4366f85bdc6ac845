"""Steps that begin before the one before them is read: same tokens, and nothing waits."""

import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.report import Check
from daemon.engine.step.step import Begun, Engine
from daemon.protocol.worker import Load, Plan, Reply
from daemon.state.request import SamplingParams
from tests.api.folder import EOS
from tests.gpu.attempts import attempted, failed
from tests.gpu.story import Kind, Sizes, Story, told
from tests.gpu.tiny_engines import VOCAB, tiny_engine, tiny_folder, tiny_load

KINDS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8 cache": {"dtype": "bfloat16", "kv_dtype": "int8"},
    "int8 host pool": {"dtype": "bfloat16", "compress": True},
}
"""The fields of Load that differ from the defaults."""
NUM_PLACES = 96
WAITING_PLANS = 40
BUSY_CYCLES = 150_000_000
"""Cycles of a GPU's clock: some 80 ms, in which a step is queued if nothing waits."""

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


def flight_checks(
    device: str, kinds: Iterable[str] = tuple(KINDS), num_plans: int = 120, seeds: int = 3
) -> Iterator[Check]:
    """Stories told one step after another and two in flight, in each of these kinds of KINDS."""
    with tiny_folder() as folder, torch.inference_mode():
        for kind in kinds:
            load = tiny_load(folder, device, num_host_blocks=NUM_PLACES, **KINDS[kind])
            name = f"flights {kind}"
            yield from attempted(name, partial(_checks, name, load, num_plans, seeds))


def _checks(name: str, load: Load, num_plans: int, seeds: int) -> Iterator[Check]:
    engine = tiny_engine(load)
    assert engine.swap is not None
    sizes = Sizes(VOCAB, load.block_size, load.num_blocks, load.max_slots, NUM_PLACES)
    kinds = (*PLAIN, GRAMMAR) if find_spec("llguidance") else PLAIN
    for seed in range(seeds):
        story = Story(seed, sizes, kinds)
        alone = list(told(story, engine.begin, num_plans, depth=1))
        note = f"of {num_plans} plans, {story.num_swaps} swaps, {story.num_forks} forks"
        if not story.num_swaps or not story.num_forks:
            yield failed(name, f"the story tells nothing: {note}")
        together = list(told(Story(seed, sizes, kinds), engine.begin, num_plans, depth=2))
        yield Check(f"{name}, story {seed}", different(alone, together), 0, note)
    if engine.cache.blocks.is_cuda:
        # At first more and more memory is pinned, as the device lags behind.
        for _once_before in range(2):
            waits = list(_wait_checks(engine, Story(0, sizes, PLAIN)))
        yield from (Check(f"{name}: {one.name}", one.error, 0, one.note) for one in waits)
    engine.swap.close()


def different(one: list[tuple[Plan, Reply]], other: list[tuple[Plan, Reply]]) -> int:
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


def _wait_checks(engine: Engine, story: Story) -> Iterator[Check]:
    """Plans whose `begin` waits for the device, which has much else to do before."""
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

    list(told(story, begin, WAITING_PLANS, depth=2))
    yield Check("plans whose begin waits", len(late), 0, f"{late[:9]}")
    yield Check("calls that wait", len(places), 0, " ".join(sorted(places)[:4]))
