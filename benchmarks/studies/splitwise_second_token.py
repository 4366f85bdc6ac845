"""What handing a prompt over adds to its second token: Splitwise's figures, reckoned (its VI-A).

    python -m benchmarks.studies splitwise_second_token [--trace CODING_TRACE.csv] [--simulate]

Taken from the paper: the links (400 Gbps for H100, 200 Gbps for A100), the lengths of its coding
trace (the workload splitwise-code: medians 1,500 and 13 tokens, the shape around them is not the
paper's), its time between tokens without batching (Table IV), and the part of a layer-wise transfer
that nothing hides (5 ms and 8 ms). Taken from profiles: the model's shape and so its bytes a token,
steps, layers. What comes out: how much longer the second token takes, which the paper has as +64 %
where the prompt goes in one piece and as +16.5 % where it goes layer by layer; from which length on
layers pay (the paper: 512 tokens on H100); and the bandwidth that would explain the +64 %.

`--simulate` runs one prefill and one decode instance, one request at a time, through the simulator.
There the second token need not wait: full blocks are copied ahead while the prefill instance goes
on, and what waits for the rest of them is a later token, which the longest gap shows.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.studies import frame
from daemon.cost.profile import Profile
from daemon.cost.step_cost import step_cost
from daemon.cost.work import StepWork
from daemon.lab.profiles.load import load_profile
from daemon.lab.report.measures import measure
from daemon.lab.simulator.scenario import HandoffSpec, InstanceGroup, Scenario
from daemon.lab.workload.build import build
from daemon.lab.workload.traces import read_trace
from daemon.lab.workload.workload import Workload, WorkloadSpec
from daemon.memory.sizing import block_bytes

PROMPT = 1500
SERIALIZED, LAYERED = 0.64, 0.165
"""Of the second token without a transfer, what the paper says that each way adds."""


@dataclass(frozen=True)
class Setup:
    """One of the paper's pairs of machines."""

    profile: str
    bytes_per_s: float
    hidden_not_s: float  # of a layer-wise transfer
    token_s: float  # Table IV, coding, P50 without batching


SETUPS = (
    Setup("llama-2-70b@h100-tp8", 50e9, 0.005, 0.031),
    Setup("llama-2-70b@a100-80g-tp8", 25e9, 0.008, 0.052),
)


def token_bytes(profile: Profile) -> int:
    """KV of one token, of all layers."""
    return block_bytes(profile.model, 1, profile.model.dtype)


def layered_s(profile: Profile, prompt: int, bytes_per_s: float, rest_s: float) -> float:
    """How long after the prompt's step its KV is there, layer by layer: each layer goes once it is
    computed and the one before is gone; `rest_s` comes on top.
    """
    layers = profile.model.num_layers
    step_s = step_cost(profile.step).step_s(StepWork(0, 0, ((prompt, 0),), 1))
    copy_s = token_bytes(profile) * prompt / layers / bytes_per_s
    return max(copy_s, step_s / layers + layers * copy_s - step_s) + rest_s


def reckoned(setup: Setup, prompts: np.ndarray) -> None:
    """Print what the cost model makes of it."""
    profile = load_profile(setup.profile)
    kv_bytes = token_bytes(profile)
    cost = step_cost(profile.step)
    own_s = cost.step_s(StepWork(1, PROMPT + 1, (), 1))
    whole_s = float(np.mean(prompts)) * kv_bytes / setup.bytes_per_s
    layers_s = float(
        np.mean(
            [layered_s(profile, int(one), setup.bytes_per_s, setup.hidden_not_s) for one in prompts]
        )
    )
    bare_s = layered_s(profile, PROMPT, setup.bytes_per_s, 0.0)
    print(f"\n{profile.name}, {setup.bytes_per_s / 1e9:g} GB/s, {kv_bytes:,} bytes a token")
    print(
        f"  prompts of {np.mean(prompts):,.0f} tokens on average, {np.median(prompts):,.0f} median"
    )
    print(f"  one piece      {1e3 * whole_s:6.2f} ms")
    print(
        f"  layer by layer {1e3 * layers_s:6.2f} ms, of which the model hides all but "
        f"{1e3 * bare_s:.2f} ms; {1e3 * setup.hidden_not_s:g} ms are the paper's"
    )
    for whose, token_s in (("profile's", own_s), ("paper's", setup.token_s)):
        print(
            f"  on the {whose} {1e3 * token_s:.1f} ms: +{whole_s / token_s:.1%} in one piece, "
            f"+{layers_s / token_s:.1%} layer by layer"
        )
        needed = float(np.mean(prompts)) * kv_bytes / (SERIALIZED * token_s)
        print(
            f"    +{SERIALIZED:.0%} would be {needed / 1e9:.1f} GB/s, "
            f"{needed / setup.bytes_per_s:.0%} of the link"
        )
    threshold = next(
        n
        for n in range(1, 10_000)
        if n * kv_bytes / setup.bytes_per_s
        > layered_s(profile, n, setup.bytes_per_s, setup.hidden_not_s)
    )
    print(f"  layers pay from {threshold:,} tokens on (at a full link)")


def lengths(trace: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Prompts and answers that fit the model: of a trace, or with the paper's medians."""
    if trace is None:
        built = build(WorkloadSpec(name="splitwise-code", requests=500, rate=1.0), 4096)
        return built.prompt_tokens, built.output_tokens
    read = read_trace(trace)
    fits = read.within(4096)
    return read.prompt_tokens[fits][:500], read.output_tokens[fits][:500]


def simulated(setup: Setup, prompts: np.ndarray, answers: np.ndarray) -> None:
    """Print what the simulator makes of it, one request at a time."""
    requests = Workload(
        label="one at a time",
        arrival_s=10.0 * np.arange(1, prompts.size + 1),
        prompt_tokens=prompts,
        output_tokens=np.maximum(answers, 2),
        slo_class=np.zeros(prompts.size, np.uint8),
    )
    base_s = 0.0
    for name, roles, mode, latency_s in (
        ("one mixed instance", ("mixed",), "auto", 0.0),
        ("serialized", ("prefill", "decode"), "serialized", 0.0),
        ("layered", ("prefill", "decode"), "layered", setup.hidden_not_s),
    ):
        scenario = Scenario(
            workload=WorkloadSpec(name="azure-conv"),
            instance=tuple(InstanceGroup(profile=setup.profile, role=role) for role in roles),
            policy="vllm",
            predictor="none",
            noise=False,
            handoff=HandoffSpec(bytes_per_s=setup.bytes_per_s, latency_s=latency_s, mode=mode),
        )
        log = frame.simulated(scenario, requests).log
        second_s = float(np.nanmean(measure(log.requests).second_token_s))
        gap_s = float(np.nanmean(measure(log.requests).longest_gap_s))
        sent = sum(one.sent_bytes for one in log.instances)
        base_s = base_s or second_s
        ttft_s = float(np.nanmean(log.requests.first_s - log.requests.arrival_s))
        print(
            f"  {name:<19} TTFT {1e3 * ttft_s:6.1f} ms, second token {1e3 * second_s:6.2f} ms "
            f"({second_s / base_s - 1:+.1%}), longest gap {1e3 * gap_s:6.2f} ms "
            f"({gap_s / base_s - 1:+.1%}), {log.handoffs} handoffs, {sent / 1e9:.1f} GB"
        )


def options(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    parser.add_argument(
        "--trace", type=Path, help="Azure's coding trace; default: the paper's lengths"
    )
    parser.add_argument("--simulate", action="store_true", help="and through the simulator")


def study(arguments: argparse.Namespace) -> None:
    """Print its tables."""
    prompts, answers = lengths(arguments.trace)
    for setup in SETUPS:
        reckoned(setup, prompts)
        if arguments.simulate:
            simulated(setup, prompts, answers)
