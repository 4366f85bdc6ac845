"""transformers' own continuous batching on the same random model, as it comes."""

import copy
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig

from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.engines import (
    BLOCK_SIZE,
    Sizes,
    config_of,
    engine_of,
    forget,
    random_model,
)
from benchmarks.gpu.speed.job import Job
from benchmarks.gpu.speed.plans import Plans, chunk
from benchmarks.gpu.speed.steady import answer_times_s


@dataclass(frozen=True, slots=True)
class Case:
    """Batches, prompt and answer tokens of each row."""

    batches: tuple[int, ...]
    prompt: int
    answer: int
    chunk: int  # prompt tokens of one of our steps
    wait_s: float  # for a whole batch
    room: ContinuousBatchingConfig  # of its cache and steps; empty: as it sizes them


FULL = Case((32, 128), 1024, 64, 8192, 25.0, ContinuousBatchingConfig())
TINY = Case((2,), 20, 4, 64, 20.0, ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64))


def peer_figures(job: Job) -> Iterator[Figure]:
    """Whole batches, prompts included: output tokens over wall time, ours and theirs."""
    case = TINY if job.tiny else FULL
    config = config_of(job.tiny)
    # Ours first: theirs takes nearly all of the device's memory.
    ours: dict[int, float] = {}
    for batch, seconds in _our_seconds(job, case).items():
        ours[batch] = batch * case.answer / seconds
        yield Figure(f"ours, batch {batch}", ours[batch], "tokens/s", raw={"seconds": seconds})
    forget(job.device)
    model = random_model(config, job.device, "sdpa")
    for batch in case.batches:
        prompts = [_prompt(config.vocab_size, case.prompt, row) for row in range(batch)]
        rate, raw = _their_rate(model, prompts, case)
        name = f"transformers' continuous batching, batch {batch}"
        note = f"{raw['answers']} of {batch} answers; ours is {ours[batch] / rate:.1f} times that"
        yield Figure(name, rate, "tokens/s", note=note, raw=raw)


def _prompt(vocab: int, length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(2, vocab), k=length)


def _their_rate(
    model: Any, prompts: list[list[int]], case: Case
) -> tuple[float, dict[str, object]]:
    """Output tokens a second of one batch, its manager started and warm before the clock runs."""
    settings = GenerationConfig(max_new_tokens=case.answer, do_sample=False, eos_token_id=-1)
    with model.continuous_batching_context_manager(
        generation_config=settings,
        block=True,
        timeout=5,
        continuous_batching_config=copy.deepcopy(case.room),
    ) as manager:
        # What is compiled, captured or allocated at a first request is not what is measured.
        _answers(manager, prompts[:2], case)
        began_s = time.perf_counter()
        results = _answers(manager, prompts, case)
        elapsed_s = time.perf_counter() - began_s
        chosen = manager.continuous_batching_config
        raw: dict[str, object] = {
            "seconds": elapsed_s,
            "answers": len(results),  # those cut off are not counted
            "attention": str(model.config._attn_implementation),
            "use_cuda_graph": str(chosen.use_cuda_graph),
            "use_async_batching": str(chosen.use_async_batching),
        }
        if len(results) < len(prompts):
            manager.stop(block=True, timeout=5, hard_stop=True)
    if not results:
        raise RuntimeError(f"no answer of {len(prompts)} was whole in {case.wait_s:.0f} s")
    return sum(len(result.generated_tokens) for result in results) / elapsed_s, raw


def _answers(manager: Any, prompts: list[list[int]], case: Case) -> list[Any]:
    """The answers to all prompts, or those that were whole in time. Raises RuntimeError."""
    manager.add_requests(inputs=prompts, max_new_tokens=case.answer)
    deadline_s = time.perf_counter() + case.wait_s
    done: list[Any] = []
    while len(done) < len(prompts) and time.perf_counter() < deadline_s:
        result = manager.get_result(timeout=0.5)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("its generation thread has ended")
        elif result.error:
            raise RuntimeError(f"a request failed: {result.error}")
        elif result.is_finished():
            done.append(result)
    return done


@torch.inference_mode()
def _our_seconds(job: Job, case: Case) -> dict[int, float]:
    """The same batches by our engine: prompts in chunks, then every row at a time."""
    config = config_of(job.tiny)
    capacity = case.prompt + case.answer + 2
    blocks = max(case.batches) * -(-capacity // BLOCK_SIZE)
    sizes = Sizes(max(case.batches), 2 * capacity, blocks, case.chunk)
    engine = engine_of(config, job.device, sizes)
    together = max(1, case.chunk // case.prompt)
    found = {}
    for batch in case.batches:
        plans = Plans(batch, capacity, BLOCK_SIZE, prompt_tokens=case.prompt)
        prompts = [
            chunk(slot, 0, case.prompt, config.vocab_size, sampled=True) for slot in range(batch)
        ]
        steps = [plans.plan(prompts[at : at + together]) for at in range(0, batch, together)]
        steps += [plans.decode(case.prompt + index) for index in range(case.answer - 1)]
        began_s = time.perf_counter()
        found[batch] = answer_times_s(engine, steps)[-1] - began_s
        engine.run(plans.leave())
    return found
