"""A model with windows in the memory of one without: more run at once, and fewer give way."""

import msgspec
import numpy as np
import pytest

from daemon.core.core import Core
from daemon.lab.report.records import RunLog
from daemon.lab.simulator.run import Options, run
from daemon.lab.simulator.scenario import ScenarioLimits
from daemon.scheduler.policies import POLICIES
from tests.core.laws import check_laws
from tests.lab.simulator.made import MODEL, phases, prepared, profile, workload
from tests.soak import SOAK

LIMITS = ScenarioLimits(
    max_running=12, max_batch_tokens=48, max_len=400, block_size=4, prefix_cache=False
)


def crowded(policy: str, windows: tuple[int, ...]) -> RunLog:
    """Answers of unlike lengths that do not have room together if all tokens are held."""
    model = msgspec.structs.replace(MODEL, windows=windows)
    one = profile(phases((0.1, 0.0005, 0.0), (0.1, 0.0, 0.0)), model=model)
    chance = np.random.default_rng(5)
    arrivals = np.cumsum(chance.choice([0.0, 0.0, 0.3, 2.0], 40)).tolist()
    prompts, answers = chance.integers(30, 200, 40).tolist(), chance.integers(4, 180, 40).tolist()
    made = prepared(
        [one],
        workload(arrivals, prompts, answers),
        num_blocks=200,
        limits=LIMITS,
        policy=policy,
        predictor="oracle",
        seed=1,
        host_bytes=64e9,
    )
    return run(made, Options(after_event=lawful))


def lawful(core: Core) -> None:
    check_laws(core)


@pytest.mark.parametrize("policy", sorted(POLICIES) if SOAK else ("mlfq", "synced-d"))
def test_answers_end_sooner_with_windows_than_if_all_is_held(policy: str) -> None:
    held, windowed = crowded(policy, ()), crowded(policy, (0, 40))
    assert windowed.requests.preemptions.sum() <= held.requests.preemptions.sum()
    assert windowed.virtual_s <= held.virtual_s


def alone_s(windows: tuple[int, ...]) -> float:
    """The time of an answer of 50 tokens behind 100 others, with nothing beside it."""
    model = msgspec.structs.replace(MODEL, windows=windows)
    one = profile(phases((0.1, 0.0, 0.0), (0.1, 1e-3, 0.0)), model=model)
    made = prepared([one], workload([0.0], [100], [50]), num_blocks=200, limits=LIMITS, seed=1)
    return run(made, Options()).virtual_s


def test_layers_with_windows_read_no_more_than_these() -> None:
    """49 steps: of two layers one reads 40 tokens, and the other all 101 to 149."""
    contexts = np.arange(101, 150)
    saved = 1e-3 * (contexts - (contexts + 40) / 2).sum()
    assert alone_s(()) - alone_s((0, 40)) == pytest.approx(saved, rel=0.01)
