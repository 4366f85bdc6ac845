"""What a snapshot for viewers costs the Core's thread, in its CPU time, beside an iteration.

The Core of `benchmarks.core` where its pool binds; a snapshot after each iteration. `due`: every
request is of an SLO class, so that deadlines are reckoned (`daemon/core/view/due_view.py`). The
share of a core is that of two snapshots a second, as llmd-top asks for.
    python -m benchmarks.snapshots [--running 256 1000] [--policy sarathi synced packed]
                                   [--rounds 300]
"""

import argparse
from time import thread_time

from benchmarks.core import TIGHT, WARM_UP, CoreSide, quantiles

SNAPSHOTS_PER_S = 2
SLO_SCALE = 2.0


def row(policy: str, running: int, slo_scale: float, rounds: int) -> str:
    """One line of the table."""
    side = CoreSide(running, 1, TIGHT, thread_time, policy, slo_scale)
    for _ in range(WARM_UP):
        side.iterate()
    both = [(side.iterate(), side.watch()) for _ in range(rounds)]
    steps, seen = (quantiles([one[place] for one in both]) for place in (0, 1))
    share = SNAPSHOTS_PER_S * seen["mean_us"] / 1e6
    name = f"{policy}{', due' if slo_scale else ''}"
    return (
        f"| {name} | {running} | {steps['mean_us']:.0f} us | {seen['median_us']:.0f} us "
        f"| {seen['p99_us']:.0f} us | {share:.2%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--running", type=int, nargs="+", default=[256, 1000])
    parser.add_argument("--policy", nargs="+", default=["sarathi", "synced", "packed"])
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    print("| Policy | Places | iteration, mean | snapshot, median | p99 | of a core |")
    print("|---|---|---|---|---|---|")
    for running in options.running:
        for policy in options.policy:
            for slo_scale in (0.0, SLO_SCALE):
                print(row(policy, running, slo_scale, options.rounds), flush=True)


if __name__ == "__main__":
    main()
