"""A server that takes the same time for every request, and scenarios on it."""

from pathlib import Path

import msgspec

from daemon.cost.profile import DeviceSpec, Fit, PhaseFit, Profile
from daemon.lab.profiles.load import save_profile
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import WorkloadSpec
from tests.shapes import tiny_spec

SERVICE_S = 0.5
PROMPT = 16  # tokens; two of them do not fit a step


def profile(service_s: float = SERVICE_S, device: str = "a100-80g") -> Profile:
    """A step with a prompt takes `service_s`, one of decodes a tenth of that."""
    return Profile(
        name=f"constant@{device}",
        model=tiny_spec(name="constant", dtype="float16"),
        device=DeviceSpec(name=device, memory_bytes=8 << 30),
        step=PhaseFit(
            prefill_s=(service_s, 0.0, 0.0),
            decode_s=(service_s / 10, 0.0, 0.0),
            large_decode_s=(service_s / 10, 0.0, 0.0),
            large_batch=1000,
        ),
        fit=Fit(num_points=0, mape=0.0),
    )


def scenario(
    folder: Path, requests: int, output: int = 1, policy: str = "vllm", arrivals: str = "poisson"
) -> Scenario:
    """One instance that serves one request at a time, and equal requests."""
    path = folder / "constant.json"
    save_profile(profile(), path)
    trace = folder / "lengths.csv"
    rows = [f"{PROMPT},{output}" for _ in range(requests)]
    trace.write_text("\n".join(["num_prefill_tokens,num_decode_tokens", *rows]) + "\n")
    return Scenario(
        workload=WorkloadSpec(trace=trace, arrivals=arrivals, rate=0.5, seed=3),
        instance=(InstanceGroup(profile=str(path), kv_bytes=1e7),),
        policy=policy,
        predictor="none",
        limits=ScenarioLimits(  # one step at a time, so that the queue is the one of the theory
            max_running=1, max_batch_tokens=PROMPT + 1, depth=1
        ),
    )


def at_rate(one: Scenario, rate: float) -> Scenario:
    """The same at another rate."""
    return msgspec.structs.replace(one, workload=msgspec.structs.replace(one.workload, rate=rate))
