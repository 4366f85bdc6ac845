"""Links, power, pools, noise and counts, each against what a hand can reckon."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.core.core import Core
from daemon.core.values.actions import Deliver
from daemon.cost.curve import Curve
from daemon.cost.profile import LinkSpec, PowerSpec
from daemon.cost.work import StepWork
from daemon.lab.report.records import Span
from daemon.lab.simulator.agenda import Agenda, Rank
from daemon.lab.simulator.journal import replay
from daemon.lab.simulator.links import SimulatedLink, transfer_s
from daemon.lab.simulator.pool import pool_of
from daemon.lab.simulator.power import PowerMeter
from daemon.lab.simulator.run import Options, run
from daemon.lab.simulator.scenario import ScenarioError, ScenarioLimits
from daemon.lab.simulator.worker import Noise
from daemon.state.request import request_of
from tests.lab.simulator.made import (
    CURVES,
    DEVICE,
    MODEL,
    journalled,
    phases,
    prepared,
    profile,
    workload,
)

STEP = phases((0.004, 2e-5, 0.0), (0.003, 1e-6, 1e-4))


# The agenda


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Rank)), max_size=40))
@settings(derandomize=True, deadline=None)
def test_the_agenda_goes_by_time_then_rank_then_order(items: list[tuple[int, Rank]]) -> None:
    agenda = Agenda()
    for number, (time_s, rank) in enumerate(items):
        agenda.add(float(time_s), rank, number)
    popped = [agenda.pop() for _ in items]
    assert popped == sorted(popped)
    assert sorted(what for _, _, what in popped) == list(range(len(items)))
    assert len(agenda) == 0


# Links


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(0, 10**7)), min_size=1, max_size=30))
@settings(derandomize=True, deadline=None)
def test_copies_share_a_link_in_the_order_of_asking(asks: list[tuple[float, int]]) -> None:
    spec, spans = LinkSpec(1e6, 0.001), list[Span]()
    link = SimulatedLink("host link", "weights", "bytes", spans)
    now, before_s = 0.0, 0.0
    for gap_s, size_bytes in asks:
        now += gap_s
        end_s = link.hold(now, transfer_s(spec, size_bytes, link.name), size_bytes)
        start_s = max(now, before_s)
        assert end_s == pytest.approx(start_s + 0.001 + size_bytes / 1e6)
        assert (spans[-1].start_s, spans[-1].detail["bytes"]) == (start_s, size_bytes)
        before_s = end_s


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=30))
@settings(derandomize=True, deadline=None)
def test_copies_at_once_take_their_bytes_over_the_bandwidth(sizes: list[int]) -> None:
    link, spec = SimulatedLink("host link", "weights"), LinkSpec(2e6)
    last_s = max(link.hold(3.0, transfer_s(spec, n, link.name), n) for n in sizes)
    assert last_s - 3.0 == pytest.approx(sum(sizes) / 2e6)


def test_a_link_of_unknown_bandwidth_copies_nothing() -> None:
    with pytest.raises(ValueError, match="host link: the profile gives it no bandwidth"):
        transfer_s(LinkSpec(0.0), 1, "host link")


# Power

POWER = PowerSpec(
    prefill_share=Curve((0, 1000), (0.5, 1.0)),
    decode_share=Curve((0, 10), (0.3, 0.5)),
    prefill_slowdown=Curve((0.5, 1.0), (1.6, 1.0)),
    decode_slowdown=Curve((0.5, 1.0), (1.2, 1.0)),
)
PREFILL = StepWork(0, 0, ((500, 0),), 1)
DECODE = StepWork(10, 1000, (), 10)


@pytest.mark.parametrize(
    ("cap", "prefill_slower", "decode_slower", "prefill_share", "decode_share"),
    [(1.0, 1.0, 1.0, 0.75, 0.5), (0.75, 1.3, 1.1, 0.75, 0.5), (0.5, 1.6, 1.2, 0.5, 0.5)],
)
def test_energy_by_hand(
    cap: float,
    prefill_slower: float,
    decode_slower: float,
    prefill_share: float,
    decode_share: float,
) -> None:
    """Two devices of 400 W, 50 W idle: two seconds of prefill, three of decode, five of nothing."""
    meter = PowerMeter(profile(STEP, power=POWER, tp=2), cap)
    assert meter.slowdown(PREFILL) == pytest.approx(prefill_slower)
    assert meter.slowdown(DECODE) == pytest.approx(decode_slower)
    meter.spend(PREFILL, 2.0)
    meter.spend(DECODE, 3.0)
    busy_j = 800.0 * (2.0 * prefill_share + 3.0 * decode_share)
    assert meter.energy_j(10.0) == pytest.approx(busy_j + 5.0 * 100.0)


def test_energy_is_unknown_without_a_power_model() -> None:
    meter = PowerMeter(profile(STEP), 0.5)
    meter.spend(PREFILL, 2.0)
    assert meter.energy_j(10.0) is None and meter.slowdown(PREFILL) == 1.0


# The pool


@pytest.mark.parametrize("num_devices", [1, 2])
def test_the_pool_is_what_the_formula_leaves(num_devices: int) -> None:
    """Shards of weights and blocks lie on each device; every device keeps its runtime's GB."""
    device = msgspec.structs.replace(DEVICE, name="made", memory_bytes=2 << 30)
    one = profile(STEP, device=device, tp=num_devices)
    size = pool_of(one, 0.0, 16, 10_000, 512)
    total = num_devices * (2 << 30)
    usable = int(0.9 * total) - num_devices * (1 << 30)
    activation = 512 * (16 * 32 + 2 * (4 + 2 * 2) * 8) * 2 + 10_000 * 100 * 4 * 3
    block = 2 * 2 * 16 * 2 * 8 * 2
    assert size.block_bytes == block
    assert size.num_blocks == min(
        (usable - MODEL.num_params * 2 - activation) // block, 10_000 * 1024 // 16
    )


def test_kv_bytes_decide_and_too_few_are_refused() -> None:
    block = 2 * 2 * 16 * 2 * 8 * 2
    assert pool_of(profile(STEP), 10.5 * block, 16, 8, 512).num_blocks == 10
    with pytest.raises(ScenarioError, match=r"tiny@made: .*one sequence"):
        pool_of(profile(STEP), float(block), 16, 8, 512)


# Counts


def test_the_recorder_agrees_with_a_slow_recount(tmp_path: Path) -> None:
    """Every token of the journal's replay, one by one, against the log's columns."""
    num = 40
    requests = workload(
        [0.5 + 0.001 * i for i in range(num)],
        [10 + 3 * (i % 11) for i in range(num)],
        [1 + 5 * (i % 9) for i in range(num)],
    )
    limits = ScenarioLimits(max_running=12, max_batch_tokens=64, max_len=128)
    plan = prepared([profile(CURVES)] * 2, requests, num_blocks=8, limits=limits)
    log = run(plan, Options(journal=tmp_path)).requests
    token_s: list[list[float]] = [[] for _ in range(num)]
    for event, actions in replay(journalled(tmp_path)):
        for action in actions:
            if isinstance(action, Deliver):
                for sequence in action.sequences.tolist():
                    token_s[request_of(sequence)].append(event.now)
    assert log.preemptions.sum() > 0
    assert log.output_tokens.tolist() == [len(times) for times in token_s]
    assert log.first_s.tolist() == [times[0] for times in token_s]
    assert log.last_s.tolist() == [times[-1] for times in token_s]
    gaps = np.concatenate([np.diff(times) for times in token_s]).astype(np.float32)
    assert np.array_equal(log.gap_s, gaps)
    assert log.arrival_s.tolist() == pytest.approx(requests.arrival_s.tolist()), (
        "on the same clock as the tokens"
    )


def test_one_request_by_hand() -> None:
    """Its prompt in two chunks, then a decode for each further token; arriving late is no delay."""
    requests = workload([2.0], [100], [4])
    step = phases((0.05, 0.001, 0.0), (0.03, 0.0001, 0.0))
    limits = ScenarioLimits(max_batch_tokens=64)
    done = run(prepared([profile(step)], requests, limits=limits))
    log = done.requests
    ttft_s = 0.05 + 0.064 + 0.05 + 0.036
    assert log.first_s[0] - log.arrival_s[0] == pytest.approx(ttft_s)
    assert log.gap_s == pytest.approx([0.03 + 1e-4 * n for n in (101, 102, 103)], rel=1e-5)
    assert done.instances[0].steps == 5 and done.instances[0].tokens == 103
    assert done.instances[0].busy_s == pytest.approx(log.last_s[0] - log.arrival_s[0])
    assert done.virtual_s == pytest.approx(done.instances[0].busy_s)


def test_noise_has_mean_one_and_the_profiles_spread() -> None:
    noise = Noise(0.2, np.random.default_rng(0))
    factors = np.array([noise.factor() for _ in range(100_000)])
    assert factors.mean() == pytest.approx(1.0, abs=0.003), "four standard errors are 0.0026"
    assert np.log(factors).std() == pytest.approx(0.2, rel=0.02)
    assert Noise(0.0, np.random.default_rng(0)).factor() == 1.0


# Prefixes


def cached_tokens(prefixes: list[tuple[int, ...]], block_size: int, prompt: int = 100) -> int:
    """Prompt tokens found in the cache when three requests come one after the other."""
    seen: list[Core] = []
    num = len(prefixes)
    requests = workload([float(i) for i in range(num)], [prompt] * num, [4] * num, prefixes, 32)
    plan = prepared([profile(STEP)], requests, limits=ScenarioLimits(block_size=block_size))
    run(plan, Options(after_event=seen.append))
    return seen[-1].counters.cached_tokens


@pytest.mark.parametrize("block_size", [8, 16])
def test_equal_leading_ids_of_a_trace_share_blocks(block_size: int) -> None:
    """Ids of 32 tokens each: two, then one in common; an id after a difference is another block."""
    found = cached_tokens([(1, 2, 3), (1, 2, 9), (1, 8, 3)], block_size)
    assert found == 64 + 32
    assert cached_tokens([(1, 2, 3), (4, 2, 3), (5, 2, 3)], block_size) == 0


def test_an_id_beyond_the_prompt_is_cut() -> None:
    """A prompt of 40 tokens has one whole id of 32 and 8 tokens of the next: two blocks of 16."""
    assert cached_tokens([(1, 2), (1, 2)], 16, prompt=40) == 32
