"""Memory lent until it is needed: EcoServe's ablations beside other policies, in the simulator.

OPT-13B under DistServe's fit with 12e9 bytes of KV, as in EcoServe's section 2; lengths as its
traces have them, and `skew`. Either all requests are there at once (closed), or they arrive as a
Poisson process (--rate). `sarathi` and `vllm` are as published: who gives way is computed again.

    python -m benchmarks.lending [--workloads sharegpt,skew,alpaca,bookcorpus] [--requests 600]
        [--predictors oracle,noisy:0.3] [--rate 3.0] [--only synced] [--seed 0]
"""

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from benchmarks.scheduling import KV_BYTES, Way, scenario
from daemon.lab.report.measures import completion_window
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.workload.workload import WorkloadSpec
from daemon.memory.swap_space import RECOMPUTE
from daemon.scheduler.decode_admission import GREEDY, RESERVE_PEAK


class Row(NamedTuple):
    """A way, and what it leaves room for."""

    way: Way
    rule: str = GREEDY

    @property
    def name(self) -> str:
        """As the table calls it."""
        return self.way.name + ("" if self.rule == GREEDY else f", {self.rule}")


ALONE = (
    Row(Way("sarathi", RECOMPUTE)),
    Row(Way("vllm", RECOMPUTE)),
    Row(Way("sarathi")),
    Row(Way("orca")),
)
PREDICTED = ("synced-d", "synced-sd", "synced-sdo", "synced-nested", "synced")


def rows(predictors: Sequence[str]) -> list[Row]:
    """All that are compared: those that ask for no prediction, then the others."""
    found = list(ALONE)
    for one in predictors:
        found += [Row(Way(policy, "", one)) for policy in PREDICTED]
        found += [Row(Way("gittins", "", one)), Row(Way("gittins", "", one), RESERVE_PEAK)]
        found += [Row(Way("sarathi", RECOMPUTE, one), RESERVE_PEAK)]
    return found


def measured(row: Row, workload: WorkloadSpec, seed: int) -> list[float]:
    """Requests/s from 10 % to 90 % of completions, seconds until the last one, s/token, mean JCT,
    P99 of the longest gap, KV allocated and written, requests preempted after their first token,
    recomputed tokens.
    """
    asked = scenario(row.way, workload, KV_BYTES, seed)
    limits = msgspec.structs.replace(asked.limits, decode_admission=row.rule)
    prepared = prepare(msgspec.structs.replace(asked, limits=limits))
    log = run(prepared)
    report = report_of(prepared, log)
    window = completion_window(log.requests)
    assert window is not None, "none finished"
    begin_s, end_s = window
    inside = (log.requests.last_s > begin_s) & (log.requests.last_s <= end_s)
    return [
        float(inside.sum()) / (end_s - begin_s),
        float(log.requests.last_s.max()),
        report.normalized_latency_s.mean or 0.0,
        report.jct_s.mean or 0.0,
        report.longest_gap_s.p99 or 0.0,
        report.kv_allocated_fraction or 0.0,
        report.kv_written_fraction or 0.0,
        float(log.requests.preempted_after_first.mean()),
        float(report.recomputed_tokens),
    ]


HEADS = "Policy", "req/s", "to sarathi", "all done", "s/token", "JCT", "P99 gap", "allocated"
MORE_HEADS = "written", "preempted", "recomputed"


def table_row(name: str, found: Sequence[float], base: float) -> str:
    """A row of the table; `base` is the throughput of `sarathi`."""
    rate, end_s, token_s, jct_s, gap_s, allocated, written, preempted, again = found
    return (
        f"| {name} | {rate:.2f} | {rate / base:.2f} | {end_s:.0f} s | {token_s:.4f} "
        f"| {jct_s:.1f} s | {gap_s:.2f} s | {allocated:.2f} | {written:.2f} "
        f"| {100 * preempted:.1f} % | {again:,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default="sharegpt,skew,alpaca,bookcorpus", metavar="W,W")
    parser.add_argument("--requests", type=int, default=600, help="default: %(default)s")
    parser.add_argument("--predictors", default="oracle,noisy:0.3", metavar="P,P")
    parser.add_argument("--rate", type=float, default=0.0, help="requests/s; 0: all at once")
    parser.add_argument("--only", default="", help="ways whose names contain this, and sarathi")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in arguments.workloads.split(","):
        spec = WorkloadSpec(
            name=name, requests=arguments.requests, arrivals="closed", seed=arguments.seed
        )
        if arguments.rate:
            spec = msgspec.structs.replace(spec, arrivals="poisson", rate=arguments.rate)
        print(f"\n{name}\n\n| {' | '.join((*HEADS, *MORE_HEADS))} |")
        print("|---" * len((*HEADS, *MORE_HEADS)) + "|")
        base = 0.0
        for number, row in enumerate(rows(arguments.predictors.split(","))):
            if number and arguments.only not in row.name:
                continue
            found = measured(row, spec, arguments.seed)
            base = base or found[0]
            print(table_row(row.name, found, base), flush=True)


if __name__ == "__main__":
    main()
