"""Rules of what is admitted beside decodes: TetriInfer's Figure 18 and its five classes.

OPT-13B under DistServe's fit with little memory for KV (--kv-bytes), so that decodes that grow run
out of it. Requests of each of TetriInfer's classes (section 5.1), and of ShareGPT as it is (Mixed),
all there at once, as its authors' 256. First come first served (`sarathi`), and who gives way is
computed again, as in vLLM; with --swap it is as the policy has it. Each rule of
`scheduler.decode_admission` with the true lengths (oracle), and with predictions that err.

    python -m benchmarks.studies decode_admission [--requests 256] [--seeds 2] [--kv-bytes 6e9]
        [--predictors oracle,noisy:0.5] [--swap proactive]
"""

import argparse
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.studies import frame
from daemon.lab.report.report import Report
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import WorkloadSpec
from daemon.memory.swap_space import RECOMPUTE, SWAP_MODES
from daemon.scheduler.decode_admission import DECODE_ADMISSIONS, GREEDY

PROFILE = "opt-13b@a100-80g"
MAX_LEN = 2048
CLASSES = {"LPLD": "lpld", "LPHD": "lphd", "HPLD": "hpld", "HPHD": "hphd", "Mixed": "sharegpt"}


class Setting(NamedTuple):
    """What all runs have in common."""

    requests: int
    kv_bytes: float
    swap: str


def one_report(setting: Setting, workload: str, rule: str, predictor: str, seed: int) -> Report:
    """One run."""
    spec = WorkloadSpec(name=workload, requests=setting.requests, arrivals="closed", seed=seed)
    host_bytes = 4.0 * setting.kv_bytes
    group = InstanceGroup(profile=PROFILE, kv_bytes=setting.kv_bytes, host_bytes=host_bytes)
    limits = ScenarioLimits(max_len=MAX_LEN, swap=setting.swap, decode_admission=rule)
    scenario = Scenario(
        workload=spec,
        instance=(group,),
        policy="sarathi",
        predictor=predictor,
        seed=seed,
        limits=limits,
    )
    return frame.simulated(scenario).report


def tell(name: str, rule: str, predictor: str, reports: Sequence[Report], base_s: float) -> None:
    """Print a row of the table: means over the seeds."""
    jct_s, p99_s = (frame.mean(reports, "jct_s", stat) for stat in ("mean", "p99"))
    preemptions = statistics.fmean(one.preemptions for one in reports)
    recomputed = statistics.fmean(one.recomputed_tokens for one in reports)
    told = "-" if rule == GREEDY else predictor
    cells = [name, rule, told, f"{jct_s:.2f} s", f"{jct_s / base_s:.2f}", f"{p99_s:.1f} s"]
    frame.row([*cells, f"{preemptions:g}", f"{recomputed:,.0f}"])


def options(parser: argparse.ArgumentParser) -> None:
    """Declare its options."""
    parser.add_argument("--requests", type=int, default=256, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--kv-bytes", type=float, default=6e9, help="default: %(default)s")
    parser.add_argument("--predictors", default="oracle,noisy:0.5", metavar="P,P")
    parser.add_argument("--swap", choices=SWAP_MODES, default=RECOMPUTE)


def study(arguments: argparse.Namespace) -> None:
    """Print its tables."""
    setting = Setting(arguments.requests, arguments.kv_bytes, arguments.swap)
    seeds = range(arguments.seeds)
    heads = "Class", "Rule", "Predictions", "Mean JCT", "To greedy", "P99 JCT", "Preemptions"
    frame.heads(*heads, "Recomputed tokens")
    for name, workload in CLASSES.items():
        base = [one_report(setting, workload, GREEDY, "none", seed) for seed in seeds]
        base_s = frame.mean(base, "jct_s")
        tell(name, GREEDY, "", base, base_s)
        for predictor in frame.listed(arguments.predictors):
            for rule in DECODE_ADMISSIONS:
                if rule != GREEDY:
                    found = [one_report(setting, workload, rule, predictor, s) for s in seeds]
                    tell(name, rule, predictor, found, base_s)
