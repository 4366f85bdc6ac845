"""The expected errors of the laboratory's commands, as one line and an exit status."""

import sys
from collections.abc import Callable

from daemon.cli.faults import error_text
from daemon.journal.reader import JournalError
from daemon.lab.planner.errors import PlannerError
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.report.errors import ReportError
from daemon.lab.simulator.scenario import ScenarioError
from daemon.lab.simulator.simulator import SimulationError
from daemon.lab.workload.workload import WorkloadError
from daemon.length_models.errors import PredictorError

_WRONG = (ScenarioError, WorkloadError, ProfileError, PredictorError, JournalError, PlannerError)
"""Errors of the command line: of flags, or of a file that they name."""

_FAILED = (ReportError, SimulationError, OSError)


def status_of(command: Callable[[], int]) -> int:
    """The status of a command: its own, 2 where the command line is wrong, 1 where it failed."""
    try:
        return command()
    except BrokenPipeError:  # of stdout: the caller handles it
        raise
    except _WRONG as error:
        status, text = 2, error_text(error)
    except _FAILED as error:
        status, text = 1, error_text(error)
    print(f"llmd: {text}", file=sys.stderr)
    return status
