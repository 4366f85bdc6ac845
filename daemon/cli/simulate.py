"""`llmd simulate`: the daemon's Core on a workload, in virtual time."""

import argparse
import sys
from pathlib import Path

from daemon.cli.outputs import add_output_flags, write_outputs
from daemon.cli.plan import add_plan_flags, capacity, sweep_all
from daemon.cli.progress import progress
from daemon.cli.scenario_flags import add_scenario_flags, scenario_of
from daemon.cli.workload_flags import add_workload_flags
from daemon.journal.reader import JournalError
from daemon.planner.errors import PlannerError
from daemon.predict.errors import PredictorError
from daemon.profiles.errors import ProfileError
from daemon.report.errors import ReportError
from daemon.report.records import RunLog
from daemon.report.report import Report
from daemon.simulator.scenario import ScenarioError
from daemon.simulator.simulator import SimulationError
from daemon.workload.workload import WorkloadError

FAULTS = (
    PlannerError,
    ScenarioError,
    WorkloadError,
    ProfileError,
    PredictorError,
    ReportError,
    JournalError,
    SimulationError,
    OSError,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmd simulate`."""
    add_scenario_flags(parser)
    add_workload_flags(parser)
    add_output_flags(parser)
    add_plan_flags(parser)
    group = parser.add_argument_group("journals and traces")
    group.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="a daemon's journal instead of a workload: repeated exactly, or simulated with "
        "--policy (recorded step times) or --profile (its cost model)",
    )
    group.add_argument(
        "--journal-out", type=Path, metavar="FOLDER", help="keep the simulated Core's journal"
    )
    group.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev"
    )


def simulate(arguments: argparse.Namespace) -> int:
    """Simulate and report. 0: done; 1: it cannot be simulated."""
    try:
        if arguments.sweep:
            return sweep_all(arguments)
        if arguments.capacity:
            return capacity(arguments)
        run, report = _incident(arguments) if arguments.journal else _scenario(arguments)
        write_outputs(arguments, run, report)
        if arguments.perfetto is not None:
            from daemon.report.perfetto import write_trace

            write_trace(run, arguments.perfetto)
    except FAULTS as error:
        print(f"llmd: {error}", file=sys.stderr)
        return 1
    return 0


def _scenario(arguments: argparse.Namespace) -> tuple[RunLog, Report]:
    from daemon.simulator.about import report_of
    from daemon.simulator.run import Options, prepare, run

    prepared = prepare(scenario_of(arguments))
    with progress() as told:
        options = Options(
            journal=arguments.journal_out,
            spans=arguments.perfetto is not None,
            progress=lambda ended, total: told(ended, total, f"{ended:,} of {total:,} requests"),
        )
        log = run(prepared, options)
    return log, report_of(prepared, log)


def _incident(arguments: argparse.Namespace) -> tuple[RunLog, Report]:
    from daemon.profiles.load import load_profile
    from daemon.report.summarize import About, summarize
    from daemon.simulator.journal import read_incident, replayed
    from daemon.simulator.rerun import rerun

    incident = read_incident(arguments.journal)
    profile = load_profile(arguments.profile) if arguments.profile else None
    again = bool(arguments.policy or profile)
    log = rerun(incident, arguments.policy or "", profile, arguments.seed) if again else None
    about = About(
        kind="simulated" if again else "measured",
        label=f"journal {arguments.journal.name}, {len(incident.streams)} answers",
        policy=arguments.policy or incident.config.policy,
        profile=profile.name if profile else "recorded step times",
        seed=arguments.seed,
        predictor="none",
    )
    log = log or replayed(incident)
    return log, summarize(log, about)
