"""What a scenario may say, what becomes of it, and that its chances are its own."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from daemon.core.core import Core
from daemon.core.values.events import Event, Predicted
from daemon.cost.curve import Curve
from daemon.cost.profile import Edges, LinkSpec, PowerSpec, Profile
from daemon.lab.report.records import Outcome
from daemon.lab.simulator.about import report_of
from daemon.lab.simulator.checks import check
from daemon.lab.simulator.power import PowerMeter, check_cap
from daemon.lab.simulator.run import Options, prepare, run
from daemon.lab.simulator.scenario import (
    HandoffSpec,
    InstanceGroup,
    Scenario,
    ScenarioError,
    ScenarioLimits,
    WorkerFault,
)
from daemon.lab.simulator.simulator import SimulationError
from daemon.lab.workload.workload import WorkloadSpec
from daemon.memory.sizing import block_bytes
from daemon.state.pause import Cause
from tests.lab.simulator.made import DEVICE, MODEL, journalled, phases, prepared, profile, workload

STEP = phases((0.004, 2e-5, 0.0), (0.003, 1e-6, 1e-4))


def scenario(folder: Path, one: Profile | None = None, **changes: object) -> Scenario:
    """Skewed answers on the tiny model."""
    path = folder / "profile.json"
    path.write_bytes(msgspec.json.encode(one or profile(STEP)))
    made = Scenario(
        workload=WorkloadSpec(name="skew", requests=300, rate=5.0),
        instance=(InstanceGroup(profile=str(path)),),
        predictor="none",
    )
    return msgspec.structs.replace(made, **changes)


# Chances


def ranks(values: list[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.argsort(np.argsort(values)).astype(float)


def test_a_predictors_error_has_nothing_to_do_with_the_truth(tmp_path: Path) -> None:
    """Workload and scenario have the same seed; 300 pairs at random correlate to 0.06."""
    trace = tmp_path / "lengths.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n" + "20,1\n" * 300)
    longer = msgspec.structs.replace(MODEL, context_len=4096)
    skewed = WorkloadSpec(name="skew", trace=trace, rate=5.0)
    plan = prepare(
        scenario(tmp_path, profile(STEP, model=longer), predictor="noisy:0.5", workload=skewed)
    )
    run(plan, Options(journal=tmp_path / "journal"))
    events: list[Event] = journalled(tmp_path / "journal")
    said = {e.request: e.num_tokens for e in events if isinstance(e, Predicted)}
    truth = plan.workload.output_tokens.tolist()
    errors = [said[request] / true for request, true in enumerate(truth)]
    assert len(set(said.values())) > 100
    assert abs(np.corrcoef(ranks(errors), ranks(truth))[0, 1]) < 0.2


# Profiles


def test_profiles_of_one_name_are_two_profiles() -> None:
    """The second instance takes ten times as long, though it is called the same."""
    slow = profile(phases((1.0, 0.0, 0.0)))
    for order in ([profile(phases((0.1, 0.0, 0.0))), slow], [slow, profile(phases((0.1, 0, 0)))]):
        log = run(prepared(order, workload([0.0, 0.0], [10, 10], [1, 1]))).requests
        took_s = dict(zip(log.instance.tolist(), log.last_s.tolist(), strict=True))
        fast = 0 if order[1] is slow else 1
        assert took_s == pytest.approx({fast: 0.1, 1 - fast: 1.0})


# Lengths and times


@pytest.mark.parametrize("largest", [0, 1])
def test_requests_that_no_pool_could_hold_are_dropped(tmp_path: Path, largest: int) -> None:
    """As the daemon clamps its context to its largest pool: of 40 blocks of 16 tokens here."""
    made = scenario(tmp_path)
    size_bytes = float(block_bytes(MODEL, 16, MODEL.dtype))
    groups = [InstanceGroup(profile=made.instance[0].profile, kv_bytes=20 * size_bytes)] * 2
    groups[largest] = msgspec.structs.replace(groups[0], kv_bytes=40 * size_bytes)
    plan = prepare(msgspec.structs.replace(made, instance=tuple(groups)))
    assert plan.max_len == 640
    assert plan.workload.num_dropped > 0
    assert (plan.workload.prompt_tokens + plan.workload.output_tokens).max() <= 640
    assert (run(plan).requests.outcome == Outcome.FINISHED).all()


def test_a_run_in_which_nothing_is_done_lasts_until_its_last_arrival() -> None:
    """Prompts of 30 tokens with limits beyond the pool of 32: all are refused."""
    plan = prepared([profile(STEP)], workload([5.0, 7.0], [30, 30], [1, 1]), num_blocks=2)
    log = run(plan)
    assert (log.requests.outcome == Outcome.REJECTED).all()
    assert log.virtual_s == pytest.approx(2.0)


# Power


POWER = PowerSpec(
    prefill_share=Curve((0.0,), (0.1,)),
    decode_share=Curve((0.0,), (0.1,)),
    prefill_slowdown=Curve((0.5, 1.0), (1.3, 1.0)),
    decode_slowdown=Curve((0.6, 1.0), (1.1, 1.0)),
)


def test_a_cap_of_which_nothing_is_known_is_refused(tmp_path: Path) -> None:
    known = profile(STEP, power=POWER)
    for cap in (0.6, 0.8, 1.0):
        check_cap(known, cap)
    check_cap(profile(STEP), 1.0)
    with pytest.raises(ScenarioError, match=r"power_cap 0\.59: .* at caps from 0\.6 on"):
        check_cap(known, 0.59)
    with pytest.raises(ScenarioError, match=r"power_cap 0\.9: .* says nothing of power"):
        check_cap(profile(STEP), 0.9)
    made = scenario(tmp_path)
    capped = (msgspec.structs.replace(made.instance[0], power_cap=0.9),)
    with pytest.raises(ScenarioError, match="says nothing of power"):
        prepare(msgspec.structs.replace(made, instance=capped))


def test_nothing_draws_less_than_idle() -> None:
    """A tenth of 400 W is less than the 50 W that the device draws when it does nothing."""
    one = profile(STEP, power=POWER)
    plan = prepared([one], workload([0.0], [100], [10]))
    log = run(plan)
    assert log.instances[0].energy_j == pytest.approx(50.0 * log.virtual_s)
    assert PowerMeter(one, 1.0).energy_j(2.0) == pytest.approx(100.0)


# Ranges

FIRST = InstanceGroup(profile="any")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(
            (
                {"limits": msgspec.structs.replace(ScenarioLimits(), **{name: -1})},
                f"limits.{name} must be at least",
            )
            for name in ("max_batch_tokens", "prefill_chunk", "max_waiting", "max_len", "depth")
        ),
        ({"limits": ScenarioLimits(max_running=0)}, "limits.max_running must be at least 1, got 0"),
        ({"n": 0}, "n must be from 1 to 128, got 0"),
        ({"n": 129}, "n must be from 1 to 128, got 129"),
        ({"limits": ScenarioLimits(block_size=0)}, "limits.block_size must be at least 1, got 0"),
        ({"limits": ScenarioLimits(starve_s=0.0)}, "limits.starve_s must be a number above 0"),
        (
            {"limits": ScenarioLimits(starve_s=float("nan"))},
            "limits.starve_s must be a number above 0",
        ),
        *(
            (
                {"limits": ScenarioLimits(max_pause_s=pause_s)},
                "limits.max_pause_s must be a number above 0",
            )
            for pause_s in (0.0, -1.0, float("inf"), float("nan"))
        ),
        ({"limits": ScenarioLimits(swap="so")}, "limits.swap must be one of"),
        (
            {"limits": ScenarioLimits(decode_admission="so")},
            "limits.decode_admission must be one of greedy",
        ),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"policy": "so"}, "policy must be one of"),
        ({"instance": ()}, "needs at least one"),
        ({"placement": "any"}, "placement must be one of least_loaded"),
        ({"handoff": HandoffSpec(bytes_per_s=-1.0)}, "handoff.bytes_per_s must be a number from 0"),
        ({"handoff": HandoffSpec(layer_sync_s=np.nan)}, "handoff.layer_sync_s must be a number"),
        ({"handoff": HandoffSpec(mode="lazy")}, "handoff.mode must be one of auto, serialized"),
        *(
            ({"instance": (msgspec.structs.replace(FIRST, **{name: value}),)}, f"instance.{name}")
            for name, value in (
                ("count", 0),
                ("kv_bytes", float("inf")),
                ("kv_bytes", -1.0),
                ("host_bytes", float("nan")),
                ("host_bytes", -1.0),
                ("power_cap", 0.0),
                ("role", "both"),
                ("policy", "fcfs"),
                ("swap", "never"),
                ("decode_admission", "never"),
                ("depth", -1),
            )
        ),
        ({"fault": (WorkerFault(instance=1, at_s=0.0),)}, "fault.instance 1: there is no such"),
        ({"fault": (WorkerFault(instance=0, at_s=-1.0),)}, "fault.at_s must be"),
        ({"fault": (WorkerFault(instance=0, at_s=0.0, restart_s=float("inf")),)}, "restart_s must"),
        ({"predictor": "noisy:400"}, "noisy:SIGMA must be at most 4, got 400"),
    ],
)
def test_values_out_of_range_are_refused_by_name(changes: dict[str, object], words: str) -> None:
    made = Scenario(workload=WorkloadSpec(name="skew"), instance=(FIRST,))
    check(made)
    with pytest.raises(ScenarioError) as caught:
        check(msgspec.structs.replace(made, **changes))
    assert words in str(caught.value)


def test_the_largest_error_that_may_be_asked_for_gives_numbers() -> None:
    num = 200
    plan = prepared(
        [profile(STEP)],
        workload([0.01 * i for i in range(num)], [9] * num, [2] * num),
        predictor="noisy:4",
    )
    assert (run(plan).requests.outcome == Outcome.FINISHED).all()


def test_instances_of_a_scenario_have_limits_of_their_own() -> None:
    requests = workload([0.0] * 12, [40] * 12, [4] * 12)
    plan = prepared([profile(STEP)] * 2, requests)
    first, second = plan.groups
    second = msgspec.structs.replace(second, policy="vllm", max_running=2, max_batch_tokens=50)
    plan = replace(plan, groups=(first, second))
    seen: list[Core] = []
    log = run(plan, Options(after_event=seen.append))
    assert [one.scheduler.policy.name for one in seen[-1].instances] == ["gittins", "vllm"]
    assert max(log.instances[1].sample_running) == 2
    assert seen[-1].instances[1].limits.max_batch_tokens == 50


# Traces' ids


def test_ids_of_any_size_and_sign_are_ids() -> None:
    """Equal ones share blocks, others do not, however they end in binary."""
    seen: list[Core] = []
    big, other = 2**63 + 5, 2**64 + 5
    prefixes: list[tuple[int, ...]] = [(big, 1), (big, 2), (other, 1), (5, 1), (-1, 1)]
    requests = workload([float(i) for i in range(5)], [80] * 5, [2] * 5, prefixes, 32)
    run(prepared([profile(STEP)], requests), Options(after_event=seen.append))
    assert seen[-1].counters.cached_tokens == 32


# Journals that cannot be written


def test_a_journal_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    plan = prepared([profile(STEP)], workload([0.0], [10], [10]))
    with pytest.raises(SimulationError, match=r"journal cannot be written: .*file"):
        run(plan, Options(journal=tmp_path / "file" / "journal"))


# Means over time


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 5, 7])
def test_a_light_load_has_its_true_mean(num_tokens: int) -> None:
    """One request a second, each alone for a tenth of a second a token."""
    num = 50
    requests = workload([float(i) for i in range(num)], [10] * num, [num_tokens] * num)
    plan = prepared([profile(phases((0.1, 0.0, 0.0)))], requests)
    log = run(plan)
    report = report_of(plan, log)
    true = num * 0.1 * num_tokens / log.virtual_s
    assert report.instances[0].mean_running == pytest.approx(true)
    assert report.instances[0].busy_fraction == pytest.approx(true)
    assert np.all(np.diff(log.instances[0].sample_s) >= 0.0)


def test_a_dead_instance_runs_nothing() -> None:
    """Its one request runs from 0 to 1 s, is lost, and runs again from 3.05 s on."""
    plan = prepared(
        [profile(phases((0.1, 0.0, 0.0)))],
        workload([0.0], [10], [20]),
        fault=(WorkerFault(instance=0, at_s=1.05, restart_s=0.0),),
    )
    log = run(plan)
    one = report_of(plan, log).instances[0]
    assert log.virtual_s == pytest.approx(3.05 + 0.1 * 10 + 0.0, abs=0.11)
    assert one.mean_running == pytest.approx((log.virtual_s - 2.0) / log.virtual_s)
    assert one.busy_fraction == pytest.approx(one.steps * 0.1 / log.virtual_s)
    assert np.all(np.diff(log.instances[0].sample_s) >= 0.0)


@pytest.mark.parametrize("num_stages", [1, 4])
def test_nothing_is_busy_for_longer_than_the_run(num_stages: int) -> None:
    num = 64
    one = profile(phases((0.1, 0.0, 0.0)), pp=num_stages, edges=Edges(gap_s=0.0))
    plan = prepared([one], workload([0.0] * num, [32] * num, [40] * num))
    busy = report_of(plan, run(plan)).instances[0].busy_fraction
    assert 0.8 < busy <= 1.0 + 1e-9


# Memory


def distinct_tokens(core: Core, instance: int) -> int:
    """Tokens stored in an instance's blocks, block by block."""
    scheduler = core.instances[instance].scheduler
    size = scheduler.kv.block_size
    stored: dict[int, int] = {}
    for slot in scheduler.slots.order().tolist():
        computed = int(scheduler.slots.computed[slot])
        for index, block in enumerate(scheduler.kv.table.blocks(slot).tolist()):
            here = min(size, max(0, computed - index * size))
            stored[block] = max(stored.get(block, 0), here)
    return sum(stored.values())


def test_shared_blocks_are_written_once() -> None:
    """Many at a time share their first 64 tokens; every sample, against a slow recount."""
    num = 40
    requests = workload(
        [0.004 * i for i in range(num)],
        [70 + i for i in range(num)],
        [12] * num,
        [(1, 2)] * num,
        32,
    )
    recounts: list[float] = []

    def after_event(core: Core) -> None:
        places = core.instances[0].scheduler.kv.pool.num_blocks * 16
        recounts.append(distinct_tokens(core, 0) / places)

    plan = prepared([profile(STEP)], requests, num_blocks=60, limits=ScenarioLimits(max_len=256))
    log = run(plan, Options(after_event=after_event)).instances[0]
    assert max(log.sample_written) > 0.3
    assert max(log.sample_running) > 5
    assert set(log.sample_written) <= set(recounts)
    pairs = zip(log.sample_written, log.sample_allocated, strict=True)
    assert all(written <= allocated for written, allocated in pairs)


# Pauses


def test_a_pause_is_in_the_log_as_the_core_counts_it() -> None:
    """Two answers grow into one pool of 6 blocks; the later one gives way, and its gap is long."""
    plan = prepared(
        [profile(phases((0.01, 0.0, 0.0)))],
        workload([0.0, 0.0], [30, 30], [50, 50]),
        num_blocks=6,
        limits=ScenarioLimits(max_len=96, swap="recompute", prefix_cache=False),
        policy="sarathi",
        noise=False,
    )
    counted: list[tuple[int, float]] = []

    def look(core: Core) -> None:
        one = core.counters.pauses[Cause.RECOMPUTED]
        counted.append((one.count, one.sum_s))

    found = run(plan, Options(after_event=look))
    log = found.requests
    assert log.preempted_after_first.tolist() == [False, True]
    assert counted[-1] == (log.preemptions[1], pytest.approx(log.paused_s[1]))
    report = report_of(plan, found)
    assert report.paused_s.max == pytest.approx(log.paused_s[1]) and log.paused_s[0] == 0.0
    gap_s = float(report.longest_gap_s.max or 0.0)
    assert gap_s - 0.01 < log.paused_s[1] < gap_s  # it gave way within a step of its last token


# Links


def test_a_slower_link_makes_copies_slower(tmp_path: Path) -> None:
    known = profile(STEP, device=msgspec.structs.replace(DEVICE, host_link=LinkSpec(1e9)))
    plain = scenario(tmp_path, known)
    group = msgspec.structs.replace(plain.instance[0], link_bytes_per_s=2e6)
    slow = msgspec.structs.replace(plain, instance=(group,))
    assert prepare(plain).profiles[0].device.host_link.bytes_per_s == 1e9
    assert prepare(slow).profiles[0].device.host_link.bytes_per_s == 2e6
    assert prepare(slow).profiles[0].device.memory_bytes == known.device.memory_bytes


def test_prompts_that_begin_alike_find_each_other_in_the_cache(tmp_path: Path) -> None:
    spec = WorkloadSpec(name="skew", requests=60, rate=5.0, shared_prefix=64)
    cached = []

    def look(core: Core) -> None:
        cached.append(core.counters.cached_tokens)

    run(prepare(scenario(tmp_path, workload=spec)), Options(after_event=look))
    own = msgspec.structs.replace(spec, shared_prefix=0)
    shared = cached[-1]
    run(prepare(scenario(tmp_path, workload=own)), Options(after_event=look))
    assert shared > 1000 and cached[-1] == 0
