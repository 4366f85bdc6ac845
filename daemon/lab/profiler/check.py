"""How far a profile is from a journal that it was not fitted to: its steps, and whole requests.

The journal's requests are run again on its instances under the profile, and compared one by one
with what they really took, from their arrival at the Core to their last token.
"""

from dataclasses import dataclass

import numpy as np

from daemon.cost.profile import Profile
from daemon.cost.step_cost import step_cost
from daemon.journal.reader import JournalError
from daemon.lab.profiler.refit import observations
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.report.records import RunLog
from daemon.lab.simulator.journal import Incident
from daemon.lab.simulator.replayed import replayed
from daemon.lab.simulator.rerun import rerun, rerun_rows
from daemon.lab.workload.workload import Float64


@dataclass(frozen=True, slots=True)
class JournalCheck:
    """Errors against a journal, as shares of what it has; simulated less true, where signed."""

    source: str  # the journal
    step_mape: dict[str, float]  # mean absolute error of steps, by instance
    request_error: float  # the median over requests of the absolute error of their whole time
    mean_error: float  # of the mean of these times, signed
    ttft_error: float  # of the mean time to the first token, signed
    requests: int


def check(profile: Profile, incident: Incident) -> JournalCheck:
    """Simulate a journal's requests under the profile, on its own instances. Raises ProfileError
    where it has no request that got a token.
    """
    try:
        simulated = rerun(incident, profile=profile)
    except JournalError as error:
        raise ProfileError(str(error)) from error
    true, rows = replayed(incident), rerun_rows(incident)
    whole_s, again_s = _whole_s(true)[rows], _whole_s(simulated)
    both = np.isfinite(whole_s) & np.isfinite(again_s)
    if not both.any():
        raise ProfileError(f"{incident.source}: no request ended, so there is nothing to check")
    ratios = again_s[both] / whole_s[both]
    first_s, again_first_s = _first_s(true)[rows][both], _first_s(simulated)[both]
    cost = step_cost(profile.step)
    mape = {}
    for index, instance in enumerate(incident.config.instances):
        errors = [abs(cost.step_s(work) / s - 1.0) for work, s in observations(incident, index)]
        if errors:
            mape[instance.name] = float(np.mean(errors))
    return JournalCheck(
        source=incident.source,
        step_mape=mape,
        request_error=float(np.median(np.abs(ratios - 1.0))),
        mean_error=float(again_s[both].mean() / whole_s[both].mean()) - 1.0,
        ttft_error=float(again_first_s.mean() / first_s.mean()) - 1.0,
        requests=int(both.sum()),
    )


def _whole_s(log: RunLog) -> Float64:
    return log.requests.last_s - log.requests.arrival_s


def _first_s(log: RunLog) -> Float64:
    return log.requests.first_s - log.requests.arrival_s
