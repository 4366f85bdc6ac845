"""Refits a profile to the steps that really ran, as a journal recorded them.

A profile's terms keep their shape; each gets a factor. Real steps do not cover the whole range of a
term, so that no more than a factor can be learned from them. What lies between steps (messages, and
a runtime and an API on the same cores) is taken from the journal too, for a worker that waits for
its plan and for one that has it already.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from daemon.cost.profile import Edges, Fit, Operators, PhaseFit, Profile
from daemon.cost.step_cost import step_cost
from daemon.cost.work import StepWork
from daemon.journal.reader import JournalError
from daemon.lab.profiler.least_squares import Float64, nonnegative
from daemon.lab.profiler.points import spread
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.pipeline import scaled_step
from daemon.lab.simulator.journal import Incident, JournalStep, read_incident

Observation = tuple[StepWork, float]
"""A step and its time in seconds."""

LEAST_OBSERVATIONS = 20
_HELD_OUT_EVERY = 5
_ROUNDS = 12
_HUBER = 1.5  # deviations; beyond, a step counts less
_KEEP = 1e-4  # weight of keeping factors at 1, against the mean of all steps
_LEAST_SHARE = 0.01  # of the largest term: a term that no step shows keeps its factor
_MOST_SHARE = 0.99  # of the times between steps: longer ones count as this quantile
_MARK = "refitted: "


@dataclass(frozen=True, slots=True)
class Refit:
    """The new profile, the factors of its terms, and the old one's error on the same steps."""

    profile: Profile
    factors: dict[str, float]
    old_mape: float


def read_journal(path: Path) -> Incident:
    """A journal file, replayed. Raises ProfileError."""
    try:
        return read_incident(path)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error
    except JournalError as error:
        raise ProfileError(str(error)) from error


def observations(incident: Incident, instance: int | None = None) -> list[Observation]:
    """Every answered step in order, of one instance or of all."""
    return [
        (step.work.once, step.elapsed_s / step.work.times)
        for step in incident.steps
        if _computes(step) and instance in (None, step.instance)
    ]


def observed_edges(incident: Incident, profile: Profile) -> Edges:
    """The profile's edges with the journal's mean times between steps; where it shows none, as they
    were.

    What steps take beyond the profile in the mean counts there too: the fit leaves out steps that
    others on the same cores held up, and requests wait for those as well. Steps that await swap
    copies are left out: the simulator has these copies' times.
    """
    edges, cost = profile.edges, step_cost(profile.step)
    if profile.pp > 1:  # a step's time has all stages, which overlap with those of others
        return edges
    timed = [step for step in incident.steps if _computes(step) and not step.awaits]
    expected = {step: cost.step_s(step.work.once) * step.work.times for step in timed}
    waiting = _between_s([step for step in timed if not step.is_behind], expected)
    behind = _between_s([step for step in timed if step.is_behind], expected)
    return msgspec.structs.replace(
        edges,
        gap_s=edges.gap_s if waiting is None else waiting,
        turn_s=edges.turn_s if behind is None else behind,
    )


def _computes(step: JournalStep) -> bool:
    """Whether a step has tokens, and was timed: plans of copies alone have none."""
    return step.elapsed_s > 0.0 and step.work.num_tokens > 0


def _between_s(steps: list[JournalStep], expected: dict[JournalStep, float]) -> float | None:
    """The mean time of steps beyond what is expected of them; None: they are too few."""
    if len(steps) < LEAST_OBSERVATIONS:
        return None
    beyond = np.array([step.end_s - step.start_s - expected[step] for step in steps])
    most_s = float(np.quantile(beyond, _MOST_SHARE))
    return max(0.0, float(f"{beyond.clip(None, most_s).mean():.4g}"))


def refit_to(profile: Profile, incident: Incident) -> Refit:
    """The profile with its terms and the times between steps as a journal has them."""
    made = refit(profile, observations(incident))
    edges = observed_edges(incident, made.profile)
    return replace(made, profile=msgspec.structs.replace(made.profile, edges=edges))


def refit(profile: Profile, observed: list[Observation]) -> Refit:
    """The profile with its terms scaled to the observations.

    Every fifth step is held out; mape and noise are taken on those. Raises ProfileError where too
    few steps were observed.
    """
    if len(observed) < LEAST_OBSERVATIONS:
        raise ProfileError(
            f"{len(observed)} steps are too few to fit anew: {LEAST_OBSERVATIONS} are needed"
        )
    known = [pair for n, pair in enumerate(observed) if n % _HELD_OUT_EVERY != 4]
    held_out = observed[4::_HELD_OUT_EVERY]
    terms = _terms(profile.step)
    shares = np.array([[term(work) for term in terms.values()] for work, _ in known])
    factors = _factors(shares / np.array([taken_s for _, taken_s in known])[:, None])
    scaled = dict(zip(terms, factors.tolist(), strict=True))
    step = scaled_step(profile.step, **scaled)
    mape, logs = _errors(step, held_out)
    kept = tuple(line for line in profile.source if not line.startswith(_MARK))
    listed = ", ".join(f"{name} {factor:.3g}" for name, factor in scaled.items())
    new = msgspec.structs.replace(
        profile,
        step=step,
        operators=None,  # a journal shows whole steps alone
        fit=Fit(
            num_points=len(known),
            mape=mape,
            noise_sigma=spread(logs),
            lacks=profile.fit.lacks,  # factors do not make up for missing measurements
        ),
        source=(*kept, f"{_MARK}{len(known)} steps of a journal, factors {listed}"),
    )
    return Refit(new, scaled, _errors(profile.step, held_out)[0])


def _errors(step: PhaseFit | Operators, observed: list[Observation]) -> tuple[float, list[float]]:
    """Mean absolute relative error, and log(measured / predicted) of each step."""
    cost = step_cost(step)
    ratios = [cost.step_s(work) / taken_s for work, taken_s in observed]
    mape = float(np.mean([abs(ratio - 1.0) for ratio in ratios]))
    return mape, [-float(np.log(max(ratio, 1e-9))) for ratio in ratios]


def _factors(shares: Float64) -> Float64:
    """Factors [k] >= 0 whose sum of shares [n, k] comes nearest to 1, outliers weighed down."""
    means = shares.mean(axis=0)
    keep = np.diag(np.maximum(means, _LEAST_SHARE * means.max())) * (_KEEP * len(shares)) ** 0.5
    weights = np.ones(len(shares))
    factors = np.ones(shares.shape[1])
    for _ in range(_ROUNDS):
        matrix = np.concatenate([shares * weights[:, None], keep])
        factors = nonnegative(matrix, np.concatenate([weights, np.diag(keep)]))
        residuals = shares @ factors - 1.0
        limit = _HUBER * max(1e-6, 1.4826 * float(np.median(np.abs(residuals))))
        weights = np.sqrt(np.minimum(1.0, limit / np.maximum(np.abs(residuals), 1e-12)))
    return factors


def _terms(step: PhaseFit | Operators) -> dict[str, Callable[[StepWork], float]]:
    """The parts of a step's time, by name; their sum is the step's time."""
    if isinstance(step, PhaseFit):
        cost = step_cost(step)

        def decode_s(work: StepWork) -> float:
            alone = StepWork(work.num_decodes, work.decode_context)
            return cost.step_s(alone) if work.num_decodes else 0.0

        return {
            "prefill": lambda work: cost.step_s(work) - decode_s(work) if work.chunks else 0.0,
            "decode": decode_s,
        }
    return {
        "overhead": lambda work: (
            step.overhead_s + step.row_s * (work.num_decodes + len(work.chunks))
        ),
        "tokens": lambda work: (
            step.tokens_s(work.num_tokens) + step.communication_s(work.num_tokens)
        ),
        "sampled": lambda work: step.sampled_s(work.num_samples),
        "prefill": lambda work: sum(step.prefill_s(*chunk) for chunk in work.chunks),
        "decode": lambda work: (
            step.decode_s(work.num_decodes, work.decode_context / work.num_decodes)
            if work.num_decodes
            else 0.0
        ),
    }
