"""The promise of `scheduler.max_pause_s` is the daemon's, wherever a stream goes."""

import msgspec
import pytest

from daemon.core.values.events import Event, FlipOrdered, InstanceDrained, InstanceResumed
from daemon.lab.report.records import RunLog
from daemon.lab.simulator.run import Prepared
from daemon.lab.simulator.scenario import HandoffSpec, ScenarioLimits, WorkerFault
from daemon.state.role import Role
from tests.lab.simulator.made import phases, prepared, profile, workload
from tests.lab.simulator.promise_scenarios import Drawn, Fit, draw, simulate
from tests.lab.simulator.test_pauses import FAST_HOST, longest_gap_s
from tests.soak import tries

NUM_SCENARIOS = tries(4, 1000)
PAUSE_S, STEP_S = 5.0, 0.05


REMOTE_KV_SEEDS = (20067, 30080)
"""Streams went for room to instances that were full of prompts' KV which nobody fetched in time."""


@pytest.mark.parametrize("seed", [*range(NUM_SCENARIOS), *REMOTE_KV_SEEDS])
def test_no_stream_pauses_longer_than_was_promised(seed: int) -> None:
    """Over roles, flips, drains, deaths, n > 1, shared prefixes, unlike pools, and budgets. As long
    as more has begun than fits, such as when an instance is lost, nothing is promised.
    """
    drawn = draw(seed)
    requests = drawn.prepared.workload
    fit = Fit((requests.prompt_tokens + requests.output_tokens).tolist())
    log = simulate(drawn, fit.look)
    assert longest_gap_s(log.requests) <= drawn.promised_s + fit.misfit_s


def overloaded(
    roles: tuple[str, ...],
    told: tuple[Event, ...] = (),
    faults: tuple[WorkerFault, ...] = (),
    num: int = 100,
) -> RunLog:
    """Twice as many answers as can be served arrive, each of 60 to 100 tokens."""
    one = profile(phases((STEP_S, 0.0005, 0.0), (STEP_S, 0.0, 0.0)), device=FAST_HOST)
    limits = ScenarioLimits(
        max_running=64,
        max_batch_tokens=256,
        max_len=192,
        block_size=16,
        prefix_cache=False,
        depth=1,
        swap="proactive",
        max_pause_s=PAUSE_S,
    )
    prompts = [1 + 37 * number % 60 for number in range(num)]
    answers = [60 + 17 * number % 41 for number in range(num)]
    requests = workload([0.2 * number for number in range(num)], prompts, answers)
    made = prepared(
        [one] * len(roles),
        requests,
        num_blocks=30,
        limits=limits,
        policy="gittins",
        predictor="oracle",
        roles=roles,
        handoff=HandoffSpec(bytes_per_s=1e9),
        fault=faults,
    )
    return simulate(Drawn(made, told, STEP_S, 0.0))


PROMISED_S = PAUSE_S + 2 * STEP_S + 0.3


def test_prompts_begin_only_as_their_decode_instance_can_keep_the_pace() -> None:
    log = overloaded(("prefill", "decode"))
    assert log.handoffs > 50
    assert longest_gap_s(log.requests) <= PROMISED_S


def test_streams_that_wait_go_where_prompts_are_computed_if_there_is_room() -> None:
    log = overloaded(("prefill", "decode"))
    prefill, decode = (one.busy_s / log.virtual_s for one in log.instances)
    assert decode > 0.9
    assert prefill > 0.3, "it idles while streams wait"


@pytest.mark.parametrize(
    "told",
    [
        (InstanceDrained(12.0, 0),),
        (InstanceDrained(12.0, 0), InstanceResumed(14.0, 0)),
        (FlipOrdered(12.0, 0, Role.PREFILL),),
        tuple(
            FlipOrdered(0.6 * k, k % 2, [Role.PREFILL, Role.DECODE, Role.MIXED][k % 3])
            for k in range(1, 51)
        ),
    ],
    ids=["drain", "drain and back", "flip", "50 flips"],
)
def test_drains_and_flips_keep_the_promise(told: tuple[Event, ...]) -> None:
    log = overloaded(("mixed", "mixed"), told)
    assert longest_gap_s(log.requests) <= PROMISED_S


@pytest.mark.parametrize("dies", [0, 1, 2])
def test_a_death_keeps_the_promise_where_what_is_left_can_hold_all(dies: int) -> None:
    """Half of the streams of the dead one come back at once, and all of them within a pause."""
    faults = (WorkerFault(instance=dies, at_s=8.0, restart_s=2.0),)
    log = overloaded(("prefill", "decode", "decode"), faults=faults)
    assert longest_gap_s(log.requests) <= PROMISED_S + 1.0


@pytest.mark.soak
def test_the_scenarios_are_hard_enough() -> None:
    """Under a policy that promises nothing, some streams pause longer."""
    num_broken = 0
    for drawn in map(draw, range(4)):
        made = drawn.prepared
        scenario = msgspec.structs.replace(made.scenario, policy="speculative")
        other = Prepared(scenario, made.profiles, made.groups, made.max_len, made.workload)
        log = simulate(Drawn(other, drawn.told, drawn.longest_step_s, drawn.longest_move_s))
        num_broken += longest_gap_s(log.requests) > drawn.promised_s
    assert num_broken >= 2
