"""The promise of `scheduler.max_pause_s`, in scenarios drawn at random under memory pressure."""

import random
from dataclasses import replace
from typing import NamedTuple

import msgspec
import numpy as np
import pytest

from daemon.config.schema import SchedulerConfig, SloConfig
from daemon.core.core import Core
from daemon.cost.profile import LinkSpec
from daemon.lab.report.records import RequestLog
from daemon.lab.simulator.run import Options, Prepared, run
from daemon.lab.simulator.scenario import InstanceGroup, Scenario, ScenarioLimits
from daemon.lab.workload.workload import SloClass, WorkloadSpec
from daemon.scheduler.pace import MOST_POOLS
from tests.lab.simulator.made import DEVICE, phases, prepared, profile, workload
from tests.soak import tries

NUM_SCENARIOS = tries(10, 200)
MAX_LEN, MAX_PAUSE_S = 192, 5.0
FAST_HOST = msgspec.structs.replace(DEVICE, host_link=LinkSpec(1e9))


class Plan(NamedTuple):
    """A scenario, and what its machine takes for a step and for a stream's move."""

    prepared: Prepared
    longest_step_s: float
    longest_move_s: float

    @property
    def promised_s(self) -> float:
        """The longest gap that keeps the promise."""
        return MAX_PAUSE_S + self.longest_step_s + self.longest_move_s


def draw(seed: int) -> Plan:
    """Bursts of answers, alike or with a heavy tail, that want several pools."""
    chance = random.Random(seed)
    step_s, token_s = chance.choice([0.05, 0.1, 0.2]), 0.0005
    bytes_per_s = chance.choice([1e5, 1e6, 1e9])
    device = msgspec.structs.replace(DEVICE, host_link=LinkSpec(bytes_per_s))
    one = profile(phases((step_s, token_s, 0.0), (step_s, 0.0, 0.0)), device=device)
    num, heavy = chance.randint(25, 50), chance.random() < 0.5
    gaps = [chance.choice([0, 0, 2, 5, 20]) * step_s for _ in range(num)]
    prompts = [chance.randint(1, 60) for _ in gaps]
    tails = [min(120, int(8 * chance.paretovariate(1.1))) for _ in gaps]
    answers = tails if heavy else [chance.randint(60, 100) for _ in gaps]
    budget = chance.choice([64, 256])
    limits = ScenarioLimits(
        max_running=chance.choice([8, 16, 64]),
        max_batch_tokens=budget,
        max_len=MAX_LEN,
        block_size=chance.choice([4, 16]),
        prefix_cache=False,
        depth=chance.choice([1, 2]),
        swap=chance.choice(["proactive", "proactive", "reactive", "recompute"]),
        max_pause_s=MAX_PAUSE_S,
    )
    least = MAX_LEN // limits.block_size
    made = prepared(
        [one],
        workload(np.cumsum(gaps).tolist(), prompts, answers),
        num_blocks=chance.randint(least, 2 * least),
        limits=limits,
        policy="gittins",
        predictor=chance.choice(["none", "mean", "oracle", "noisy:1.5", "adversary"]),
        seed=seed,
        host_bytes=chance.choice([0.0, 64e9, 64e9]),
    )
    longest_step_s = step_s + budget * token_s
    copies_s = 2 * 128 * MAX_LEN / bytes_per_s
    computed_s = -(-MAX_LEN // (budget // 2)) * longest_step_s  # the budget is for others too
    return Plan(made, longest_step_s, max(copies_s, computed_s))


def longest_gap_s(log: RequestLog) -> float:
    return float(log.gap_s.max(initial=0.0))


def pools_needed(core: Core, lengths: list[int]) -> float:
    """What all that have begun need at their ends, in pools."""
    kv = core.instances[0].scheduler.kv
    begun = [one for one in core.sequences.values() if one.num_output_tokens > 0 or one.slot >= 0]
    need = sum(kv.blocks_for(lengths[one.request]) for one in begun)
    return need / max(1, kv.pool.num_blocks)


@pytest.mark.parametrize("seed", range(NUM_SCENARIOS))
def test_no_stream_pauses_longer_than_was_promised(seed: int) -> None:
    plan = draw(seed)
    requests = plan.prepared.workload
    lengths = (requests.prompt_tokens + requests.output_tokens).tolist()
    most_pools = 0.0

    def after_event(core: Core) -> None:
        nonlocal most_pools
        most_pools = max(most_pools, pools_needed(core, lengths))

    log = run(plan.prepared, Options(after_event=after_event))
    assert longest_gap_s(log.requests) <= plan.promised_s
    assert most_pools <= MOST_POOLS, "more began than the pool can keep"


@pytest.mark.parametrize("seed", [1, 3])
def test_streams_of_one_request_keep_the_promise_to_each_other(seed: int) -> None:
    chance, num, max_pause_s = random.Random(seed), 40, 4.0
    one = profile(phases((0.05, 0.0001, 0.0), (0.05, 0.0, 0.0)), device=FAST_HOST)
    prompts = [chance.randint(50, 400) for _ in range(num)]
    answers = [min(600, int(60 * chance.paretovariate(1.1))) for _ in range(num)]
    limits = ScenarioLimits(
        max_running=64,
        max_batch_tokens=512,
        max_len=1024,
        block_size=16,
        prefix_cache=True,
        depth=1,
        max_pause_s=max_pause_s,
    )
    requests = workload([0.5 * i for i in range(num)], prompts, answers)
    told = {"limits": limits, "policy": "gittins", "predictor": "mean", "n": 3, "seed": seed}
    log = run(prepared([one], requests, num_blocks=300, **told))  # type: ignore[arg-type]
    assert longest_gap_s(log.requests) <= max_pause_s + 5 * 0.1


@pytest.mark.soak
def test_the_scenarios_are_hard_enough() -> None:
    """Under a policy that promises nothing, some streams pause longer."""
    num_broken = 0
    for plan in map(draw, range(16)):
        scenario = msgspec.structs.replace(plan.prepared.scenario, policy="speculative")
        log = run(replace(plan.prepared, scenario=scenario))
        num_broken += longest_gap_s(log.requests) > plan.promised_s
    assert num_broken >= 4


def test_the_longest_pause_keeps_the_shortest_gap_promised_unless_said() -> None:
    chat, code = SloClass("chat", 0.5, gap_s=2.0), SloClass("code", 0.5, gap_s=5.0)
    for classes, said_s, wanted_s in (
        ((SloClass(ttft_s=1.0),), None, SchedulerConfig().max_pause_s),
        ((code, chat), None, 1.6),
        ((code, chat), 3.0, 3.0),
        ((SloClass(),), 3.0, 3.0),
    ):
        made = Scenario(
            workload=WorkloadSpec(name="skew", rate=5.0, classes=classes),
            instance=(InstanceGroup(profile="opt-13b@a100-80g"),),
            limits=ScenarioLimits(max_pause_s=said_s),
        )
        assert made.max_pause_s == pytest.approx(wanted_s)


def test_answers_should_keep_to_the_shortest_promise_of_any_class() -> None:
    classes = SloClass("a", 0.5, ttft_s=1.0), SloClass("b", 0.5, ttft_s=3.0)
    made = Scenario(
        workload=WorkloadSpec(name="skew", rate=5.0, classes=classes),
        instance=(InstanceGroup(profile="opt-13b@a100-80g"),),
    )
    assert (made.slo.ttft_s, made.slo.tpot_s) == (1.0, SloConfig().tpot_s)
