"""Uploads ahead of need under a real policy: they act, they are used, and returns wait less."""

import msgspec
import numpy as np
import pytest

from daemon.core.core import Core
from daemon.cost.profile import LinkSpec
from daemon.lab.report.records import RunLog
from daemon.lab.simulator.run import Options, Prepared, run
from daemon.lab.simulator.scenario import ScenarioLimits
from daemon.scheduler.residency import Residency
from tests.core.laws import check_laws
from tests.lab.simulator.made import DEVICE, MODEL, phases, prepared, profile, workload

LIMITS = ScenarioLimits(
    max_running=8,
    max_batch_tokens=64,
    max_len=192,
    block_size=4,
    prefix_cache=False,
    swap="proactive",
)


def crowded(
    policy: str, bytes_per_s: float = 4e4, windows: tuple[int, ...] = (), num_blocks: int = 150
) -> Prepared:
    """Bursts of answers of unlike lengths, which take turns in eight slots and a small pool."""
    device = msgspec.structs.replace(DEVICE, host_link=LinkSpec(bytes_per_s))
    model = msgspec.structs.replace(MODEL, windows=windows)
    times = phases((0.1, 0.0005, 0.0), (0.1, 0.0, 0.0))
    one = profile(times, device=device, model=model)
    chance = np.random.default_rng(5)
    arrivals = np.cumsum(chance.choice([0.0, 0.0, 0.3, 2.0], 60)).tolist()
    prompts, answers = chance.integers(4, 60, 60).tolist(), chance.integers(4, 120, 60).tolist()
    return prepared(
        [one],
        workload(arrivals, prompts, answers),
        num_blocks=num_blocks,
        limits=LIMITS,
        policy=policy,
        predictor="oracle",
        seed=1,
        host_bytes=64e9,
    )


def lawful(core: Core) -> None:
    check_laws(core)


def waits_s(log: RunLog) -> float:
    """The mean wait for copies of a sequence that came back."""
    return float(log.requests.swap_s.sum() / max(log.swaps, 1))


@pytest.mark.parametrize("policy", ["mlfq", "speculative", "srtf", "gittins"])
def test_returns_wait_less_for_their_copies(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = run(crowded(policy), Options(after_event=lawful))
    assert ahead.uploaded_ahead_blocks > 0
    monkeypatch.setattr(Residency, "upload_ahead", lambda *_: None)
    without = run(crowded(policy), Options())
    assert not without.uploaded_ahead_blocks and without.swaps
    assert waits_s(ahead) < waits_s(without)


@pytest.mark.parametrize("policy", ["mlfq", "srtf"])
def test_they_wait_less_where_layers_have_windows(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, in a smaller pool and over a link that brings whole sequences in time."""

    def plan() -> Prepared:
        return crowded(policy, 2e5, (0, 16), 60)

    ahead = run(plan(), Options(after_event=lawful))
    assert ahead.uploaded_ahead_blocks > 0
    monkeypatch.setattr(Residency, "upload_ahead", lambda *_: None)
    without = run(plan(), Options())
    assert not without.uploaded_ahead_blocks and without.swaps
    assert waits_s(ahead) < waits_s(without)
