"""Pipelines against the ideal, instances that share nothing, and deaths, each reckoned by hand."""

from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from daemon.core.values.events import WorkerReady
from daemon.cost.curve import Curve
from daemon.cost.profile import LinkSpec, Profile
from daemon.lab.report.records import Outcome, RunLog, Span
from daemon.lab.simulator.checks import check_profiles
from daemon.lab.simulator.run import Options, run
from daemon.lab.simulator.scenario import InstanceGroup, ScenarioError, ScenarioLimits, WorkerFault
from tests.lab.simulator.made import DEVICE, journalled, phases, prepared, profile, workload

STEP = phases((0.004, 2e-5, 0.0), (0.003, 1e-6, 1e-4))
NUM_PROMPTS = 20


# Pipelines


def prompts(profiles: list[Profile], num: int = NUM_PROMPTS, depth: int = 0) -> RunLog:
    """Prompts of 512 tokens, one a step, all there at the start."""
    limits = ScenarioLimits(max_batch_tokens=512, prefix_cache=False, depth=depth)
    return run(prepared(profiles, workload([0.0] * num, [512] * num, [1] * num), limits=limits))


def staged(num_stages: int, stage_s: float, handing_s: float = 0.0) -> Profile:
    handing = Curve((0, 512), (0.0, handing_s))
    return profile(phases((stage_s, 0.0, 0.0)), pp=num_stages, stage_s=handing)


@pytest.mark.parametrize("num_stages", [1, 2, 4, 8])
def test_stages_overlap_distinct_steps(num_stages: int) -> None:
    """The same work in more stages: n steps take n - 1 stages' times besides their own way."""
    stage_s = 0.4 / num_stages
    log = prompts([staged(num_stages, stage_s)])
    assert log.requests.last_s.max() == pytest.approx((NUM_PROMPTS + num_stages - 1) * stage_s)
    assert log.instances[0].busy_s == pytest.approx(NUM_PROMPTS * stage_s)
    assert log.instances[0].busy_s < log.virtual_s * (1 + 1e-9)


def test_a_lone_prompt_fills_the_stages() -> None:
    """In one step it would pass each stage in turn; in three even ones both stages work."""
    limits = ScenarioLimits(max_batch_tokens=512, prefix_cache=False)
    one = profile(phases((0.004, 1e-4, 0.0)), pp=2)
    log = run(prepared([one], workload([0.0], [399], [1]), limits=limits))
    assert log.requests.last_s == pytest.approx([4 * (0.004 + 133e-4)], rel=0.01)


@pytest.mark.parametrize("num_stages", [2, 4, 8])
def test_handing_over_delays_no_other_step(num_stages: int) -> None:
    """Each way between two stages is used by one step at a time, while the others compute."""
    log = prompts([staged(num_stages, 0.1, 0.03)], depth=2 * num_stages)
    ideal_s = NUM_PROMPTS * 0.1 + (num_stages - 1) * (0.1 + 0.03)
    assert log.requests.last_s.max() == pytest.approx(ideal_s)


def test_handing_over_slower_than_computing_sets_the_pace() -> None:
    log = prompts([staged(2, 0.1, 0.3)], depth=8)
    assert log.requests.last_s.max() == pytest.approx(0.1 + NUM_PROMPTS * 0.3 + 0.1)


def test_instances_do_not_share_the_ways_between_stages() -> None:
    one = staged(4, 0.1, 0.1)
    alone = prompts([one], 10).requests.last_s
    both = prompts([one, one], 20).requests
    for instance in (0, 1):
        assert both.last_s[both.instance == instance] == pytest.approx(alone)


# Deaths


def dying(
    folder: Path, faults: tuple[WorkerFault, ...], *others: Profile
) -> tuple[RunLog, dict[int, float]]:
    """Instances under these faults; the run, and when each one's worker came back."""
    requests = workload([0.01 * i for i in range(40)], [30] * 40, [50] * 40)
    profiles = [profile(STEP), *(others or (profile(STEP),))]
    plan = prepared(profiles, requests, limits=ScenarioLimits(max_len=256), fault=faults)
    log = run(plan, Options(journal=folder))
    events = journalled(folder)
    return log, {e.instance: e.now for e in events if isinstance(e, WorkerReady) and e.now > 0.0}


def fault(instance: int, at_s: float, restart_s: float) -> WorkerFault:
    return WorkerFault(instance=instance, at_s=at_s, restart_s=restart_s)


def test_two_instances_reload_over_one_host_link(tmp_path: Path) -> None:
    """2 MB of weights at 1 MB/s: two seconds alone, four for the second of two at once."""
    both = (fault(0, 0.2, 0.5), fault(1, 0.2, 0.5))
    log, back_s = dying(tmp_path / "both", both)
    assert back_s == pytest.approx({0: 2.7, 1: 4.7})
    assert (log.requests.outcome == Outcome.FINISHED).all()
    assert (log.requests.output_tokens == 50).all()
    assert log.requests.recomputed_tokens.sum() > 0
    _, back_s = dying(tmp_path / "one", both[:1])
    assert back_s == pytest.approx({0: 2.7})


def test_a_later_reload_holds_up_no_earlier_one(tmp_path: Path) -> None:
    """One that will want its weights at 100.2 s is not before one that wants them at 0.8 s."""
    _, back_s = dying(tmp_path, (fault(0, 0.2, 100.0), fault(1, 0.3, 0.5)))
    assert back_s == pytest.approx({0: 102.2, 1: 2.8})


def test_weights_take_the_link_of_their_own_device(tmp_path: Path) -> None:
    faster = msgspec.structs.replace(DEVICE, host_link=LinkSpec(4e6))
    both = (fault(0, 0.2, 0.0), fault(1, 5.0, 0.0))
    _, back_s = dying(tmp_path, both, profile(STEP, device=faster))
    assert back_s == pytest.approx({0: 2.2, 1: 5.5})


def test_a_death_without_a_known_host_link_is_refused() -> None:
    unknown = profile(STEP, device=msgspec.structs.replace(DEVICE, host_link=LinkSpec(0.0)))
    profiles = [profile(STEP), unknown]
    groups = [InstanceGroup(profile=one.name) for one in profiles]
    requests = workload([0.0], [1], [1])
    check_profiles(prepared(profiles, requests, fault=(fault(0, 0, 0),)).scenario, groups, profiles)
    plan = prepared(profiles, requests, fault=(fault(1, 0, 0),))
    with pytest.raises(ScenarioError, match=r"fault: tiny@made host link: .*no bandwidth"):
        check_profiles(plan.scenario, groups, profiles)


def test_a_worker_that_dies_while_it_loads_starts_again(tmp_path: Path) -> None:
    log, back_s = dying(tmp_path, (fault(0, 0.2, 0.0), fault(0, 1.2, 0.0)))
    assert back_s == pytest.approx({0: 4.2}), "the copy that ends at 2.2 is of no use"
    assert (log.requests.outcome == Outcome.FINISHED).all()


def test_a_dead_pipeline_leaves_nothing_on_its_way() -> None:
    """What the old process had booked of the way between its stages does not hold up the new."""
    at_once = msgspec.structs.replace(DEVICE, host_link=LinkSpec(1e12))
    handing = Curve((0, 512), (0.0, 51.2))
    one = profile(phases((0.1, 0.0, 0.0)), pp=2, stage_s=handing, device=at_once)
    plan = prepared([one], workload([0.0], [30], [1]), fault=(fault(0, 0.15, 0.0),))
    assert run(plan).requests.last_s == pytest.approx([0.15 + 0.1 + 3.0 + 0.1], abs=1e-5)


# The trace viewer


def test_what_passes_links_is_told_to_the_trace_viewer() -> None:
    """Weights, hand-overs and swap copies, each on a track of its own and one at a time there."""
    num = 48
    requests = workload(
        [0.02 * i for i in range(num)], [60] * num, [8 + 9 * (i % 5) for i in range(num)]
    )
    device = msgspec.structs.replace(DEVICE, host_link=LinkSpec(1e7))
    handing = Curve((0, 512), (0.0, 0.01))
    one = profile(STEP, device=device, pp=2, stage_s=handing)
    limits = ScenarioLimits(max_running=8, max_batch_tokens=64, max_len=256, swap="proactive")
    plan = prepared(
        [one, one],
        requests,
        num_blocks=20,
        limits=limits,
        policy="srtf",
        predictor="oracle",
        fault=(fault(1, 0.5, 0.0),),
    )
    log = run(plan, Options(spans=True))
    tracks: dict[str, list[Span]] = {}
    for span in sorted(log.spans, key=lambda span: span.start_s):
        tracks.setdefault(span.track, []).append(span)
    whats = {track: {span.name for span in spans} for track, spans in tracks.items()}
    for name in ("0:tiny@made", "1:tiny@made"):
        assert whats[f"{name} stage 1 to 2"] == {"hand-over"}
        assert whats[name] <= {"mixed", "prefill", "decode"}
    assert whats["host link"] == {"weights"}
    assert whats["0:tiny@made host link out"] == {"swap out"}
    assert whats["0:tiny@made host link in"] == {"swap in"}
    for track, spans in tracks.items():
        if "link" in track or "stage" in track:
            assert all(a.start_s + a.duration_s <= b.start_s + 1e-12 for a, b in pairwise(spans))
    assert len(tracks["0:tiny@made"]) == log.instances[0].steps
    dead = [s for track in tracks if track.startswith("1:") for s in tracks[track]]
    (weights,) = tracks["host link"]
    back_s = weights.start_s + weights.duration_s
    assert weights.start_s == 0.5 < back_s
    assert all(s.start_s + s.duration_s <= 0.5 or s.start_s >= back_s for s in dead)
    assert min(s.start_s for s in dead) < 0.5 and max(s.start_s for s in dead) > back_s
    assert run(plan).spans == []
    assert np.isfinite(log.requests.last_s).all()
