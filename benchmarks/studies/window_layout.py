"""Layers with windows against the same model held as full attention, in one pool of equal bytes.

The profile is Llama-3-8B's on an H100; in the layout of windows five layers of six see the last
1,024 tokens, as Gemma 3's do. Prompts have 2,000 to 7,000 tokens, and answers 64 to 1,000. A step
of layers with windows takes the profile's time for the context that its layers see in the mean, so
both columns have the same card. Capacity is the highest Poisson rate at which nine of ten requests
keep both promises; the last columns are of the default policy at the full layout's capacity times
each load.

    python -m benchmarks.studies window_layout
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.studies import frame
from daemon.cost.profile import ModelSpec
from daemon.lab.planner.capacity import highest_rate
from daemon.lab.profiles.load import load_profile, save_profile
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import SloClass, Workload, WorkloadSpec
from daemon.memory.sizing import model_layout

PROFILE = "llama-3-8b@h100"
WINDOW = 1024
CONTEXT = 8192
ATTAINMENT = 0.9


def options(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument("--kv-bytes", type=float, default=4e9)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--ttft", type=float, default=5.0, help="promised, in seconds")
    parser.add_argument("--tpot", type=float, default=0.05, help="promised, in seconds")
    parser.add_argument("--loads", type=frame.numbers, default=[0.9, 1.3])
    parser.add_argument("--seed", type=int, default=1)


def requests_at(rate_rps: float, options: argparse.Namespace) -> Workload:
    """The requests: the same lengths at any rate."""
    chance, count = np.random.default_rng(options.seed), options.requests
    return Workload(
        label="long prompts",
        arrival_s=np.cumsum(chance.exponential(1.0, count)) / rate_rps,
        prompt_tokens=chance.integers(2000, 7000, count).astype(np.int32),
        output_tokens=chance.integers(64, 1000, count).astype(np.int32),
        slo_class=np.zeros(count, np.uint8),
        classes=(SloClass(name="all", share=1.0, ttft_s=options.ttft, tpot_s=options.tpot),),
    )


def with_windows(model: ModelSpec) -> ModelSpec:
    """The model with five layers of six behind a window."""
    windows = tuple(0 if layer % 6 == 5 else WINDOW for layer in range(model.num_layers))
    return msgspec.structs.replace(model, windows=windows)


def study(options: argparse.Namespace) -> None:
    """Print the streams that fit, the capacities and the tails."""
    known = load_profile(PROFILE)
    frame.heads(
        *("layout", "streams of 8,192 by the formula", "capacity, requests/s", "load"),
        *("TTFT p50, s", "p99", "TPOT p99, s", "longest gap, s", "preempted"),
    )
    base_rps = 0.0
    for name, model in (("full", known.model), ("windows", with_windows(known.model))):
        streams = options.kv_bytes / model_layout(model, model.windows, 16, model.dtype).bytes_at(
            CONTEXT
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "profile.json")
            save_profile(msgspec.structs.replace(known, model=model), path)
            simulate = partial(_simulated, path, options)
            capacity_rps, _ = highest_rate(partial(_keeps, simulate), 1.0, 0.05, 1.5)
            base_rps = base_rps or capacity_rps
            for load in options.loads:
                told = _tails(simulate(load * base_rps))
                frame.row((name, f"{streams:.1f}", f"{capacity_rps:.2f}", load, *told))


def _simulated(profile: Path, options: argparse.Namespace, rate_rps: float) -> frame.Run:
    """The default policy at a rate."""
    scenario = Scenario(
        workload=WorkloadSpec(name="made"),
        instance=(InstanceGroup(profile=str(profile), kv_bytes=options.kv_bytes),),
        limits=ScenarioLimits(max_len=CONTEXT),
    )
    return frame.simulated(scenario, requests_at(rate_rps, options))


def _keeps(simulate: Callable[[float], frame.Run], rate_rps: float) -> bool:
    attainment = simulate(rate_rps).report.attainment
    return attainment is not None and attainment >= ATTAINMENT


def _tails(run: frame.Run) -> tuple[str, ...]:
    report = run.report
    gap_s = max(run.log.requests.gap_s, default=0.0)
    figures = report.ttft_s.p50, report.ttft_s.p99, report.tpot_s.p99, gap_s
    return (*(f"{figure:.3f}" for figure in figures), str(report.preemptions))
