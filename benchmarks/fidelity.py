"""How well the simulator foretells this machine's daemon: predict first, run second.

1. `llmd profile` measures the machine (or --profile gives what it wrote).
2. A calibration run of the daemon, on traffic of its own, refits the step times from its journal
   and measures the way between client and Core.
3. For every workload, load (share of the simulated closed-loop throughput) and policy, the
   simulator predicts; nothing is fitted after this.
4. The daemon runs each of them, `--repeats` times, under `llmd bench`'s load generator.

Three figures apart: the journal's traffic simulated again with its recorded step times (JCT: is it
the same Core?); step times predicted against those recorded; and the reports end to end, beside
the spread of the repeated real runs. Near saturation a queue multiplies any error of the service
time about sevenfold (at 85 to 95 % load), so errors there say little of the model.

    python -m benchmarks.fidelity [--profile FILE] [--repeats 2] [--scale 1] [--out FILE]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.live import bench, daemon
from daemon.cost.profile import Edges, Profile
from daemon.cost.step_cost import step_cost
from daemon.lab.bench.bench import Measured
from daemon.lab.profiler.refit import refit
from daemon.lab.profiles.load import load_profile, save_profile
from daemon.lab.report.records import RunLog
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.journal import Incident, read_incident
from daemon.lab.simulator.replayed import replayed
from daemon.lab.simulator.rerun import rerun
from daemon.lab.simulator.run import prepare, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import WorkloadSpec
from daemon.memory.sizing import block_bytes
from daemon.memory.swap_space import RECOMPUTE

MAX_LEN = 1024
KV_BLOCKS = 512
LOADS = (0.5, 0.85, 0.95)
POLICIES = ("sarathi", "vllm")
WORKLOADS = {"alpaca": 160, "sharegpt": 50, "splitwise-code": 60}
"""Short chats, chats, and long prompts with short answers; requests of a run."""
MEASURES = ("ttft_s", "tpot_s", "jct_s")
STATS = ("mean", "p95")


@dataclass
class Point:
    """One workload, load and policy: what was predicted, and what came."""

    workload: str
    load: float
    policy: str
    rate_rps: float
    predicted: Report
    measured: list[Report]
    replay_jct_error: list[float]
    step_mape: list[float]


def live(policy: str, spec: WorkloadSpec) -> tuple[Measured, Incident]:
    """One run of the real daemon: what clients saw, and its journal."""
    with tempfile.TemporaryDirectory(prefix="llmd-fidelity-") as name:
        folder = Path(name)
        flags = ["--policy", policy, "--kv-blocks", str(KV_BLOCKS), "--predictor", "none"]
        flags += ["--set", f"model.max_len={MAX_LEN}", "--set", f'memory.swap="{RECOMPUTE}"']
        flags += ["--set", "scheduler.prompt_lookup=false"]  # drafts are not simulated
        with daemon(flags, folder) as url:
            measured = bench(url, spec, MAX_LEN)
        return measured, read_incident(folder / "journal.llmd")


def simulated(profile: Path, spec: WorkloadSpec, policy: str) -> Report:
    """What the simulator says of the same workload on the same pool."""
    model = load_profile(str(profile)).model
    kv_bytes = KV_BLOCKS * block_bytes(model, 16, model.dtype)
    scenario = Scenario(
        workload=spec,
        instance=(InstanceGroup(profile=str(profile), kv_bytes=kv_bytes),),
        policy=policy,
        predictor="none",
        limits=ScenarioLimits(max_len=MAX_LEN, exact_max_tokens=True, swap=RECOMPUTE),
    )
    prepared = prepare(scenario)
    return report_of(prepared, run(prepared))


def calibrated(profile: Profile) -> Profile:
    """The profile after a calibration run: step times refitted, the way of a request measured."""
    steps = []
    for index, name in enumerate(WORKLOADS):
        mixed = WorkloadSpec(name=name, requests=30, arrivals="poisson", rate=2.5, seed=900 + index)
        _, incident = live("sarathi", mixed)
        steps += [(step.work, step.elapsed_s) for step in incident.steps[50:]]
    fitted = refit(profile, steps).profile
    slow = WorkloadSpec(name="alpaca", requests=20, arrivals="uniform", rate=1.0, seed=910)
    measured, incident = live("sarathi", slow)
    inside = replayed(incident).requests
    core_ttft_s = (inside.first_s - inside.arrival_s)[-20:]
    seen = measured.run.requests
    way_s = float(np.median(seen.first_s - seen.arrival_s) - np.median(core_ttft_s))
    gap_s = statistics.median(
        (step.end_s - step.start_s) - step.elapsed_s for step in incident.steps[50:]
    )
    edges = Edges(request_s=max(0.0, way_s), gap_s=max(0.0, gap_s))
    print(f"edges: {1e3 * way_s:.2f} ms around the Core, {1e3 * gap_s:.2f} ms between steps")
    return msgspec.structs.replace(fitted, edges=edges)


def replay_error(incident: Incident) -> float:
    """Relative error of the mean JCT when the traffic meets the recorded step times again."""
    true, again = replayed(incident), rerun(incident)
    return _mean_jct_s(again) / _mean_jct_s(true) - 1.0


def _mean_jct_s(log: RunLog) -> float:
    requests = log.requests
    return float(np.nanmean(requests.last_s - requests.arrival_s))


def step_error(profile: Profile, incident: Incident) -> float:
    """Mean absolute relative error of step times, warm-up left out."""
    cost = step_cost(profile.step)
    errors = [
        abs(cost.step_s(step.work) / step.elapsed_s - 1.0)
        for step in incident.steps[20:]
        if step.elapsed_s > 0.0
    ]
    return statistics.fmean(errors)


def points(profile: Path, scale: float, policies: list[str], loads: list[float]) -> list[Point]:
    """Every prediction, before anything of it is measured."""
    found = []
    for policy in policies:
        for name, count in WORKLOADS.items():
            requests = max(20, round(count * scale))
            closed = WorkloadSpec(name=name, requests=requests, arrivals="closed", seed=1)
            capacity = simulated(profile, closed, policy).throughput_rps
            for load in loads:
                spec = WorkloadSpec(
                    name=name, requests=requests, arrivals="poisson", rate=load * capacity, seed=1
                )
                report = simulated(profile, spec, policy)
                found.append(Point(name, load, policy, spec.rate, report, [], [], []))
    return found


def error_of(point: Point, measure_name: str, stat: str) -> tuple[float, float]:
    """(relative error against the mean of the real runs, their relative half-spread)."""
    real = [getattr(getattr(report, measure_name), stat) for report in point.measured]
    centre = statistics.fmean(real)
    predicted = getattr(getattr(point.predicted, measure_name), stat)
    return predicted / centre - 1.0, (max(real) - min(real)) / 2 / centre


def table(found: list[Point]) -> list[str]:
    """A row for each point."""
    names = [f"{measure_name[:-2]} {stat}" for measure_name in MEASURES for stat in STATS]
    head = f"{'workload':<15}{'policy':<9}{'load':>5}" + "".join(f"{name:>17}" for name in names)
    lines = [head + f"{'replay JCT':>12}{'step MAPE':>11}"]
    for point in found:
        cells = ""
        for measure_name in MEASURES:
            for stat in STATS:
                error, spread = error_of(point, measure_name, stat)
                cells += f"{100 * error:>+9.1f} ±{100 * spread:>4.1f} %"
        replay = statistics.fmean(map(abs, point.replay_jct_error))
        steps = statistics.fmean(point.step_mape)
        lines.append(
            f"{point.workload:<15}{point.policy:<9}{point.load:>5.2f}{cells}"
            f"{100 * replay:>10.2f} %{100 * steps:>9.1f} %"
        )
    return lines


def summary(found: list[Point]) -> list[str]:
    """The three figures, and how often an error stays within the spread plus five points."""
    lines = []
    for load in sorted({point.load for point in found}):
        here = [point for point in found if point.load == load]
        errors = [error_of(p, m, s) for p in here for m in MEASURES for s in STATS]
        within = sum(abs(error) <= spread + 0.05 for error, spread in errors)
        middle = statistics.median(abs(error) for error, _ in errors)
        lines.append(
            f"load {load:.2f}: median error {100 * middle:.1f} %, within spread + 5 points in "
            f"{within} of {len(errors)}"
        )
    replay = max(abs(error) for point in found for error in point.replay_jct_error)
    steps = statistics.fmean(error for point in found for error in point.step_mape)
    lines.append(f"recorded step times: JCT within {100 * replay:.2f} % in the worst run")
    lines.append(f"step times: MAPE {100 * steps:.1f} %")
    return lines


def _plain(point: Point) -> dict[str, Any]:
    errors = {
        f"{m}.{s}": dict(zip(("error", "spread"), error_of(point, m, s), strict=True))
        for m in MEASURES
        for s in STATS
    }
    return {
        "workload": point.workload,
        "policy": point.policy,
        "load": point.load,
        "rate_rps": point.rate_rps,
        "errors": errors,
        "replay_jct_error": point.replay_jct_error,
        "step_mape": point.step_mape,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", type=Path, help="instead of measuring one")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="of the requests in a run")
    parser.add_argument("--policies", nargs="+", default=list(POLICIES))
    parser.add_argument("--loads", nargs="+", type=float, default=list(LOADS))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llmd-fidelity-") as name:
        measured = arguments.profile or Path(name, "measured.json")
        if arguments.profile is None:
            command = [sys.executable, "-m", "daemon.cli.main", "profile", "--out", str(measured)]
            subprocess.run(command, check=True)
        profile = calibrated(load_profile(str(measured)))
        used = Path(name, "used.json")
        save_profile(profile, used)
        found = points(used, arguments.scale, arguments.policies, arguments.loads)
        for turn in range(arguments.repeats):
            for point in found:
                count = max(20, round(WORKLOADS[point.workload] * arguments.scale))
                spec = WorkloadSpec(
                    name=point.workload,
                    requests=count,
                    arrivals="poisson",
                    rate=point.rate_rps,
                    seed=1,
                )
                seen, incident = live(point.policy, spec)
                point.measured.append(seen.report)
                point.replay_jct_error.append(replay_error(incident))
                point.step_mape.append(step_error(profile, incident))
                where = f"{point.workload} {point.policy} {point.load}"
                print(f"turn {turn + 1}: {where}", file=sys.stderr, flush=True)
    print("\n".join([*table(found), "", *summary(found)]))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps([_plain(point) for point in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
