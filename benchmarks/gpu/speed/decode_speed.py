"""Decode and mixed steps of the whole engine, against the limits of their operators."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu.report import Figure
from benchmarks.gpu.speed.engines import BLOCK_SIZE, Sizes, config_of, engine_of, forget, shape_of
from benchmarks.gpu.speed.job import Job
from benchmarks.gpu.speed.limits import (
    DecoderShape,
    Limits,
    Row,
    decode_rows,
    operators,
    step_limit_s,
)
from benchmarks.gpu.speed.plans import GREEDY, Part, Plans, chunk
from benchmarks.gpu.speed.steady import EXTRA, WARM, Steady, steady
from daemon.engine.step.step import Engine
from daemon.state.request import SamplingParams

SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, ignore_eos=True)
MIXED_STEPS = 16


@dataclass(frozen=True, slots=True)
class Case:
    """What is run; `chunks` are prompt tokens beside `mixed_rows` rows that decode."""

    batches: tuple[int, ...]
    context: int
    steps: int  # that are timed
    rounds: int
    mixed_rows: int
    chunks: tuple[int, ...]
    sampled_batch: int
    max_len: int

    @property
    def capacity(self) -> int:
        """Tokens that a row reaches."""
        return self.context + self.steps + EXTRA

    def sizes(self, kv_dtype: str = "") -> Sizes:
        """An engine for the largest batch, and for the mixed steps."""
        rows, mixed = max(self.batches), self.mixed_rows + 1
        each = -(-self.capacity // BLOCK_SIZE)
        mixed_each = -(-max(self.capacity, *self.chunks) // BLOCK_SIZE)
        return Sizes(
            rows=max(rows, mixed),
            max_len=self.max_len,
            num_blocks=max(rows * each, mixed * mixed_each),
            max_batch_tokens=self.mixed_rows + max(self.chunks),
            kv_dtype=kv_dtype,
        )


FULL = Case((1, 32, 128, 256), 1024, 96, 3, 64, (512, 2048), 128, 8192)
TINY = Case((1, 2), 20, 4, 1, 2, (16, 24), 2, 64)


@torch.inference_mode()
def decode_figures(job: Job) -> Iterator[Figure]:
    """Decode at each batch size, sampled decode, decode beside a chunk of a prompt, 8-bit KV."""
    case, config = TINY if job.tiny else FULL, config_of(job.tiny)
    shape = shape_of(config)
    yield Figure("weights that a step reads", shape.weight_bytes / 1e9, "GB")
    began_s = time.perf_counter()
    engine = engine_of(config, job.device, case.sizes())
    yield Figure("engine assembled and warm", time.perf_counter() - began_s, "s")
    plain_s = 0.0
    for batch in case.batches:
        times = _rounds(engine, case, batch, GREEDY)
        yield from _decode(times, case, batch, shape, job.limits)
        plain_s = times.step_s
    times = _rounds(engine, case, case.sampled_batch, SAMPLED)
    name = f"decode batch {case.sampled_batch}, temperature, top-k and top-p"
    yield Figure(name, case.sampled_batch / times.step_s, "tokens/s", raw=times.raw())
    for count in case.chunks:
        yield _mixed(engine, case, count, shape, job.limits)
    del engine
    for kv_dtype in ("int8", "fp8"):
        forget(job.device)
        yield from _decode_8_bit(job, case, kv_dtype, plain_s)


def _decode_8_bit(job: Job, case: Case, kv_dtype: str, plain_s: float) -> Iterator[Figure]:
    """The last batch, whose bfloat16 step took `plain_s`, with 8-bit keys and values."""
    config, batch = config_of(job.tiny), case.batches[-1]
    engine = engine_of(config, job.device, case.sizes(kv_dtype))
    times = _rounds(engine, case, batch, GREEDY)
    work = operators(shape_of(config), decode_rows(batch, _context(case)), kv_bytes=1)
    limit_s = step_limit_s(work, job.limits)
    raw = times.raw() | {"limit_s": limit_s}
    name = f"decode batch {batch}, KV {kv_dtype}"
    yield Figure(name, batch / times.step_s, "tokens/s", batch / limit_s, raw=raw)
    ratio = plain_s / times.step_s
    yield Figure(f"KV {kv_dtype} over bfloat16", ratio, "times", note="goal 1.35")


def _context(case: Case) -> int:
    """Tokens of a row in the middle of what is timed."""
    return case.context + WARM + case.steps // 2


def _rounds(engine: Engine, case: Case, batch: int, sampling: SamplingParams) -> Steady:
    """The median of several rounds, each from the same contexts on."""
    found = []
    for _ in range(case.rounds):
        plans = Plans(batch, case.capacity, BLOCK_SIZE, sampling, case.context)
        starts = range(case.context, case.capacity)
        found.append(steady(engine, [plans.decode(start) for start in starts]))
        engine.run(plans.leave())
    return sorted(found, key=lambda one: one.step_s)[len(found) // 2]


def _decode(
    times: Steady, case: Case, batch: int, shape: DecoderShape, limits: Limits
) -> Iterator[Figure]:
    work = operators(shape, decode_rows(batch, _context(case)))
    limit_s = step_limit_s(work, limits)
    raw = times.raw() | {
        "limit_s": limit_s,
        "limit_with_passed_s": step_limit_s(work, limits, passed=True),
        "bytes_alone_s": sum(one.weight_bytes + one.kv_bytes for one in work) / limits.bytes_per_s,
    }
    raw |= {f"{one.name}_limit_s": one.limit_s(limits) for one in work}
    name = f"decode batch {batch}"
    rate, best = batch / times.step_s, batch / limit_s
    yield Figure(name, rate, "tokens/s", best, key=f"decode_b{batch}", raw=raw)
    yield Figure(f"{name}, a step", times.step_s * 1e3, "ms")
    if times.busy_s:
        yield Figure(f"{name}, device idle", 100 * times.idle_share, "%", note="goal 1")


def _mixed(engine: Engine, case: Case, count: int, shape: DecoderShape, limits: Limits) -> Figure:
    """Rows that decode beside the first chunk of a prompt, over and over."""
    rows, start = case.mixed_rows, case.context
    plans = Plans(rows + 1, max(case.capacity, count), BLOCK_SIZE, GREEDY, case.context)
    prompt = chunk(rows, 0, count, shape.vocab, sampled=False)
    decodes = [Part(slot, start) for slot in range(rows)]
    seated = plans.plan([*decodes, prompt])
    steps = [seated, *(plans.plan([*decodes, prompt]) for _ in range(MIXED_STEPS + EXTRA))]
    times = steady(engine, steps)
    engine.run(plans.leave())
    work = operators(shape, [*decode_rows(rows, start + 1), Row(0, count, sampled=False)])
    limit_s = step_limit_s(work, limits)
    tokens = rows + count
    raw = times.raw() | {"limit_s": limit_s}
    name = f"mixed step, {rows} rows and {count} prompt tokens"
    return Figure(name, tokens / times.step_s, "tokens/s", tokens / limit_s, raw=raw)
