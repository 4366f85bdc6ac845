"""Prompts through the whole engine: launched one behind another, and one alone."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.engines import (
    BLOCK_SIZE,
    Sizes,
    config_of,
    engine_of,
    shape_of,
    with_long_contexts,
)
from benchmarks.gpu.speed.job import Job
from benchmarks.gpu.speed.limits import DecoderShape, Limits, operators, prefill_steps, step_limit_s
from benchmarks.gpu.speed.plans import Plans, chunk
from benchmarks.gpu.speed.steady import answer_times_s
from daemon.engine.step.step import Engine
from daemon.protocol.worker import Plan


@dataclass(frozen=True, slots=True)
class Case:
    """Prompts, how many tokens of one a step computes, and how often each is run."""

    prompts: tuple[int, ...]
    chunk: int
    repeats: int
    counts: int  # the prompt that the goal is about


FULL = Case((512, 1024, 4096, 32_768), 8192, 6, 4096)
TINY = Case((8, 40), 24, 2, 40)


@torch.inference_mode()
def prefill_figures(job: Job) -> Iterator[Figure]:
    """Prompt tokens a second, and the time of one prompt with nothing beside it."""
    case = TINY if job.tiny else FULL
    longest = max(case.prompts) + BLOCK_SIZE
    config = with_long_contexts(config_of(job.tiny), longest)
    sizes = Sizes(2, longest, -(-longest // BLOCK_SIZE), case.chunk)
    engine = engine_of(config, job.device, sizes)
    shape = shape_of(config)
    for prompt in case.prompts:
        yield from _prefill(engine, case, prompt, shape, job.limits)


def _prefill(
    engine: Engine, case: Case, prompt: int, shape: DecoderShape, limits: Limits
) -> Iterator[Figure]:
    steps = list(prefill_steps(prompt, case.chunk))
    work = [one for rows in steps for one in operators(shape, rows)]
    limit_s = step_limit_s(work, limits)
    plans = Plans(1, prompt + 1, BLOCK_SIZE, prompt_tokens=prompt)
    repeats = max(2, case.repeats // len(steps))
    engine.run(_plans(plans, prompt, case, shape)[0])  # it takes its slot
    # The first prompt warms; the last one's time has no other launched beside it.
    many = [plan for _ in range(repeats + 2) for plan in _plans(plans, prompt, case, shape)]
    times = answer_times_s(engine, many)[len(steps) - 1 : -len(steps)]
    prompt_s = (times[-1] - times[0]) / repeats
    alone = [_alone_s(engine, _plans(plans, prompt, case, shape)) for _ in range(3)]
    engine.run(plans.leave())
    operations = sum(one.operations for one in work)
    raw = {
        "prompt_s": prompt_s,
        "limit_s": limit_s,
        "alone_s": alone,
        "operations": operations,
        "share_of_matmul_rate": operations / prompt_s / limits.operations_per_s,
    }
    key = "prefill_4k" if prompt == case.counts else ""
    name = f"prefill {prompt}"
    yield Figure(name, prompt / prompt_s, "tokens/s", prompt / limit_s, key=key, raw=raw)
    yield Figure(f"{name}, one alone", statistics.median(alone) * 1e3, "ms")


def _plans(plans: Plans, prompt: int, case: Case, shape: DecoderShape) -> list[Plan]:
    """A whole prompt in slot 0."""
    return [
        plans.plan([chunk(0, row.start, row.count, shape.vocab, row.sampled)])
        for (row,) in prefill_steps(prompt, case.chunk)
    ]


def _alone_s(engine: Engine, plans: list[Plan]) -> float:
    began_s = time.perf_counter()
    return answer_times_s(engine, plans)[-1] - began_s
