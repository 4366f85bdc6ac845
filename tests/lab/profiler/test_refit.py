"""Fitting anew from live steps: known factors come back, outliers and silence do no harm."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from daemon.core.values.actions import Submit
from daemon.core.values.events import StepDone
from daemon.cost.profile import DeviceSpec, Fit, Operators, PhaseFit, Profile
from daemon.cost.step_cost import step_cost
from daemon.cost.work import StepWork, work_of
from daemon.journal.records import FILE_NAME
from daemon.lab.profiler.fit import fit
from daemon.lab.profiler.refit import (
    LEAST_OBSERVATIONS,
    Observation,
    observations,
    read_journal,
    refit,
)
from daemon.lab.profiles.errors import ProfileError
from tests.core.driver import Driver, configured
from tests.core.traffic import random_life
from tests.journal.life import record
from tests.lab.profiler.truth import Truth, measured
from tests.shapes import tiny_spec

MODEL = tiny_spec(name="made-up", context_len=8192)
PHASES = PhaseFit(
    prefill_s=(0.02, 1e-3, 1e-7),
    decode_s=(0.01, 1e-6, 1e-4),
    large_decode_s=(0.02, 1e-6, 5e-5),
    large_batch=64,
)


def profile_of(step: PhaseFit | Operators) -> Profile:
    return Profile(
        name="made-up@cpu-1",
        model=MODEL,
        device=DeviceSpec(name="cpu-1", memory_bytes=1 << 30),
        step=step,
        fit=Fit(num_points=1, mape=0.5),
        source=("made up",),
    )


@pytest.fixture(scope="module")
def operators() -> Operators:
    return fit(measured(Truth(), 0.0)).operators


def live_steps(count: int, seed: int = 0) -> list[StepWork]:
    """Steps as they come: decodes of growing contexts, prompts between them."""
    chance = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        decodes = int(chance.integers(0, 60))
        context = int(decodes * chance.uniform(50, 2000))
        chunks = tuple(
            (int(chance.integers(2, 300)), int(chance.integers(0, 500)))
            for _ in range(int(chance.integers(0, 3)) or (0 if decodes else 1))
        )
        found.append(StepWork(decodes, context, chunks, decodes + len(chunks)))
    return found


def taking(
    step: PhaseFit | Operators, sigma: float = 0.0, outliers: float = 0.0, seed: int = 0
) -> list[Observation]:
    """Steps, and what they would take by `step`, with noise, and some disturbed."""
    chance = np.random.default_rng(seed)
    cost = step_cost(step)
    found = []
    for work in live_steps(400, seed):
        factor = float(np.exp(sigma * chance.standard_normal()))
        factor *= 5.0 if chance.uniform() < outliers else 1.0
        found.append((work, factor * cost.step_s(work)))
    return found


def changed(operators: Operators, **factors: float) -> Operators:
    """The truth that a refit should find, from the same factors that it tells."""

    def times(name: str) -> Operators:
        part = getattr(operators, f"{name}_s")
        if isinstance(part, float):
            return part * factors.get(name, 1.0)  # type: ignore[return-value]
        values = np.array(part.value) * factors.get(name, 1.0)
        tupled = tuple(map(tuple, values.tolist())) if values.ndim == 2 else tuple(values.tolist())
        return msgspec.structs.replace(part, value=tupled)

    names = ("tokens", "prefill", "decode", "sampled", "overhead")
    return msgspec.structs.replace(operators, **{f"{name}_s": times(name) for name in names})


def test_known_factors_come_back(operators: Operators) -> None:
    factors = {"tokens": 1.3, "decode": 0.7, "overhead": 2.0, "prefill": 1.1}
    made = refit(profile_of(operators), taking(changed(operators, **factors)))
    for name, factor in factors.items():
        assert made.factors[name] == pytest.approx(factor, rel=0.05), name
    assert made.profile.fit.mape < 0.005 < 0.1 < made.old_mape


def test_noise_and_outliers_do_not_move_it(operators: Operators) -> None:
    factors = {"tokens": 1.3, "decode": 0.7}
    truth = changed(operators, **factors)
    made = refit(profile_of(operators), taking(truth, sigma=0.05, outliers=0.1))
    calm = taking(truth, seed=1)
    cost = step_cost(made.profile.step)
    assert np.mean([abs(cost.step_s(work) / s - 1.0) for work, s in calm]) < 0.03
    assert made.profile.fit.noise_sigma == pytest.approx(0.05, rel=0.4)


def test_what_the_steps_say_nothing_of_stays(operators: Operators) -> None:
    truth = changed(operators, overhead=1.5, tokens=1.5, sampled=1.5, decode=1.5)
    decodes = [(work, s) for work, s in taking(truth) if not work.chunks]
    assert len(decodes) > LEAST_OBSERVATIONS
    made = refit(profile_of(operators), decodes)
    assert made.factors["prefill"] == pytest.approx(1.0, abs=0.01)
    assert made.profile.fit.mape < 0.01


def test_phase_fits_are_scaled_too() -> None:
    truth = PhaseFit(
        prefill_s=(0.03, 1.5e-3, 1.5e-7),
        decode_s=(0.008, 8e-7, 8e-5),
        large_decode_s=(0.016, 8e-7, 4e-5),
        large_batch=64,
    )
    made = refit(profile_of(PHASES), taking(truth))
    assert made.factors == pytest.approx({"prefill": 1.5, "decode": 0.8}, rel=0.02)
    assert made.profile.fit.mape < 0.01


def test_held_out_steps_are_not_fitted(operators: Operators) -> None:
    steps = taking(operators)
    wrong = [(work, 2.0 * s if n % 5 == 4 else s) for n, (work, s) in enumerate(steps)]
    made = refit(profile_of(operators), wrong)
    assert made.factors == pytest.approx(dict.fromkeys(made.factors, 1.0), abs=0.01)
    assert made.profile.fit.mape == pytest.approx(0.5, abs=0.01)


def test_it_says_what_it_did_once(operators: Operators) -> None:
    first = refit(profile_of(operators), taking(operators)).profile
    second = refit(first, taking(operators)).profile
    assert second.source[0] == "made up" and len(second.source) == len(first.source) == 2
    assert "320 steps" in second.source[1]
    assert second == msgspec.json.decode(msgspec.json.encode(second), type=Profile)


def test_too_few_steps_are_refused(operators: Operators) -> None:
    few = taking(operators)[: LEAST_OBSERVATIONS - 1]
    with pytest.raises(ProfileError, match="19 steps are too few"):
        refit(profile_of(operators), few)


# From journals


def answered(driver: Driver) -> list[tuple[StepWork, float]]:
    """The steps that were answered and how long each took, in the order of their answers."""
    steps = {}
    for actions in driver.actions:
        for action in actions:
            if isinstance(action, Submit):
                steps[action.batch.instance, action.batch.step] = work_of(action.batch)
    return [
        (steps[event.instance, event.step], event.elapsed_s)
        for event in driver.events
        if isinstance(event, StepDone)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_a_journal_gives_back_every_answered_step(tmp_path: Path, seed: int) -> None:
    driver = random_life(seed, 120)
    record(tmp_path, driver)
    found = observations(read_journal(tmp_path / FILE_NAME))
    assert found == [(work, step_s) for work, step_s in answered(driver) if work.num_tokens]
    assert found


def test_a_journal_refits_a_profile(tmp_path: Path) -> None:
    driver = Driver(configured(), 200)
    for length in range(10, 60, 5):
        driver.arrive(list(range(length)), max_tokens=12)
        driver.answer()
    driver.settle()
    record(tmp_path, driver)
    found = observations(read_journal(tmp_path / FILE_NAME))
    made = refit(profile_of(flat(PHASES)), found)
    assert made.profile.fit.mape < made.old_mape
    cost = step_cost(made.profile.step)
    middle = float(np.median([cost.step_s(work) for work, _ in found]))
    assert middle == pytest.approx(driver.step_s, rel=0.1)


def flat(phases: PhaseFit) -> PhaseFit:
    """Every step of either phase takes the same."""
    return msgspec.structs.replace(phases, prefill_s=(0.02, 0.0, 0.0), decode_s=(0.02, 0.0, 0.0))


def test_what_is_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="missing"):
        read_journal(tmp_path / "missing")
    (tmp_path / "damaged").write_bytes(b"\xff" * 64)
    with pytest.raises(ProfileError, match="damaged"):
        read_journal(tmp_path / "damaged")
