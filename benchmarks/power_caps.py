"""Power caps on decode instances (Splitwise, sections III-F and VI): energy, TBT, and what binds.

    python -m benchmarks.power_caps [--requests 300] [--rate 2.0] [--workload NAME]

Two prefill and two decode instances of Llama-2-70B; the decode ones are limited to a share of their
devices' power. Draws and slowdowns are those of the profiles, which have them from the paper's own
simulator: what a step draws by its tokens, and how much longer it takes at half of the limit. A cap
saves energy only in the time in which it binds, that is, in steps that would draw more: that share
of the decode instances' busy time is printed beside what the cap saves.
"""

import argparse

import msgspec

from daemon.lab.profiles.load import load_profile
from daemon.lab.report.records import RunLog
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.run import prepare, run
from daemon.lab.simulator.scenario import HandoffSpec, InstanceGroup, Scenario
from daemon.lab.workload.workload import WorkloadSpec

CAPS = (1.0, 0.7, 0.6, 0.5)
SETUPS = (
    ("llama-2-70b@a100-80g-tp8", 25e9),
    ("llama-2-70b@h100-tp8", 50e9),
    ("llama-2-70b@a100-80g-tp2", 25e9),
    ("llama-2-70b@h100-tp2", 50e9),
)
"""Profiles, and the links between the paper's machines of that kind."""
HALF = 2
"""Instances of each role."""


class Found(msgspec.Struct, frozen=True):
    """What a run came to; the last three are of the decode instances."""

    token_j: float  # of all instances, for each token of an answer
    tbt_p50_s: float
    tbt_p99_s: float
    decode_j: float  # likewise, for each token of an answer
    watts: float  # of each of their devices
    bound: float  # share of their busy time


def simulated(profile: str, bytes_per_s: float, cap: float, workload: WorkloadSpec) -> Found:
    """One run."""
    scenario = Scenario(
        workload=workload,
        instance=(
            InstanceGroup(profile=profile, role="prefill", count=HALF),
            InstanceGroup(profile=profile, role="decode", count=HALF, power_cap=cap),
        ),
        predictor="none",
        noise=False,
        handoff=HandoffSpec(bytes_per_s=bytes_per_s),
    )
    prepared = prepare(scenario)
    log = run(prepared)
    return found(report_of(prepared, log), log)


def found(report: Report, log: RunLog) -> Found:
    """The figures of a run."""
    decode = [one for one in log.instances if one.role == "decode"]
    tokens = float(log.requests.output_tokens.sum())
    energy_j = sum(one.energy_j for one in log.instances)
    decode_j = sum(one.energy_j for one in decode)
    busy_s = sum(one.busy_s for one in decode)
    devices = sum(one.num_devices for one in decode)
    return Found(
        token_j=energy_j / tokens,
        tbt_p50_s=report.tbt_s.p50 or 0.0,
        tbt_p99_s=report.tbt_s.p99 or 0.0,
        decode_j=decode_j / tokens,
        watts=decode_j / log.virtual_s / devices,
        bound=sum(one.capped_s for one in decode) / busy_s if busy_s else 0.0,
    )


def draws(profile: str) -> str:
    """What decode steps draw by the profile, as shares of the limit."""
    power = load_profile(profile).power
    assert power is not None
    shares = power.decode_share.value
    return f"decode draws {min(shares):.2f} to {max(shares):.2f} of the limit"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second")
    parser.add_argument("--workload", default="azure-conv")
    arguments = parser.parse_args()
    workload = WorkloadSpec(
        name=arguments.workload, requests=arguments.requests, rate=arguments.rate
    )
    print(
        "| Profile, cap | J a token | of decode | saved | W a device | TBT P50, ms | P99 "
        "| cap binds |\n|" + "---|" * 8
    )
    told = []
    for profile, bytes_per_s in SETUPS:
        base: Found | None = None
        for cap in CAPS:
            one = simulated(profile, bytes_per_s, cap, workload)
            base = base or one
            saved = 1.0 - one.decode_j / base.decode_j
            print(
                f"| {profile}, {cap:.0%} | {one.token_j:.2f} | {one.decode_j:.2f} | {saved:.1%} "
                f"| {one.watts:.0f} | {1e3 * one.tbt_p50_s:.1f} | {1e3 * one.tbt_p99_s:.1f} "
                f"| {one.bound:.1%} |",
                flush=True,
            )
        told.append(f"{profile}: {draws(profile)}")
    print("\n" + "\n".join(told))


if __name__ == "__main__":
    main()
