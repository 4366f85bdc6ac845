"""A run is its seed: the journal repeats byte by byte, and replays to the same actions."""

from pathlib import Path

import pytest

from daemon.core.core import Core
from daemon.core.values.events import Event, Predicted, RequestArrived, WorkerLost
from daemon.cost.profile import Fit
from daemon.journal.records import FILE_NAME
from daemon.lab.simulator.journal import replay
from daemon.lab.simulator.run import Options, Prepared, run
from daemon.lab.simulator.scenario import ScenarioLimits, WorkerFault
from daemon.wire.columns import encoder
from tests.lab.simulator.made import journalled, phases, prepared, profile, workload


def eventful(seed: int = 0) -> Prepared:
    """Two pipelines with noise, a fallible predictor, shared prefixes, preemption and a death."""
    num = 60
    requests = workload(
        [0.02 * i for i in range(num)],
        [20 + 7 * (i % 9) for i in range(num)],
        [5 + 11 * (i % 6) for i in range(num)],
        prefixes=[(i % 3, i % 2) for i in range(num)],
        prefix_block=16,
    )
    noisy = Fit(num_points=1, mape=0.0, noise_sigma=0.2)
    one = profile(phases((0.004, 2e-5, 0.0), (0.003, 1e-6, 1e-4)), fit=noisy, pp=2)
    return prepared(
        [one, one],
        requests,
        num_blocks=24,
        limits=ScenarioLimits(max_running=8, max_batch_tokens=64, max_len=256),
        policy="srtf",
        predictor="noisy:0.5",
        seed=seed,
        fault=(WorkerFault(instance=0, at_s=0.3, restart_s=0.1),),
    )


def journal(folder: Path, seed: int) -> bytes:
    run(eventful(seed), Options(journal=folder))
    return (folder / FILE_NAME).read_bytes()


def test_the_same_seed_writes_the_same_journal(tmp_path: Path) -> None:
    first, second = journal(tmp_path / "first", 7), journal(tmp_path / "second", 7)
    assert first == second
    assert first != journal(tmp_path / "other", 8)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_journal_replays_to_the_same_actions(tmp_path: Path, seed: int) -> None:
    did: list[bytes] = []

    def after_event(core: Core) -> None:
        did.append(encoder().encode(core._actions))

    log = run(eventful(seed), Options(journal=tmp_path, after_event=after_event))
    events = journalled(tmp_path)
    repeated = [encoder().encode(actions) for _, actions in replay(events)]
    assert repeated == did
    assert log.requests.preemptions.sum() > 0
    kinds: set[type[Event]] = {type(event) for event in events}
    assert {WorkerLost, RequestArrived, Predicted} <= kinds
