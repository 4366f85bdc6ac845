"""Faults at random under load: no text is lost, doubled or changed, and nothing is left behind.

`LLMD_CHAOS_SEED` chooses another seed; what a run did is printed.
"""

from pathlib import Path

import pytest

from daemon.config.paths import default_cache
from daemon.models.embedded import EMBEDDED_NAME, model_folder
from tests.chaos.cases import KINDS, Asker, greedy_cases, toy_folder
from tests.chaos.daemons import embedded, seed_of, toys
from tests.chaos.run import Plan, soak, sure_cases

SHORT = Plan(
    clients=12,
    faults={
        "worker killed": 3,
        "worker stopped": 1,
        "worker stopped a moment": 2,
        "API killed": 1,
        "API stopped": 1,
        "API stopped a moment": 1,
        "configuration": 2,
        "broken configuration": 1,
        "policy": 4,
        "drain and resume": 1,
    },
)
FULL = Plan(
    clients=20,
    faults={
        "worker killed": 200,
        "worker stopped": 15,
        "worker stopped a moment": 35,
        "API killed": 25,
        "API stopped": 10,
        "API stopped a moment": 15,
        "configuration": 40,
        "broken configuration": 20,
        "policy": 100,
        "drain and resume": 30,
    },
)
REAL = Plan(
    clients=8,
    patient=True,
    faults={
        "worker killed": 40,
        "worker stopped": 3,
        "worker stopped a moment": 8,
        "API killed": 4,
        "API stopped": 2,
        "configuration": 5,
        "broken configuration": 2,
        "policy": 20,
        "drain and resume": 4,
    },
)


async def test_faults_at_random_change_no_text(tmp_path: Path) -> None:
    seed = seed_of(1)
    cases = Asker(seed, most_tokens=50).cases(len(KINDS))
    subject = toys(toy_folder(tmp_path / "toy"), cases)
    await soak(subject, tmp_path / "llmd.toml", SHORT, seed, "reactive")


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("seed", "swap", "workers"),
    [(101, "proactive", 2), (102, "reactive", 2), (103, "", 2), (104, "proactive", 1)],
)
async def test_many_faults_at_random_change_no_text(
    tmp_path: Path, seed: int, swap: str, workers: int
) -> None:
    seed = seed_of(seed)
    cases = Asker(seed, most_tokens=150).cases(8 * len(KINDS))
    subject = toys(toy_folder(tmp_path / "toy"), cases, workers)
    await soak(subject, tmp_path / "llmd.toml", FULL, seed, swap)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_faults_at_random_change_no_text_of_the_embedded_model(tmp_path: Path) -> None:
    config = tmp_path / "llmd.toml"
    subject = embedded(model_folder("", default_cache()), greedy_cases(EMBEDDED_NAME, 30))
    subject = subject._replace(cases=await sure_cases(subject, config))
    assert len(subject.cases) > 5
    await soak(subject, config, REAL, seed_of(105), "proactive")
