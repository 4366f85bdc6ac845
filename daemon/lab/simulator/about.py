"""From a scenario's run to its report."""

from collections import Counter

from daemon.lab.profiles.doubts import doubts
from daemon.lab.report.records import RunLog
from daemon.lab.report.report import Report
from daemon.lab.report.summarize import About, Promise, summarize
from daemon.lab.simulator.run import Prepared
from daemon.length_models.registry import predictor_without_text

POOR = " (measured poorly)"
"""Marks a profile that has measurement faults, behind its name."""


def report_of(prepared: Prepared, run: RunLog) -> Report:
    """The report of a finished run. Raises ReportError."""
    return summarize(run, about_of(prepared))


def about_of(prepared: Prepared) -> About:
    """A report's facts about a scenario."""
    scenario, workload = prepared.scenario, prepared.workload
    predictor = predictor_without_text(scenario.predictor)
    return About(
        kind="simulated",
        label=workload.label + (f", {scenario.n} answers each" if scenario.n > 1 else ""),
        policy=scenario.policy,
        profile=profile_line(prepared),
        seed=scenario.seed,
        dropped=workload.num_dropped,
        rate_rps=scenario.workload.rate or workload.rate,
        classes=tuple(
            Promise(
                name=slo_class.name,
                ttft_s=slo_class.ttft_s,
                tpot_s=slo_class.tpot_s,
                gap_s=slo_class.gap_s,
                normalized_latency_s=slo_class.normalized_latency_s,
                scale=slo_class.scale,
            )
            for slo_class in workload.classes
        ),
        predictor=predictor.declared if predictor is not None else "none",
    )


def profile_line(prepared: Prepared) -> str:
    """The instances' profiles in one line, such as `4 x llama-2-70b@a100-80g-tp2`."""
    times = prepared.scenario.step_times
    counts = Counter(
        profile.name + (POOR if doubts(profile, times) else "") for profile in prepared.profiles
    )
    return ", ".join(f"{n} x {name}" if n > 1 else name for name, n in counts.items())
