"""Captured decode steps against the same steps launched kernel by kernel.

An answer is drawn with graphs first; then the same plans, with the tokens that were drawn, are
computed without them. Log-probabilities of the best tokens must agree, and each drawn token must
be as good there as here: padding may change how sums are rounded, and nothing else.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks.gpu.report import Check
from daemon.engine.step.step import Engine
from daemon.protocol.worker import Logprobs, Plan, Reply
from daemon.state.request import SamplingParams
from daemon.wire.columns import int32
from tests.engine.driver import Driver, Running
from tests.gpu.attempts import attempted, failed
from tests.gpu.tiny_engines import MAX_LEN, VOCAB, tiny_engine, tiny_folder, tiny_load

NUM_BLOCKS = 640
BEST = 4
SAMPLING = SamplingParams(temperature=0.0, logprobs=BEST, ignore_eos=True)
LIMITS = {"float32": 1e-3, "bfloat16": 0.15}
"""In nats. A wrong row, block or length is wrong by whole ones."""
KINDS = (
    ("Llama", "float32", ""),
    ("Llama", "bfloat16", ""),
    ("Llama", "bfloat16", "int8"),
    ("OPT", "float32", ""),
    ("GPT-NeoX", "bfloat16", ""),
)
"""Model, states, and cache where that is another; some models are fused, some are not."""
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 24, 25, 31, 32, 33, 39, 40)
"""Rows of steps: below, at and above every padded size."""

Told = list[tuple[Plan, Reply]]


def graph_checks(
    device: str,
    kinds: tuple[tuple[str, str, str], ...] = KINDS,
    sizes: tuple[int, ...] = SIZES,
    prompt_tokens: tuple[int, int] = (60, MAX_LEN - 100),
) -> Iterator[Check]:
    """Sequences join and leave between steps of all sizes, in each kind of states and cache.

    `prompt_tokens`: the most of those who are there first, and what some have who come later.
    """
    for model, dtype, kv_dtype in kinds:
        with tiny_folder(model) as folder, torch.inference_mode():
            name = f"graphs {model} {dtype}" + (f" {kv_dtype} cache" if kv_dtype else "")
            kind = (dtype, kv_dtype)
            checks = partial(_checks, name, folder, device, kind, sizes * 2, prompt_tokens)
            yield from attempted(name, checks)


def _checks(
    name: str,
    folder: Path,
    device: str,
    kind: tuple[str, str],
    sizes: tuple[int, ...],
    prompt_tokens: tuple[int, int],
) -> Iterator[Check]:
    dtype, kv_dtype = kind
    changes: dict[str, Any] = {"max_slots": max(sizes), "num_blocks": NUM_BLOCKS}
    load = tiny_load(folder, device, dtype=dtype, kv_dtype=kv_dtype, **changes)
    captured = tiny_engine(load)
    told = list(_decoded(captured, sizes, prompt_tokens))
    yield from _capture_checks(name, captured)
    plain = tiny_engine(load, captured=False)
    last: dict[int, int] = {}
    errors = [0.0]
    for plan, reply in told:
        errors.append(_apart(reply, plain.run(_fed(plan, last))))
        drawn = plan.batch.slots[plan.batch.samples == 1].tolist()
        last.update(zip(drawn, reply.tokens.tolist(), strict=True))
    note = f"nats, {len(told)} steps of up to {max(sizes)} rows"
    yield Check(name, float(np.max(errors)), LIMITS[dtype], note)


def _capture_checks(name: str, engine: Engine) -> Iterator[Check]:
    """That there are graphs at all, and that the rest of them can be captured later."""
    programs: Any = engine.model._programs
    if programs is None or not programs._steps:
        yield failed(name, "no step was captured")
        return
    used = len(programs._steps)
    while engine.prepare():
        pass
    missing = len(set(programs._sizes) - {step.size for step in programs._steps})
    yield Check(f"{name}: not captured", missing, 0, f"{used} while in use, then the rest")


def _decoded(
    engine: Engine, sizes: tuple[int, ...], prompt_tokens: tuple[int, int]
) -> Iterator[tuple[Plan, Reply]]:
    """Steps of so many rows each, of changing sequences; each plan with its answer."""
    chooser = random.Random(5)
    blocks = list(range(NUM_BLOCKS))
    chooser.shuffle(blocks)
    driver = Driver(16, blocks)
    most = max(sizes)
    running: list[Running] = []
    for slot in range(most):
        running.append(_come(driver, chooser, slot, chooser.randrange(1, prompt_tokens[0])))
    yield _run(engine, driver, [(one, len(one.tokens)) for one in running])
    for number, size in enumerate(sizes):
        yield _run(engine, driver, [(one, 1) for one in chooser.sample(running, size)])
        if number % 3 == 2:
            gone = running.pop(chooser.randrange(len(running)))
            driver.leave(gone)
            driver.free_blocks[:0] = gone.blocks
            # Long ones too: a wider table than any row had when steps were captured.
            length = prompt_tokens[1] if number % 2 else chooser.randrange(1, prompt_tokens[0])
            running.append(_come(driver, chooser, gone.slot, length))
            yield _run(engine, driver, [(running[-1], length)])


def _come(driver: Driver, chooser: random.Random, slot: int, length: int) -> Running:
    prompt = [chooser.randrange(2, VOCAB) for _ in range(length)]
    return driver.add(slot, prompt, SAMPLING)


def _run(engine: Engine, driver: Driver, work: list[tuple[Running, int]]) -> tuple[Plan, Reply]:
    plan = driver.plan(work)
    reply = engine.run(plan)
    driver.take(work, reply)
    return plan, reply


def _fed(plan: Plan, last: dict[int, int]) -> Plan:
    """The same plan, its own last tokens named: those that each slot drew."""
    batch, inputs = plan.batch, iter(plan.inputs.tolist())
    rows = zip(batch.slots.tolist(), batch.counts.tolist(), batch.fed.tolist(), strict=True)
    tokens: list[int] = []
    for slot, count, fed in rows:
        tokens += [next(inputs) for _ in range(count)] if fed else [last[slot]]
    named = msgspec.structs.replace(batch, fed=np.ones(len(batch.fed), np.uint8))
    return Plan(named, int32(tokens), plan.joins)


def _apart(drawn: Reply, other: Reply) -> float:
    """The largest difference of what two steps say of the same rows, in nats."""
    ours, theirs = drawn.logprobs, other.logprobs
    if ours is None or theirs is None or not np.array_equal(ours.rows, theirs.rows):
        return float("nan")
    error = float(np.abs(_best(ours) - _best(theirs)).max())
    values, ids = _best(theirs), theirs.top_ids.reshape(len(theirs.rows), -1)
    for row, token in enumerate(drawn.tokens.tolist()):
        found = np.flatnonzero(ids[row] == token)
        worse = float(values[row, 0] - values[row, found[0]]) if len(found) else float("inf")
        error = max(error, worse)
    return error


def _best(told: Logprobs) -> Any:
    return told.top_values.reshape(len(told.rows), -1)
