"""Toy devices for plans: profiles of one and of two devices, and short requests."""

from pathlib import Path

import numpy as np

from daemon.cost.curve import Curve
from daemon.cost.profile import DeviceSpec, Fit, LinkSpec, PhaseFit, PowerSpec, Profile
from daemon.lab.planner.candidate import CandidatePool, unit_of
from daemon.lab.planner.evaluate import Problem
from daemon.lab.planner.goal import Goal
from daemon.lab.profiles.load import save_profile
from daemon.lab.simulator.scenario import Scenario
from daemon.lab.workload.workload import WorkloadSpec
from tests.shapes import tiny_spec

GOAL = Goal(ttft_s=0.1, tpot_s=0.02, unserved_fraction=1.0)
RUNGS = (12, 36, 144)


def toy_profile(device: str = "toy", tp: int = 1, faster: float = 1.0) -> Profile:
    """Two devices together take 0.6 of the time of one."""
    factor = (0.6 if tp == 2 else 1.0) / faster
    decode = (5e-3 * factor, 1e-6 * factor, 2e-4 * factor)
    return Profile(
        name=f"toy@{device}" + f"-tp{tp}" * (tp > 1),
        model=tiny_spec(name="toy", dtype="float16"),
        device=DeviceSpec(
            name=device,
            memory_bytes=8 << 30,
            flops=1e12,
            host_link=LinkSpec(1e9),
            peer_link=LinkSpec(1e9),
            power_w=100.0 * faster,
        ),
        step=PhaseFit(
            prefill_s=(2e-3 * factor, 2e-4 * factor, 0.0),
            decode_s=decode,
            large_decode_s=decode,
            large_batch=1000,
        ),
        fit=Fit(num_points=0, mape=0.0),
        power=PowerSpec(
            prefill_share=Curve((0.0,), (1.0,)),
            decode_share=Curve((0.0,), (0.5,)),
            prefill_slowdown=Curve((0.5, 1.0), (1.5, 1.0)),
            decode_slowdown=Curve((0.5, 1.0), (1.0, 1.0)),
        ),
        tp=tp,
    )


def toy_units(
    folder: Path, *degrees: int, device: str = "toy", faster: float = 1.0
) -> tuple[CandidatePool, ...]:
    """One instance of each degree, with its profile in a file."""
    found = []
    for tp in degrees:
        profile = toy_profile(device, tp, faster)
        path = folder / f"{profile.name}.json"
        save_profile(profile, path)
        found.append(unit_of(str(path)))
    return tuple(found)


def toy_trace(folder: Path, prompt: int = 60, output: int = 12, rows: int = 1000) -> Path:
    """Lengths around two means, without times."""
    chance = np.random.default_rng(7)
    prompts = chance.integers(prompt // 2, prompt * 3 // 2, rows)
    outputs = chance.integers(max(1, output // 2), output * 3 // 2, rows)
    path = folder / f"lengths-{prompt}-{output}.csv"
    lines = [f"{a},{b}" for a, b in zip(prompts, outputs, strict=True)]
    path.write_text("\n".join(["num_prefill_tokens,num_decode_tokens", *lines]) + "\n")
    return path


def toy_problem(folder: Path, goal: Goal = GOAL, prompt: int = 60, output: int = 12) -> Problem:
    """Poisson arrivals of toy requests."""
    spec = WorkloadSpec(trace=toy_trace(folder, prompt, output), seed=3)
    return Problem(base=Scenario(workload=spec, instance=(), predictor="none"), goal=goal)
