"""From a run to its report: what the log does not know comes from the scenario."""

from daemon.predict.lengths import length_predictor
from daemon.report.records import RunLog
from daemon.report.report import Report
from daemon.report.summarize import About, Promise, summarize
from daemon.simulator.run import Prepared


def report_of(prepared: Prepared, run: RunLog) -> Report:
    """The report of a simulated run."""
    return summarize(run, about(prepared))


def about(prepared: Prepared) -> About:
    """What a report says of a scenario."""
    scenario, workload = prepared.scenario, prepared.workload
    predictor = length_predictor(scenario.predictor)
    groups = (f"{group.count} x {group.profile}" for group in scenario.instance)
    return About(
        kind="simulated",
        label=workload.label,
        policy=scenario.policy,
        profile=", ".join(groups),
        seed=scenario.seed,
        dropped=workload.num_dropped,
        rate_rps=workload.rate,
        classes=tuple(
            Promise(one.name, one.ttft_s, one.tpot_s, one.normalized_latency_s)
            for one in workload.classes
        ),
        predictor=predictor.declared if predictor else "none",
    )
