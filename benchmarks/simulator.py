"""The simulator's speed, and its baselines beside an independent simulation of the same policies.

speed      4,000 requests of the shipped Azure conversation trace on four Llama-2-70B TP2 instances
           with chunked prefill: virtual over wall seconds, all-in on one core, reading included.
           Then 60 with short prompts and long answers (`lphd`), Poisson at 0.1/s on one of them.
baselines  OPT-13B under DistServe's fit, 12e9 bytes of KV, the first 6,000 rows within 2,048 tokens
           of a ShareGPT length file (--trace), Poisson at 2.9 requests/s. Reference: vllm 15.4 to
           15.6 s mean JCT and 3,400 to 4,100 recomputes, sarathi 12.1 to 12.6 s and 2,200 to 2,300,
           over two seeds of another program's own random numbers.

    python -m benchmarks.simulator [--policy sarathi speculative mlfq] [--rounds 5]
                                   [--trace FILE] [--seeds 6]
"""

import argparse
import statistics
import time
from pathlib import Path

from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import WorkloadSpec
from daemon.memory.swap_space import RECOMPUTE
from daemon.scheduler.policies import POLICIES

CASES = {
    "azure": (WorkloadSpec(name="azure-conv", requests=4000), 4),
    "long answers": (WorkloadSpec(name="lphd", requests=60, arrivals="poisson", rate=0.1), 1),
}


def speed(rounds: int, policy: str, case: str) -> None:
    """Print virtual seconds per wall second, and iterations per CPU-second of this thread."""
    workload, count = CASES[case]
    scenario = Scenario(
        workload=workload,
        instance=(InstanceGroup(profile="llama-2-70b@a100-80g-tp2", count=count),),
        policy=policy,
        limits=ScenarioLimits(swap=POLICIES[policy].swap),
    )
    ratios, rates = [], []
    for _ in range(rounds):
        wall_s, cpu_s = time.perf_counter(), time.thread_time()
        prepared = prepare(scenario)
        report = report_of(prepared, run(prepared))
        wall_s, cpu_s = time.perf_counter() - wall_s, time.thread_time() - cpu_s
        ratios.append(report.virtual_s / wall_s)
        rates.append(report.iterations / cpu_s)
    print(
        f"speed, {case}, {policy}: {report.virtual_s:.0f} s, {report.iterations:,} iterations; "
        f"{statistics.median(ratios):.0f}x real time ({min(ratios):.0f} to {max(ratios):.0f} over "
        f"{rounds} rounds), {statistics.median(rates):,.0f} iterations per CPU-second "
        f"({min(rates):,.0f} to {max(rates):,.0f})"
    )


def baselines(trace: Path, seeds: int) -> None:
    """Print mean JCT and recomputes of both policies, seed by seed."""
    for policy in ("vllm", "sarathi"):
        found = []
        for seed in range(seeds):
            scenario = Scenario(
                workload=WorkloadSpec(
                    trace=trace, requests=6000, arrivals="poisson", rate=2.9, seed=seed
                ),
                instance=(InstanceGroup(profile="opt-13b@a100-80g", kv_bytes=12e9),),
                policy=policy,
                predictor="none",
                seed=seed,
                limits=ScenarioLimits(max_len=2048, swap=RECOMPUTE),  # as published
            )
            prepared = prepare(scenario)
            found.append(report_of(prepared, run(prepared)))
        jcts = [report.jct_s.mean or 0.0 for report in found]
        recomputes = [report.preemptions for report in found]
        print(
            f"{policy}: mean JCT {statistics.fmean(jcts):.1f} s "
            f"({', '.join(f'{jct:.1f}' for jct in jcts)}), "
            f"recomputes {statistics.fmean(recomputes):,.0f} "
            f"({', '.join(f'{count:,}' for count in recomputes)})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, help="a ShareGPT length file, for the baselines")
    parser.add_argument("--policy", nargs="+", choices=sorted(POLICIES), default=["sarathi"])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for policy in arguments.policy:
        for case in CASES:
            speed(arguments.rounds, policy, case)
    if arguments.trace is not None:
        baselines(arguments.trace, arguments.seeds)


if __name__ == "__main__":
    main()
