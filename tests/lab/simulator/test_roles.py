"""Prompts computed on one simulated instance and answered on another, reckoned by hand.

A step takes a tenth of a second whatever is in it. A token has 128 bytes of KV, a block 2,048.
"""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from daemon.core.values.events import (
    FlipOrdered,
    InstanceDrained,
    InstanceResumed,
    LinkChanged,
    MigrationOrdered,
    TransferEnded,
    WorkerLost,
)
from daemon.cost.profile import LinkSpec, Profile
from daemon.cost.work import StepWork
from daemon.journal.records import FILE_NAME
from daemon.lab.report.measures import measure
from daemon.lab.report.records import Outcome, RunLog
from daemon.lab.report.summarize import summarize
from daemon.lab.simulator.about import about_of
from daemon.lab.simulator.journal import read_incident, replay
from daemon.lab.simulator.pool import Pool
from daemon.lab.simulator.replayed import replayed
from daemon.lab.simulator.rerun import rerun
from daemon.lab.simulator.run import Options, run
from daemon.lab.simulator.scenario import HandoffSpec, ScenarioLimits, WorkerFault
from daemon.lab.simulator.workers import simulated_workers
from daemon.lab.workload.workload import Workload
from daemon.memory.sizing import block_bytes
from daemon.state.batch import Batch
from daemon.state.request import sequence_id
from daemon.state.role import Role
from tests.lab.simulator.made import DEVICE, MODEL, journalled, phases, prepared, profile, workload

STEP_S = 0.1
TOKEN_BYTES = 128
FAST = 1e12
NO = LinkSpec(0.0)
PAIR = ("prefill", "decode")


def one(pp: int = 1) -> Profile:
    return profile(phases((STEP_S, 0.0, 0.0)), pp=pp)


def handed(
    requests: Workload,
    bytes_per_s: float = FAST,
    roles: tuple[str, ...] = PAIR,
    options: Options | None = None,
    **changes: object,
) -> RunLog:
    plan = prepared(
        [one()] * len(roles),
        requests,
        roles=roles,
        limits=ScenarioLimits(max_batch_tokens=512, depth=1),
        handoff=HandoffSpec(bytes_per_s=bytes_per_s, latency_s=0.0),
        **changes,
    )
    return run(plan, options)


def test_a_tokens_bytes_are_those_of_this_file() -> None:
    assert block_bytes(MODEL, 1, MODEL.dtype) == TOKEN_BYTES


def test_a_prompt_is_computed_here_and_its_answer_there() -> None:
    """Over a fast link an answer takes as long as on one instance."""
    requests = workload([1.0], [100], [5])
    log = handed(requests)
    alone = run(prepared([one()], requests))
    assert log.requests.last_s == pytest.approx(alone.requests.last_s, abs=1e-4)
    assert log.handoffs == 1 and log.handoffs_failed == 0
    prefill, decode = log.instances
    assert (prefill.role, decode.role) == PAIR
    assert prefill.steps + decode.steps == 5 and decode.steps >= 3
    assert decode.transfers == 0 and decode.sent_bytes == 0


@pytest.mark.parametrize("num_prompt", [100, 96, 7])
def test_every_token_that_was_computed_here_is_sent_once(num_prompt: int) -> None:
    """Also where full blocks go ahead of the rest."""
    log = handed(workload([1.0], [num_prompt], [20]))
    prefill, decode = log.instances
    num_computed = num_prompt + prefill.steps - 1  # the last token drawn has no KV yet
    assert prefill.sent_bytes == pytest.approx(TOKEN_BYTES * num_computed)
    assert prefill.tokens + decode.tokens == num_prompt + 19, "nothing is computed twice"


def test_what_the_target_has_cached_is_not_sent() -> None:
    """Two prompts of 96 tokens that share their first 64, the second after the first has ended."""
    shared = workload([1.0, 10.0], [96, 96], [8, 8], prefixes=[(1,), (1,)], prefix_block=64)
    apart = workload([1.0, 10.0], [96, 96], [8, 8], prefixes=[(1,), (2,)], prefix_block=64)
    less, all_of_it = (handed(each).instances[0] for each in (shared, apart))
    assert all_of_it.sent_bytes - less.sent_bytes == pytest.approx(64 * TOKEN_BYTES)
    assert all_of_it.tokens - less.tokens == 64, "nor computed again at the source"


def test_a_slow_link_delays_the_answer_by_what_is_left_to_send() -> None:
    """96 tokens at 30,720 bytes a second take 0.4 s. They are six full blocks, which go while the
    prefill instance goes on; what it computes meanwhile goes in the gap that is seen.
    """
    log = handed(workload([1.0], [96], [20]), bytes_per_s=30_720.0)
    gaps = log.requests.gap_s
    late = gaps[gaps > STEP_S + 1e-3]
    prefill = log.instances[0]
    assert prefill.transfers == 2
    num_rest = prefill.tokens - 96
    assert num_rest == 4 and late == pytest.approx([STEP_S + 4 * TOKEN_BYTES / 30_720], rel=1e-3)
    assert prefill.transfer_s == pytest.approx(100 * TOKEN_BYTES / 30_720)
    assert measure(log.requests).second_token_s == pytest.approx([STEP_S], rel=1e-5)


@pytest.mark.parametrize("depth", [1, 2])
def test_prompts_leave_layer_by_layer(depth: int) -> None:
    """However many steps are in flight, each one leaves once its prompt is computed."""
    requests = workload([1.0 + i for i in range(5)], [104] * 5, [20] * 5)
    plan = prepared(
        [one()] * 2,
        requests,
        roles=PAIR,
        limits=ScenarioLimits(max_batch_tokens=512, depth=depth),
        handoff=HandoffSpec(bytes_per_s=FAST, latency_s=0.0, layer_sync_s=0.01, mode="layered"),
    )
    log = run(plan)
    prefill, decode = log.instances
    assert log.handoffs == 5 and decode.tokens >= 5 * 15
    assert prefill.transfers == 10, "full blocks with the prompt's step, the rest later"
    ttft_s = log.requests.first_s - log.requests.arrival_s
    assert ttft_s == pytest.approx([STEP_S + MODEL.num_layers * 0.01] * 5)


def test_a_worker_that_dies_in_the_middle_of_it_costs_nobody_the_answer(tmp_path: Path) -> None:
    requests = workload([1.0 + 0.3 * i for i in range(20)], [96] * 20, [12] * 20)
    fault = (
        WorkerFault(instance=1, at_s=2.5, restart_s=0.1),
        WorkerFault(instance=0, at_s=6.0, restart_s=0.1),
    )
    options = Options(journal=tmp_path)
    log = handed(requests, bytes_per_s=40_000.0, options=options, fault=fault)
    assert (log.requests.outcome == Outcome.FINISHED).all() and log.handoffs_failed > 0
    events = journalled(tmp_path)
    for lost in (event for event in events if isinstance(event, WorkerLost)):
        after = [event for event in events if event.now == lost.now and event is not lost]
        told = [type(event) for event in after if isinstance(event, TransferEnded | LinkChanged)]
        assert told.count(LinkChanged) == 2 and told[-2:] == [LinkChanged] * 2
        assert {event.instance for event in after if isinstance(event, LinkChanged)} == {
            1 - lost.instance
        }


def test_the_journal_of_roles_repeats_and_replays(tmp_path: Path) -> None:
    requests = workload([1.0 + 0.05 * i for i in range(30)], [96] * 30, [12] * 30)
    for name in ("first", "second"):
        log = handed(requests, 200_000.0, options=Options(journal=tmp_path / name))
    first, second = ((tmp_path / name / FILE_NAME).read_bytes() for name in ("first", "second"))
    assert first == second
    assert sum(1 for _ in replay(journalled(tmp_path / "first"))) > 100
    again = replayed(read_incident(tmp_path / "first" / FILE_NAME))
    assert again.requests.output_tokens.tolist() == log.requests.output_tokens.tolist()
    assert again.handoffs == log.handoffs > 0
    for told, did in zip(again.instances, log.instances, strict=True):
        assert (told.role, told.transfers) == (did.role, did.transfers)
        assert told.sent_bytes == pytest.approx(did.sent_bytes)
    other = rerun(read_incident(tmp_path / "first" / FILE_NAME), profile=one())
    assert (other.requests.outcome == Outcome.FINISHED).all() and other.handoffs > 0


@pytest.mark.parametrize("mode", ["auto", "serialized", "layered"])
@pytest.mark.parametrize("swaps", [False, True])
def test_a_rerun_has_the_transfers_of_the_journal(tmp_path: Path, mode: str, swaps: bool) -> None:
    """So every answer comes when it came, where KV is swapped as 8 bits too."""
    each = range(30)
    requests = workload([1.0 + 0.05 * i for i in each], [96] * 30, [12 + i % 9 for i in each])
    limits = ScenarioLimits(max_batch_tokens=512, depth=1, max_len=128, compress=swaps)
    changes = {"num_blocks": 20, "policy": "mlfq", "predictor": "noisy:0.5"} if swaps else {}
    handoff = HandoffSpec(bytes_per_s=200_000.0, mode=mode)
    plan = prepared(
        [one(), one()],
        requests,
        roles=PAIR,
        limits=limits,
        handoff=handoff,
        **changes,  # type: ignore[arg-type]
    )
    was = run(plan, Options(journal=tmp_path))
    again = rerun(read_incident(tmp_path / FILE_NAME))
    assert again.handoffs == was.handoffs > 0 and again.handoffs_failed == was.handoffs_failed
    assert again.swaps == was.swaps and (was.swaps > 0) == swaps
    for name in ("first_s", "last_s"):
        assert getattr(again.requests, name) == pytest.approx(getattr(was.requests, name)), name
    for told, did in zip(again.instances, was.instances, strict=True):
        assert told.transfers == did.transfers
        assert told.sent_bytes == pytest.approx(did.sent_bytes)


def test_other_transfers_than_the_journal_s_take_its_mean_time(tmp_path: Path) -> None:
    requests = workload([1.0 + 0.05 * i for i in range(30)], [96] * 30, [12] * 30)
    handed(requests, 200_000.0, options=Options(journal=tmp_path))
    again = rerun(read_incident(tmp_path / FILE_NAME), "prompt_sjf")
    assert (again.requests.outcome == Outcome.FINISHED).all() and again.handoffs > 0
    (sent, _) = again.instances
    assert sent.transfer_s / sent.transfers > 0.05, "a prompt has 12 kB"


ORDERS = MigrationOrdered | FlipOrdered | InstanceDrained | InstanceResumed


def test_orders_of_operators_are_given_again(tmp_path: Path) -> None:
    """What got nothing is not run again; so the last has another number, and another home."""
    requests = workload([1.0, 1.0, 1.0], [100, 1000, 50], [5, 1, 90])
    handed(requests, roles=("mixed", "mixed"), options=Options(journal=tmp_path))
    incident = read_incident(tmp_path / FILE_NAME)
    streams = list(incident.streams)
    incident.streams[streams[1]].token_s.clear()
    home = incident.streams[streams[2]].instance
    orders = [
        MigrationOrdered(2.0, streams[1], home),
        MigrationOrdered(2.0, streams[2], home),
        FlipOrdered(3.0, 1 - home, Role.DECODE),
        InstanceDrained(4.0, 1 - home),
        InstanceResumed(5.0, 1 - home),
    ]
    incident.inputs += orders
    again = rerun(incident, profile=one(), options=Options(journal=tmp_path / "again"))
    given = [event for event in journalled(tmp_path / "again") if isinstance(event, ORDERS)]
    assert given == [MigrationOrdered(2.0, sequence_id(1, 0), home), *orders[2:]]
    assert again.handoffs == 1


def test_one_instance_has_no_links_and_several_have(tmp_path: Path) -> None:
    requests = workload([1.0], [10], [5])
    run(prepared([one()], requests), Options(journal=tmp_path / "one"))
    run(prepared([one()] * 3, requests), Options(journal=tmp_path / "three"))
    ups = [
        [event for event in journalled(tmp_path / name) if isinstance(event, LinkChanged)]
        for name in ("one", "three")
    ]
    assert [len(each) for each in ups] == [0, 12]
    assert len({event.link for event in ups[1]}) == 6


def test_without_a_way_everything_stays_where_it_was_computed() -> None:
    alone = profile(
        phases((STEP_S, 0.0, 0.0)), device=msgspec.structs.replace(DEVICE, peer_link=NO)
    )
    plan = prepared([alone] * 2, workload([1.0], [100], [5]), roles=PAIR)
    unlinked = msgspec.structs.replace(alone.device, host_link=NO)
    unlinked_plan = prepared(
        [msgspec.structs.replace(alone, device=unlinked)] * 2,
        workload([1.0], [100], [5]),
        roles=PAIR,
    )
    assert (run(plan).handoffs, run(unlinked_plan).handoffs) == (1, 0)


def test_a_report_tells_of_roles_and_of_what_was_sent() -> None:
    requests = workload([1.0, 1.0], [100, 40], [5, 5])
    plan = prepared([one()] * 2, requests, roles=PAIR)
    report = summarize(run(plan), about_of(plan))
    assert [each.role for each in report.instances] == list(PAIR)
    assert report.handoffs == 2 and report.handoffs_failed == 0
    prefill = report.instances[0]
    assert report.sent_bytes == prefill.sent_bytes > 140 * TOKEN_BYTES
    assert prefill.transfers >= 2 and prefill.transfer_s > 0.0
    assert report.second_token_s.mean is not None


@pytest.mark.parametrize("num_stages", [1, 2])
def test_telling_of_layers_lengthens_that_step(num_stages: int) -> None:
    """Each stage of a pipeline tells of its own layers."""
    worker = simulated_workers(
        ["a"],
        [one(num_stages)],
        [1.0],
        [Pool(10, 2048)],
        np.full((1, 1), 100, np.int32),
        [4],
        [np.random.default_rng(0)],
    )[0]
    none = np.zeros(0, np.int32)
    flags = np.zeros(1, np.uint8)
    ones = np.ones(1, np.int32)
    batch = Batch(0, 1, none, none, ones, flags, flags)
    batch = msgspec.structs.replace(batch, slots=np.zeros(1, np.int32), starts=ones)
    done = worker.compute(0.0, batch, StepWork(1, 1, (), 0), 0.06)
    assert done.end_s - done.start_s == pytest.approx(num_stages * STEP_S + 0.06)
    assert worker.computed_s == done.end_s
