"""Run logs for tests: one small enough to compute by hand, one as busy as a real run."""

import numpy as np

from daemon.lab.report.records import InstanceLog, Outcome, RequestLog, RunLog, Span


def by_hand() -> RunLog:
    """Five requests on two instances; every number is a short binary fraction.

    0: arrives 0, runs at 0.5, tokens at 1, 1.5, 2.5, 3. Finished, 4 of 4.
    1: arrives 1, runs at 1, one token at 2. Finished, 1 of 1. Preempted twice before it.
    2: arrives 2, runs at 2.5, tokens at 3, 5, 7. Finished, 3 of 3. Preempted after its first.
    3: arrives 2, rejected; it asked for 2.
    4: arrives 4, runs at 6, first token at 8, then the run ended. 1 of 6.
    """
    nan = np.nan
    log = RequestLog.empty(5)
    log.arrival_s[:] = [0, 1, 2, 2, 4]
    log.started_s[:] = [0.5, 1, 2.5, nan, 6]
    log.first_s[:] = [1, 2, 3, nan, 8]
    log.last_s[:] = [3, 2, 7, nan, 8]
    log.prompt_tokens[:] = [10, 20, 30, 40, 50]
    log.asked_tokens[:] = [4, 1, 3, 2, 6]
    log.output_tokens[:] = [4, 1, 3, 0, 1]
    log.outcome[:] = [
        Outcome.FINISHED,
        Outcome.FINISHED,
        Outcome.FINISHED,
        Outcome.REJECTED,
        Outcome.UNFINISHED,
    ]
    log.slo_class[:] = [0, 0, 1, 1, 0]
    log.instance[:] = [0, 1, 0, -1, 1]
    log.preemptions[:] = [0, 2, 1, 0, 0]
    log.preempted_after_first[2] = True
    log.recomputed_tokens[:] = [0, 25, 31, 0, 0]
    log.swap_s[2] = 0.5
    log.transfer_s[4] = 0.25
    log.paused_s[:] = [0, 0, 1.5, nan, 0]
    log.gap_s = np.asarray([0.5, 1, 0.5, 2, 2], np.float32)
    log.gap_request = np.asarray([0, 0, 0, 2, 2], np.int32)
    return RunLog(log, [_first(), _second()], [], virtual_s=8.0, wall_s=0.5)


def _first() -> InstanceLog:
    log = InstanceLog("a", num_devices=2, steps=4, tokens=80, busy_s=6.0)
    log.flops, log.peak_flops, log.energy_j = 4e12, 2e12, 1200.0
    log.sample_s = [0, 4, 6]
    log.sample_allocated = [0.5, 1.0, 0.25]
    log.sample_written = [0.25, 0.5, 0.125]
    log.sample_running = [1, 2, 0]
    log.sample_waiting = [0, 1, 0]
    log.sample_step_tokens = [10, 40, 30]
    log.swaps = 2
    return log


def _second() -> InstanceLog:
    log = InstanceLog("b", steps=2, tokens=40, busy_s=2.0)
    log.flops, log.peak_flops, log.energy_j = 1e12, 2e12, 400.0
    log.sample_s = [4]
    log.sample_allocated = [0.5]
    log.sample_written = [0.5]
    log.sample_running = [1]
    log.sample_waiting = [0]
    log.sample_step_tokens = [20]
    log.swaps = 1
    return log


def busy(num_requests: int = 400, seed: int = 1) -> RunLog:
    """A made-up run of two instances with bursts, preemptions and a few rejections."""
    chance = np.random.default_rng(seed)
    log = RequestLog.empty(num_requests)
    log.arrival_s = np.sort(chance.uniform(0, 120, num_requests))
    log.started_s = log.arrival_s + chance.lognormal(-2.0, 1.2, num_requests)
    log.first_s = log.started_s + chance.lognormal(-1.5, 0.6, num_requests)
    log.prompt_tokens[:] = chance.integers(20, 2000, num_requests)
    log.asked_tokens[:] = 1 + chance.geometric(1 / 120, num_requests)
    log.output_tokens[:] = log.asked_tokens
    log.instance[:] = chance.integers(0, 2, num_requests)
    log.slo_class[:] = chance.integers(0, 2, num_requests)
    log.gap_request = np.repeat(np.arange(num_requests, dtype=np.int32), log.output_tokens - 1)
    log.gap_s = chance.lognormal(-3.2, 0.4, log.gap_request.size).astype(np.float32)
    log.last_s = log.first_s + np.bincount(log.gap_request, log.gap_s, num_requests)
    log.preemptions[:] = chance.poisson(0.1, num_requests)
    log.preempted_after_first[:] = log.preemptions > 0
    log.recomputed_tokens[:] = log.preemptions * log.prompt_tokens
    log.outcome[:] = Outcome.FINISHED
    rejected = chance.random(num_requests) < 0.02
    log.outcome[rejected] = Outcome.REJECTED
    log.output_tokens[rejected] = 0
    for times in (log.started_s, log.first_s, log.last_s):
        times[rejected] = np.nan
    kept = ~rejected[log.gap_request]
    log.gap_s, log.gap_request = log.gap_s[kept], log.gap_request[kept]
    end_s = float(np.nanmax(log.last_s))
    instances = [_busy_instance(name, end_s, chance) for name in ("gpu0", "gpu1")]
    spans = [
        Span(i.name, f"{tokens} tokens", at_s, 0.04, {"tokens": tokens})
        for i in instances
        for at_s, tokens in zip(i.sample_s, i.sample_step_tokens, strict=True)
    ]
    return RunLog(log, instances, spans, virtual_s=end_s - log.arrival_s[0], wall_s=0.5)


def _busy_instance(name: str, end_s: float, chance: np.random.Generator) -> InstanceLog:
    at_s = np.arange(0.0, end_s, 0.05)
    load = 0.5 + 0.4 * np.sin(at_s / 9 + chance.uniform(0, 6)) + chance.normal(0, 0.02, at_s.size)
    load = np.clip(load, 0, 1)
    log = InstanceLog(name, steps=at_s.size, busy_s=0.8 * end_s)
    log.flops, log.peak_flops, log.energy_j = 0.3 * 312e12 * end_s, 312e12, 250.0 * end_s
    log.sample_s = at_s.tolist()
    log.sample_allocated = load.tolist()
    log.sample_written = (0.85 * load).tolist()
    log.sample_running = (60 * load).astype(int).tolist()
    log.sample_waiting = (40 * np.maximum(load - 0.7, 0)).astype(int).tolist()
    chunks = chance.random(at_s.size) < 0.3
    log.sample_step_tokens = np.where(chunks, 512, 60 * load).astype(int).tolist()
    log.tokens = sum(log.sample_step_tokens)
    return log
