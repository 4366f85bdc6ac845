"""Scenarios drawn at random: whatever is asked of which machine, every law holds to the end."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest

from daemon.core.core import Core
from daemon.cost.profile import Fit, LinkSpec, Operators, PhaseFit, Profile
from daemon.lab.report.records import Outcome, RequestLog, RunLog
from daemon.lab.simulator.run import Options, Prepared, run
from daemon.lab.simulator.scenario import HandoffSpec, ScenarioLimits, WorkerFault
from daemon.lab.workload.workload import Workload
from daemon.memory.swap_space import SWAP_MODES
from daemon.scheduler.policies import POLICIES
from tests.core.laws import check_laws, check_nothing_left
from tests.lab.simulator.made import CURVES, DEVICE, phases, prepared, profile, workload
from tests.soak import tries

FEWEST = tries(30, 60)
SWAPS_TOO = 91
"""Few of the first scenarios have need of host memory; this one has."""
NUM_SCENARIOS = tries(FEWEST, 500)
FEW_ASLEEP = 6
FEW_LENDING, FEW_UPLOADING = 4, 6
UPLOADS_BESIDE_LOANS = 960
"""Here an upload ahead would take blocks that an answer has reserved, until its copy is done."""
UPLOADING = ("gittins", "mlfq", "mlfq-q1", "speculative", "speculative-queues")
MAX_LEN = 192


def draw_profile(chance: random.Random) -> Profile:
    """Fast or slow, straight or curved, with or without noise, of one to three stages."""
    scale = chance.choice([0.2, 1.0, 5.0])
    line = phases((0.004 * scale, 1e-5, 1e-8), (0.003 * scale, 1e-6, 1e-5))
    step: PhaseFit | Operators = line if chance.random() < 0.5 else CURVES
    sigma = chance.choice([0.0, 0.1, 0.5])
    fit = Fit(num_points=1, mape=0.0, noise_sigma=sigma)
    num_stages = chance.randint(1, 3)
    link = LinkSpec(chance.choice([1e6, 1e9]))  # slower than computing again, and faster
    device = msgspec.structs.replace(DEVICE, host_link=link)
    return profile(step, fit=fit, pp=num_stages, device=device)


def draw_workload(chance: random.Random) -> Workload:
    """Bursts and lulls, short and long, with prefixes in common or not."""
    num = chance.randint(5, 40)
    gaps = [chance.choice([0.0, 0.0, chance.expovariate(200.0), 0.05]) for _ in range(num)]
    prompts = [chance.choice([1, 2, chance.randint(1, 40), chance.randint(1, 120)]) for _ in gaps]
    answers = [chance.choice([1, chance.randint(1, 20), chance.randint(1, 64)]) for _ in gaps]
    prefixes = [tuple(chance.randint(0, 1) for _ in range(1 + one // 16)) for one in prompts]
    if chance.random() < 0.5:
        prefixes = []
    priorities = chance.choice([(0,), (0, 1), (2, -1, 0)])
    arrival_s = np.cumsum(gaps).tolist()
    return workload(arrival_s, prompts, answers, prefixes, 16, priorities)


def draw_roles(chance: random.Random, num_instances: int) -> tuple[list[str], HandoffSpec]:
    """Roles of all kinds or none, and links that are fast, slow, far away, or the profile's."""
    roles = [chance.choice(["mixed", "prefill", "decode"]) for _ in range(num_instances)]
    handoff = HandoffSpec(
        bytes_per_s=chance.choice([0.0, 1e5, 1e7]),
        latency_s=chance.choice([None, 0.0, 0.05]),
        mode=chance.choice(["auto", "serialized", "layered"]),
    )
    return roles if chance.random() < 0.7 else ["mixed"] * num_instances, handoff


def draw(seed: int) -> Prepared:
    """The scenario of a seed."""
    chance = random.Random(seed)
    one = draw_profile(chance)
    num_instances = chance.randint(1, 3)
    budget = chance.choice([16, 64, 256])
    limits = ScenarioLimits(
        max_running=chance.randint(1, 12),
        max_batch_tokens=budget,
        prefill_chunk=chance.choice([0, budget // 4]),
        max_waiting=chance.choice([0, 0, 6]),
        max_len=MAX_LEN,
        block_size=chance.choice([4, 16]),
        prefix_cache=chance.random() < 0.7,
        depth=chance.choice([0, 0, 1, 2, 3]),
        swap=chance.choice(["", "proactive", *SWAP_MODES]),
        starve_s=chance.choice([0.02, 0.3]),
    )
    least = MAX_LEN // limits.block_size
    faults = [
        WorkerFault(
            instance=chance.randrange(num_instances),
            at_s=chance.uniform(0.0, 0.4),
            restart_s=chance.uniform(0.0, 0.3),
        )
        for _ in range(chance.choice([0, 0, 1, 3]))
    ]
    roles, handoff = draw_roles(random.Random(-seed - 1), num_instances)
    return prepared(
        [one] * num_instances,
        draw_workload(chance),
        num_blocks=chance.randint(least, 2 * least),
        limits=limits,
        policy=sorted(POLICIES)[seed % len(POLICIES)],
        predictor=chance.choice(["none", "mean", "oracle", "noisy:1.5", "adversary"]),
        seed=seed,
        fault=tuple(faults),
        host_bytes=chance.choice([0.0, 30_000.0, 64e9]),
        roles=roles,
        handoff=handoff,
    )


def with_asleep(plan: Prepared, seed: int) -> Prepared:
    """The scenario on two or three instances, of which all but the first may be asleep."""
    chance = random.Random(-seed - 2)
    num = chance.randint(2, 3)
    fault = tuple(fault for fault in plan.scenario.fault if fault.instance < num)
    first, *others = (plan.groups * num)[:num]
    placement = chance.choice(["least_loaded", "aladdin"])
    asleep = [
        msgspec.structs.replace(
            group, asleep=chance.random() < 0.8, wake_s=chance.choice([0.001, 0.01, 0.1, 10.0])
        )
        for group in others
    ]
    return replace(
        plan,
        scenario=msgspec.structs.replace(plan.scenario, placement=placement, fault=fault),
        profiles=(plan.profiles * num)[:num],
        groups=(first, *asleep),
    )


def lending(seed: int) -> Prepared:
    """A scenario under EcoServe's whole system, with predictions and instances that may sleep."""
    plan, chance = with_asleep(draw(seed), seed), random.Random(-seed - 3)
    predictor = chance.choice(["oracle", "noisy:0.3", "noisy:1.5"])
    scenario = msgspec.structs.replace(plan.scenario, policy="synced", predictor=predictor)
    return replace(plan, scenario=scenario)


def uploading(seed: int) -> Prepared:
    """A scenario under a policy that uploads ahead, over a fast link, with the same instances."""
    plan, chance = with_asleep(draw(seed), seed), random.Random(-seed - 4)
    limits = msgspec.structs.replace(
        plan.scenario.limits, swap="proactive", max_running=chance.randint(1, 4)
    )
    device = msgspec.structs.replace(plan.profiles[0].device, host_link=LinkSpec(1e9))
    profiles = tuple(msgspec.structs.replace(one, device=device) for one in plan.profiles)
    scenario = msgspec.structs.replace(
        plan.scenario, policy=chance.choice(UPLOADING), limits=limits
    )
    groups = tuple(msgspec.structs.replace(group, host_bytes=64e9) for group in plan.groups)
    return replace(plan, scenario=scenario, profiles=profiles, groups=groups)


def lawful(seen: list[Core]) -> Callable[[Core], None]:
    """Checks every ledger and place after an event, and remembers the Core."""

    def after_event(core: Core) -> None:
        check_laws(core)
        seen[:] = [core]

    return after_event


def check_log(log: RequestLog) -> None:
    """Everyone got what it asked for, in time's order, or was turned away with nothing."""
    finished = log.outcome == Outcome.FINISHED
    rejected = log.outcome == Outcome.REJECTED
    assert (finished | rejected).all()
    assert np.array_equal(log.output_tokens, np.where(finished, log.asked_tokens, 0))
    assert (log.started_s[finished] >= log.arrival_s[finished]).all()
    assert (log.first_s[finished] > log.started_s[finished]).all()
    assert (log.last_s[finished] >= log.first_s[finished]).all()
    assert np.isnan(log.first_s[rejected]).all()
    assert (log.gap_s >= 0.0).all()
    gaps = np.bincount(log.gap_request, minlength=len(log))
    assert np.array_equal(gaps, np.maximum(log.output_tokens - 1, 0))
    spans_s = np.bincount(log.gap_request, log.gap_s, minlength=len(log))
    expected_s = (log.last_s - log.first_s)[finished]
    assert spans_s[finished] == pytest.approx(expected_s, rel=1e-4, abs=1e-6)
    assert (log.instance[finished] >= 0).all()


@cache
def ran(seed: int) -> tuple[Prepared, RunLog]:
    """The scenario of a seed, run and checked."""
    plan = draw(seed)
    return plan, run_lawfully(plan)


def run_lawfully(plan: Prepared) -> RunLog:
    seen: list[Core] = []
    log = run(plan, Options(after_event=lawful(seen)))
    check_nothing_left(seen[0])
    check_log(log.requests)
    prompts = int(log.requests.prompt_tokens[log.requests.outcome == Outcome.FINISHED].sum())
    counters = seen[0].counters
    assert counters.output_tokens == int(log.requests.output_tokens.sum())
    assert counters.prompt_tokens == prompts
    assert counters.preemptions == int(log.requests.preemptions.sum())
    assert counters.recomputed_tokens == int(log.requests.recomputed_tokens.sum())
    return log


@pytest.mark.parametrize("seed", sorted({*range(NUM_SCENARIOS), SWAPS_TOO}))
def test_every_law_holds(seed: int) -> None:
    ran(seed)


@cache
def num_woken(seed: int) -> int:
    """How many instances woke in the scenario of a seed, run and checked with asleep ones."""
    plan = with_asleep(draw(seed), seed)
    logs = zip(plan.groups, run_lawfully(plan).instances, strict=True)
    return sum(group.asleep and log.steps > 0 for group, log in logs)


@pytest.mark.parametrize("seed", range(tries(FEW_ASLEEP, 1000)))
def test_every_law_holds_where_instances_sleep(seed: int) -> None:
    num_woken(seed)


def test_some_asleep_instances_wake_and_some_do_not() -> None:
    woken = [num_woken(seed) > 0 for seed in range(FEW_ASLEEP)]
    assert any(woken) and not all(woken)


@cache
def num_lent(seed: int) -> int:
    """Loans in the lending scenario of a seed, run and checked."""
    return int(run_lawfully(lending(seed)).requests.loans.sum())


@cache
def num_uploaded(seed: int) -> int:
    """Blocks uploaded ahead in the uploading scenario of a seed, run and checked."""
    return run_lawfully(uploading(seed)).uploaded_ahead_blocks


@pytest.mark.parametrize("seed", sorted({*range(tries(FEW_LENDING, 1000)), UPLOADS_BESIDE_LOANS}))
def test_every_law_holds_where_halves_are_lent(seed: int) -> None:
    num_lent(seed)


@pytest.mark.parametrize("seed", range(tries(FEW_UPLOADING, 1000)))
def test_every_law_holds_where_uploads_go_ahead(seed: int) -> None:
    num_uploaded(seed)


def test_some_lend_and_some_upload_ahead() -> None:
    assert sum(num_lent(seed) > 0 for seed in range(FEW_LENDING)) > 1
    assert sum(num_uploaded(seed) > 0 for seed in range(FEW_UPLOADING)) > 1


def test_the_scenarios_are_hard_enough() -> None:
    """Among them are preemption, swaps, refusal, deaths, pipelines, handoffs, shared prefixes."""
    plans, runs = zip(*map(ran, (*range(FEWEST), SWAPS_TOO)), strict=True)
    logs = [one.requests for one in runs]
    assert sum(one.swaps > 0 for one in runs) >= tries(2, 4)
    assert sum(bool(log.recomputed_tokens.any()) for log in logs) >= tries(3, 5)
    assert sum(bool(log.preemptions.any()) for log in logs) >= tries(5, 10)
    assert sum(bool((log.outcome == Outcome.REJECTED).any()) for log in logs) >= tries(1, 2)
    assert sum(bool(plan.scenario.fault) for plan in plans) >= tries(5, 10)
    assert sum(plan.profiles[0].pp > 1 for plan in plans) >= tries(5, 10)
    assert sum(bool(plan.workload.prefixes) for plan in plans) >= tries(5, 10)
    assert sum(one.handoffs > 0 for one in runs) >= tries(5, 10)
    assert sum(one.handoffs_failed > 0 for one in runs) >= tries(1, 2)
    assert {plan.scenario.policy for plan in plans} == set(POLICIES)
