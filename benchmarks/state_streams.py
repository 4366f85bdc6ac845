"""Streams of 16k tokens on a card of 24 GB, of a model whose layers keep states, simulated.

    python -m benchmarks.state_streams [--loads 0.5 0.8 0.95] [--requests 120]

The shape is that of Qwen3.6-35B-A3B in 4.25 bits. No such card was measured: a step's time is
reckoned from the bytes that it moves at 900 GB/s, each row's states read and written among them,
and from 50 TFLOP/s. Prompts have 10,000 to 13,000 tokens and answers 256 to 3,328, a few of which
are long; arrivals are Poisson's. A load of 1 is what the card computes of such requests where its
pool is always full.

Printed are the streams that fit by the formula of memory and those that ran at once, and for each
policy and load the time to the first token and the longest gap of a stream.
"""

import argparse
from collections.abc import Sequence

import numpy as np

from daemon.core.core import Core
from daemon.cost.profile import (
    DeviceSpec,
    Fit,
    LinkSpec,
    ModelSpec,
    PhaseFit,
    Profile,
)
from daemon.lab.report.records import RequestLog
from daemon.lab.simulator.run import Options, Prepared, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import SloClass, Workload, WorkloadSpec
from daemon.memory.layout import NO_KEYS, KVHeads
from daemon.memory.sizing import model_layout
from daemon.memory.state_layout import CONV, SSM, StatePart

CONTEXT = 16_384
POLICIES = ("gittins", "sarathi", "vllm", "mlfq")
BANDWIDTH_BYTES_PER_S, FLOPS = 900e9, 50e12
ACTIVE_PARAMS = 3e9
WEIGHT_BYTES = 4.25 / 8

DELTA_NET = (StatePart(CONV, 8192, 3), StatePart(SSM, 32, 128 * 128, is_float32=True))
QWEN_35B_A3B = ModelSpec(
    name="qwen3.6-35b-a3b",
    num_layers=40,
    num_heads=16,
    num_kv_heads=2,
    head_dim=256,
    hidden_size=2048,
    vocab_size=248320,
    context_len=262144,
    num_params=35_000_000_000,
    dtype="bfloat16",
    packed_params=35_000_000_000,
    packed_bytes=18_593_750_000,  # 4.25 bits each
    layer_heads=(NO_KEYS, NO_KEYS, NO_KEYS, KVHeads(2, 256)) * 10,
    layer_states=(DELTA_NET, DELTA_NET, DELTA_NET, ()) * 10,
)
CARD = DeviceSpec(
    name="24-gb", memory_bytes=24 << 30, host_link=LinkSpec(25e9), idle_w=30.0, power_w=350.0
)


def state_bytes() -> int:
    """The bytes of one sequence's states."""
    layers = QWEN_35B_A3B.layer_states
    return sum(
        part.num_units * part.unit_numbers * (4 if part.is_float32 else 2)
        for layer in layers
        for part in layer
    )


def card() -> Profile:
    """The profile by bytes: a decode step reads the weights of one token, and of each further row
    its own experts', its keys and values, and its states, which it also writes.
    """
    active_s = ACTIVE_PARAMS * WEIGHT_BYTES / BANDWIDTH_BYTES_PER_S
    row_s = 0.5 * active_s + 2 * state_bytes() / BANDWIDTH_BYTES_PER_S  # half of them are experts
    token_s = 10 * 2 * 2 * 256 * 2 / BANDWIDTH_BYTES_PER_S  # keys and values of ten layers
    prompt_s = 2 * ACTIVE_PARAMS / FLOPS
    pair_s = 4 * 10 * 16 * 256 / FLOPS / 2  # of the squares of lengths: each token sees half
    whole_s = QWEN_35B_A3B.packed_bytes / BANDWIDTH_BYTES_PER_S
    decode_s = active_s, token_s, row_s
    return Profile(
        name="qwen3.6-35b-a3b@24-gb",
        model=QWEN_35B_A3B,
        device=CARD,
        step=PhaseFit(
            prefill_s=(whole_s, prompt_s, pair_s),
            decode_s=decode_s,
            large_decode_s=decode_s,
            large_batch=1 << 30,
        ),
        fit=Fit(num_points=0, mape=0.0),
    )


def requests_at(interval_s: float, count: int, seed: int) -> Workload:
    """So many requests, one each `interval_s` in the mean."""
    chance = np.random.default_rng(seed)
    answers = np.clip(256 * np.exp(chance.exponential(0.9, count)), 256, 3328)
    return Workload(
        label="streams of 16k",
        arrival_s=np.cumsum(chance.exponential(interval_s, count)),
        prompt_tokens=chance.integers(10_000, 13_000, count).astype(np.int32),
        output_tokens=answers.astype(np.int32),
        slo_class=np.zeros(count, np.uint8),
        classes=(SloClass(name="all", share=1.0),),
    )


def simulated(
    policy: str, work: Workload, watch: "Watch", max_running: int = 32
) -> tuple[RequestLog, float]:
    """The requests' log, and the seconds until the last token."""
    one, group = card(), InstanceGroup(profile=card().name, policy=policy)
    limits = ScenarioLimits(max_running=max_running, max_len=CONTEXT)
    scenario = Scenario(
        workload=WorkloadSpec(name="made"), instance=(group,), limits=limits, policy=policy
    )
    prepared = Prepared(scenario, (one,), (group,), CONTEXT, work)
    log = run(prepared, Options(after_event=watch)).requests
    return log, float(np.nanmax(log.last_s))


class Watch:
    """The pool's pages, and the most streams that ran at once."""

    def __init__(self) -> None:
        self.pages = self.running = 0

    def __call__(self, core: Core) -> None:
        """Look."""
        self.pages = max(self.pages, core.instances[0].kv.pool.num_blocks)
        self.running = max(self.running, core.num_running)


def told(log: RequestLog) -> str:
    """The tails of a run."""
    ttft_s = log.first_s - log.arrival_s
    longest_s = np.zeros(len(log))
    np.maximum.at(longest_s, log.gap_request, log.gap_s)
    columns = [*np.quantile(ttft_s, (0.5, 0.99)), *np.quantile(longest_s, (0.5, 0.99))]
    cells = " | ".join(f"{value:.2f}" for value in columns)
    return f"{cells} | {int(log.preemptions.sum())} | {int(log.recomputed_tokens.sum()):,}"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the counts and the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.8, 0.95])
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    options = parser.parse_args(argv)
    watch = Watch()
    _, whole_s = simulated("sarathi", requests_at(0.0, options.requests, 1), watch)
    layout = model_layout(QWEN_35B_A3B, (), 16, "bfloat16")
    print(
        f"{state_bytes() / 1e6:.1f} MB of states each, {watch.pages} pages, "
        f"{watch.pages // layout.pages_at(CONTEXT)} streams of {CONTEXT:,} tokens by the formula, "
        f"{watch.running} ran at once; {options.requests / whole_s:.3f} requests/s at most"
    )
    print("| Load | Policy | TTFT p50 s | p99 | longest gap p50 s | p99 | preempted | recomputed |")
    print("|---|---|---|---|---|---|---|---|")
    for load in options.loads:
        for policy in options.policies:
            work = requests_at(whole_s / options.requests / load, options.requests, 1)
            log, _ = simulated(policy, work, Watch())
            print(f"| {load} | `{policy}` | {told(log)} |", flush=True)


if __name__ == "__main__":
    main()
