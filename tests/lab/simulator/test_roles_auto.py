"""The watcher of roles in simulated lives: it splits where that helps, and every law holds."""

from dataclasses import replace
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import pytest

from daemon.core.core import Core
from daemon.cost.profile import LinkSpec, Profile
from daemon.journal.records import FILE_NAME
from daemon.lab.report.records import Outcome, RunLog
from daemon.lab.report.report import Report
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.checks import check
from daemon.lab.simulator.journal import replay
from daemon.lab.simulator.run import Options, Prepared, run
from daemon.lab.simulator.scenario import Scenario, ScenarioError
from daemon.lab.workload.workload import SloClass, Workload
from daemon.state.role import AUTO
from tests.core.laws import check_laws, check_nothing_left
from tests.lab.simulator.made import DEVICE, journalled, phases, prepared, profile, workload

ROWS = (0.020, 0.0, 0.0004)
"""A step's base, and what each row that draws adds."""


def one() -> Profile:
    device = msgspec.structs.replace(DEVICE, name="made", peer_link=LinkSpec(1e10))
    return profile(phases((0.020, 2e-4, 0.0), ROWS), device=device)


def requests(rate: float, seconds: float, prompt: int, answer: int) -> Workload:
    chance = np.random.default_rng(1)
    num = int(rate * seconds)
    arrival_s = np.cumsum(chance.exponential(1 / rate, num)).tolist()
    prompts = chance.integers(prompt // 2, 3 * prompt // 2, num).tolist()
    answers = chance.integers(answer // 2, 3 * answer // 2, num).tolist()
    made = workload(arrival_s, prompts, answers)
    return replace(made, classes=(SloClass(ttft_s=1.0, tpot_s=0.028),))


def plan(asked: Workload, roles: str, instances: int = 2) -> Prepared:
    made = prepared([one()] * instances, asked, num_blocks=700)
    scenario = msgspec.structs.replace(
        made.scenario,
        roles=roles,
        workload=msgspec.structs.replace(made.scenario.workload, classes=asked.classes),
    )
    each = zip(made.groups, scenario.role_of_each, strict=True)
    groups = tuple(msgspec.structs.replace(group, role=role) for group, role in each)
    return replace(made, scenario=scenario, groups=groups)


def reported(asked: Workload, roles: str) -> tuple[Report, RunLog]:
    made = plan(asked, roles)
    log = run(made)
    return report_of(made, log), log


HEAVY = requests(4.8, 75.0, 400, 60)
"""Prompts that take a fifth of two mixed instances' time."""

SHORT = requests(4.8, 45.0, 400, 60)


def test_long_prompts_and_a_tight_promise_make_a_split() -> None:
    mixed, _ = reported(HEAVY, "mixed")
    split, _ = reported(HEAVY, "1:1")
    auto, log = reported(HEAVY, AUTO)
    assert mixed.attainment is not None and split.attainment is not None
    assert split.attainment > mixed.attainment + 0.2
    assert auto.attainment is not None and auto.attainment > mixed.attainment + 0.05
    assert (mixed.flips, split.flips, auto.flips) == (0, 0, 2)
    assert log.handoffs > 50 and log.handoffs_failed == 0


def test_every_law_holds_and_nothing_is_left() -> None:
    seen: list[Core] = []
    counted = count()

    def look(core: Core) -> None:
        seen[:] = [core]
        if next(counted) % 24 == 0:
            check_laws(core)

    log = run(plan(SHORT, AUTO), Options(after_event=look))
    assert (log.requests.outcome == Outcome.FINISHED).all()
    assert log.flips == 2
    check_nothing_left(seen[0])


def test_its_journal_does_the_same_again(tmp_path: Path) -> None:
    run(plan(SHORT, AUTO), Options(journal=tmp_path))
    events = journalled(tmp_path)
    assert (tmp_path / FILE_NAME).exists()
    cores: list[Core] = []
    num = sum(1 for _ in replay(events, cores.append))
    assert num == len(events) - 1
    (core,) = cores
    assert core.counters.flips == 2
    assert core.migrator.flips.newest[0].why.startswith("auto: 1:1: better than mixed")


def test_a_light_load_stays_mixed() -> None:
    auto, _ = reported(requests(0.9, 70.0, 100, 60), AUTO)
    assert auto.flips == 0 and auto.attainment is not None and auto.attainment > 0.99


@pytest.mark.parametrize("roles", ["1:2", "2:0", "0:2", "a:1", "many", "1:1:0"])
def test_a_split_that_cannot_be_is_refused(roles: str) -> None:
    with pytest.raises(ScenarioError, match="roles"):
        check(plan_unchecked(roles))


def plan_unchecked(roles: str) -> Scenario:
    made = prepared([one()] * 2, HEAVY)
    return msgspec.structs.replace(made.scenario, roles=roles)
