"""`llmd simulate`: the daemon's Core on a workload, in virtual time."""

import argparse
from functools import partial
from pathlib import Path

from daemon.cli.argument_parser import FOLDER, offer
from daemon.cli.lab_errors import status_of
from daemon.cli.outputs import add_output_flags, check_places, write_outputs
from daemon.cli.profile_warnings import warn_of
from daemon.cli.progress import progress
from daemon.cli.scenario_flags import add_scenario_flags, scenario_of
from daemon.cli.searches import add_search_flags, capacity, check_search_flags, sweep_all
from daemon.cli.workload_flags import add_workload_flags
from daemon.lab.report.records import RunLog
from daemon.lab.report.report import Report
from daemon.lab.simulator.scenario import ScenarioError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmd simulate`."""
    add_scenario_flags(parser)
    add_workload_flags(parser)
    add_output_flags(parser)
    add_search_flags(parser)
    group = parser.add_argument_group("journals and traces")
    group.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="a daemon's journal instead of a workload: repeated exactly, or simulated with "
        "--policy (recorded step times) or --profile (its cost model)",
    )
    kept = group.add_argument(
        "--journal-out", type=Path, metavar="FOLDER", help="keep the simulated Core's journal"
    )
    offer(kept, FOLDER)
    group.add_argument(
        "--operators",
        action="store_true",
        help="report each operator's calls, mean input and time on each instance",
    )
    group.add_argument(
        "--perfetto", type=Path, metavar="FILE", help="write a trace for ui.perfetto.dev"
    )


def simulate(arguments: argparse.Namespace) -> int:
    """Simulate and report. 0: done; 1: it failed; 2: the command line is wrong."""
    return status_of(partial(_simulated, arguments))


def _simulated(arguments: argparse.Namespace) -> int:
    check_search_flags(arguments)
    check_places(arguments)
    if arguments.sweep:
        return sweep_all(arguments)
    if arguments.capacity:
        return capacity(arguments)
    run, report = _incident(arguments) if arguments.journal else _scenario(arguments)
    write_outputs(arguments, run, report)
    if arguments.perfetto is not None:
        from daemon.lab.report.perfetto import write_trace

        write_trace(run, arguments.perfetto)
    return 0


def _scenario(arguments: argparse.Namespace) -> tuple[RunLog, Report]:
    from daemon.lab.simulator.about import report_of
    from daemon.lab.simulator.run import Options, prepare, run

    prepared = prepare(scenario_of(arguments))
    for profile in {profile.name: profile for profile in prepared.profiles}.values():
        warn_of(profile, prepared.scenario.step_times)
    with progress() as show:
        options = Options(
            journal=arguments.journal_out,
            spans=arguments.perfetto is not None,
            operators=arguments.operators,
            energy=arguments.html is not None or arguments.out is not None,
            progress=lambda ended, total: show(ended, total, f"{ended:,} of {total:,} requests"),
        )
        log = run(prepared, options)
    return log, report_of(prepared, log)


_OUTPUTS = frozenset({"json", "out", "csv", "plot", "html", "perfetto", "journal_out"})
_WITH_JOURNAL = _OUTPUTS | {"journal", "policy", "profile", "seed"}


def _incident(arguments: argparse.Namespace) -> tuple[RunLog, Report]:
    from daemon.cost.step_cost import chosen
    from daemon.lab.profiles.load import load_profile
    from daemon.lab.report.summarize import About, summarize
    from daemon.lab.simulator.journal import read_incident
    from daemon.lab.simulator.replayed import replayed
    from daemon.lab.simulator.rerun import rerun
    from daemon.lab.simulator.run import Options

    _refuse_idle_flags(arguments)
    incident = read_incident(arguments.journal)
    profile = chosen(load_profile(arguments.profile), "") if arguments.profile else None
    if profile is not None:
        warn_of(profile)
    again = bool(arguments.policy or profile)
    seed = arguments.seed or 0
    spans = arguments.perfetto is not None
    if again:
        options = Options(journal=arguments.journal_out, spans=spans)
        log = rerun(incident, arguments.policy or "", profile, seed, options)
    else:
        log = replayed(incident, spans)
    label = f"journal {arguments.journal.name}, {len(incident.streams)} answers"
    if incident.num_missing:
        label += f"; it misses {incident.num_missing} events"
    about = About(
        kind="simulated" if again else "measured",
        label=label,
        policy=arguments.policy or incident.policy,
        profile=profile.name if profile else "recorded step times",
        seed=seed,
        predictor="as recorded" if incident.predicted else "none",
    )
    return log, summarize(log, about)


def _refuse_idle_flags(arguments: argparse.Namespace) -> None:
    """Refuse flags that have no effect beside `--journal`. Raises ScenarioError."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = [
        name
        for name, default in vars(parser.parse_args([])).items()
        if getattr(arguments, name, default) != default
    ]
    for name in given:
        flag = "a scenario file" if name == "scenario" else f"--{name.replace('_', '-')}"
        if name not in _WITH_JOURNAL:
            raise ScenarioError(
                f"{flag} has no effect with --journal, whose requests, instances and limits are "
                "those of the daemon that wrote it; --policy and --profile are what can change"
            )
        if name == "journal_out" and not (arguments.policy or arguments.profile):
            raise ScenarioError(f"{flag} needs --policy or --profile: else nothing is simulated")
        if name == "seed" and not arguments.profile:
            raise ScenarioError(f"{flag} needs --profile: recorded step times have no noise")
