"""The runtime between a real link and a scripted worker: whole answers whatever happens."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from daemon.core.values.actions import WakeAt
from daemon.core.values.events import Configured, Tick
from daemon.journal.reader import read_records
from daemon.journal.writer import JournalWriter
from daemon.protocol import api as protocol
from daemon.protocol.api import RequestRejected, SequenceStarted
from daemon.runtime.runtime import Runtime
from daemon.runtime.token_store import TokenStore
from daemon.scheduler.policies import POLICIES
from daemon.state.request import FinishReason, sequence_id
from tests.hangs import HANG_S
from tests.runtime.ends import House, generate, to_workers, until
from tests.runtime.scripted import expected

Build = Callable[..., House]
PROMPT = list(range(100, 110))


def check_answers(house: House, request: int, prompt: list[int], count: int, n: int = 1) -> None:
    """Each stream is the right one; streams of one request differ."""
    answers = [house.api.tokens[sequence_id(request, index)] for index in range(n)]
    seeds = [0x9E3779B97F4A7C15 * index & (1 << 63) - 1 for index in range(n)]
    assert answers == [expected(prompt, seed, count) for seed in seeds]
    assert len(set(map(tuple, answers))) == n


async def test_one_answer(house_of: Build) -> None:
    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    house = house_of()
    house.ready()
    began_s = time.monotonic()
    house.api.send(generate(7, PROMPT, 9))
    await house.ended(1)
    check_answers(house, 7, PROMPT, 9)
    assert house.api.ends == {sequence_id(7, 0): FinishReason.LENGTH}
    started = [m for m in house.api.messages if isinstance(m, SequenceStarted)]
    assert started == [SequenceStarted(sequence_id(7, 0), 0)]
    assert began_s <= house.runtime.last_step_s <= time.monotonic()
    house.check_nothing_left()


async def test_a_later_prompt_shares_the_blocks_of_an_answer(house_of: Build) -> None:
    house = house_of()
    house.ready()
    house.api.send(generate(0, PROMPT, 9))
    await house.ended(1)
    answer = house.api.tokens[sequence_id(0, 0)]
    house.api.send(generate(1, [*PROMPT, *answer], 1))
    await house.ended(2)
    started = [m.num_cached_tokens for m in house.api.of(SequenceStarted)]  # type: ignore[union-attr]
    assert started == [0, 16], "two blocks of the prompt and two of the answer"


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_three_streams_of_one_prompt(house_of: Build, depth: int) -> None:
    house = house_of(depth=depth)
    house.ready()
    house.api.send(generate(0, PROMPT, 12, n=3))
    await house.ended(3)
    check_answers(house, 0, PROMPT, 12, n=3)
    house.check_nothing_left()


async def test_rows_that_draw_several_tokens(house_of: Build) -> None:
    """Preempted ones too: what is computed again are the tokens that were drawn together."""
    house = house_of(num_blocks=12, depth=1)
    house.ready()
    assert house.worker is not None
    house.worker.most = 3
    prompts = [[i, *PROMPT] for i in range(4)]
    for request, prompt in enumerate(prompts):
        house.api.send(generate(request, prompt, 24))
    await house.ended(4)
    for request, prompt in enumerate(prompts):
        check_answers(house, request, prompt, 24)
    counters = house.runtime.core.counters
    assert counters.preemptions > 0 and counters.output_tokens == 4 * 24
    told = [one.sequences for one in house.api.messages if isinstance(one, protocol.Tokens)]
    assert any(len(set(one.tolist())) < one.size for one in told), "several of one sequence"
    house.check_nothing_left()


@pytest.mark.parametrize("depth", [1, 2])
async def test_preemption_in_a_tiny_pool_is_not_seen(house_of: Build, depth: int) -> None:
    house = house_of(num_blocks=12, depth=depth)
    house.ready()
    prompts = [[i, *PROMPT] for i in range(4)]
    for request, prompt in enumerate(prompts):
        house.api.send(generate(request, prompt, 24, frequency_penalty=0.5))
    await house.ended(4)
    for request, prompt in enumerate(prompts):
        check_answers(house, request, prompt, 24)
    assert house.runtime.core.counters.preemptions > 0
    assert house.worker is not None
    assert all(house.worker.histories), "who joins with a penalty brings its history"
    assert max(map(len, house.worker.histories)) > len(prompts[0]), "its own tokens included"
    house.check_nothing_left()


async def test_a_row_whose_client_left_keeps_no_token_of_its_neighbour(house_of: Build) -> None:
    """What is kept of the step is what its own row drew: a successor computes from it."""
    house = house_of(depth=1)
    house.ready()
    house.paused = True
    for request in range(2):
        house.api.send(generate(request, [request, *PROMPT], 12))
    await until(lambda: len(house.link._live) == 2)
    while not all(house.api.tokens[sequence_id(request, 0)] for request in range(2)):
        house.answer()
        await asyncio.sleep(0.01)
    assert house.plans[0].batch.slots.size == 2
    house.api.send(protocol.AbortRequest(0))
    await until(lambda: len(house.link._live) == 1)
    house.answer()
    house.lose()
    house.ready()
    house.resume()
    await house.ended(2)
    check_answers(house, 1, [1, *PROMPT], 12)
    house.check_nothing_left()


@pytest.mark.parametrize("depth", [1, 2])
async def test_a_lost_worker_s_successor_goes_on_where_it_was(house_of: Build, depth: int) -> None:
    house = house_of(depth=depth)
    house.ready()
    for request in range(3):
        house.api.send(generate(request, [request, *PROMPT], 30))
    await until(lambda: len(house.api.tokens[sequence_id(2, 0)]) >= 5)
    house.lose()
    house.api.send(generate(3, PROMPT, 30, n=3))
    await asyncio.sleep(0.02)
    assert not house.api.ends
    house.ready()
    await until(lambda: len(house.api.tokens[sequence_id(2, 0)]) >= 10)
    house.lose()
    house.ready()
    await house.ended(6)
    for request in range(3):
        check_answers(house, request, [request, *PROMPT], 30)
    check_answers(house, 3, PROMPT, 30, n=3)
    house.check_nothing_left()


async def test_an_answer_of_a_dead_worker_counts_for_nothing(house_of: Build) -> None:
    house = house_of()
    house.ready()
    house.paused = True
    house.api.send(generate(0, PROMPT, 5))
    await until(lambda: bool(house.plans))
    assert house.worker is not None
    late = house.worker.answer(house.plans[0])
    house.lose()
    house.runtime.reply(0, late)
    house.resume()
    house.ready()
    house.runtime.reply(0, late)
    await house.ended(1)
    check_answers(house, 0, PROMPT, 5)


@pytest.mark.parametrize("moment", range(6))
async def test_an_api_process_that_dies_in_the_middle(house_of: Build, moment: int) -> None:
    """Its death may show first when tokens are sent to it: nothing may run inside that."""
    house = house_of(depth=2, max_running=2)
    house.ready()
    house.paused = True
    for request in range(4):
        house.api.send(generate(request, [request, *PROMPT], 30, n=2))
    await until(lambda: len(house.link._live) == 4)
    for _ in range(moment):
        house.answer()
    house.api.channel.close()
    for _ in range(3):
        house.answer()
    house.resume()
    await until(lambda: len(house.link._live) == 0)
    await until(lambda: house.runtime.core.idle)
    house.check_nothing_left()
    assert house.runtime.core.counters.aborted == 8


async def test_a_successor_of_the_api_process_is_served(house_of: Build) -> None:
    house = house_of()
    house.ready()
    house.paused = True
    house.api.send(generate(5, PROMPT, 30))
    await until(lambda: len(house.link._live) == 1)
    house.api.channel.close()
    house.connect()
    house.api.send(generate(5, PROMPT, 9))
    await until(lambda: len(house.link._live) == 1)
    house.resume()
    await house.ended(1)
    check_answers(house, 5, PROMPT, 9)
    house.check_nothing_left()


async def test_abort_and_finish_in_the_middle(house_of: Build) -> None:
    house = house_of(depth=2)
    house.ready()
    house.paused = True
    for request in range(3):
        house.api.send(generate(request, [request, *PROMPT], 20))
    await until(lambda: len(house.link._live) == 3)
    for _ in range(4):
        house.answer()
    house.api.send(protocol.AbortRequest(0))
    house.api.send(protocol.AbortRequest(0))
    house.api.send(protocol.FinishSequence(sequence_id(1, 0)))
    house.api.send(protocol.FinishSequence(sequence_id(1, 0)))
    await until(lambda: len(house.link._live) == 1)
    house.resume()
    await house.ended(3)
    assert house.api.ends == {
        sequence_id(0, 0): FinishReason.ABORT,
        sequence_id(1, 0): FinishReason.STOP,
        sequence_id(2, 0): FinishReason.LENGTH,
    }
    check_answers(house, 2, [2, *PROMPT], 20)
    house.check_nothing_left()


async def test_draining_ends_with_the_last_answer(house_of: Build) -> None:
    house = house_of()
    house.ready()
    house.paused = True
    house.api.send(generate(0, PROMPT, 6))
    await until(lambda: len(house.link._live) == 1)
    house.runtime.drain()
    assert not house.runtime.empty.is_set()
    house.api.send(generate(1, PROMPT, 6))
    await until(lambda: bool(house.api.of(RequestRejected)))
    house.resume()
    async with asyncio.timeout(HANG_S):
        await house.runtime.empty.wait()
    check_answers(house, 0, PROMPT, 6)


async def test_draining_an_idle_runtime_ends_at_once(house_of: Build) -> None:
    house = house_of()
    house.ready()
    house.runtime.drain()
    assert house.runtime.empty.is_set()


@pytest.mark.parametrize("depth", [1, 2])
async def test_no_request_is_lost_as_policies_change(house_of: Build, depth: int) -> None:
    house = house_of(num_blocks=24, depth=depth)
    house.ready()
    house.paused = True
    prompts = [[i, *PROMPT] for i in range(6)]
    for request, prompt in enumerate(prompts):
        house.api.send(generate(request, prompt, 24))
    await until(lambda: len(house.link._live) == len(prompts))
    names = [name for name in POLICIES for _ in range(2)]
    while len(house.api.ends) < len(prompts):
        house.runtime.choose_policy(names[0])
        assert house.runtime.core.instances[0].status().policy == names[0]
        names = [*names[1:], names[0]]
        if house.plans:
            house.answer()
        await asyncio.sleep(0)
    for request, prompt in enumerate(prompts):
        check_answers(house, request, prompt, 24)
    house.check_nothing_left()


async def test_the_newest_wake_up_alone_rings(
    house_of: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = house_of()
    runtime = house.runtime
    ticks: list[float] = []
    asked = [WakeAt(time.monotonic() + 60.0), WakeAt(time.monotonic() + 0.02)]
    due_s = asked[-1].time_s

    def handle(event: Tick) -> list[WakeAt]:
        ticks.append(event.now)
        return asked if len(ticks) == 1 else []

    monkeypatch.setattr(runtime.core, "handle", handle)
    runtime.dispatch(Tick(0.0))
    await until(lambda: len(ticks) == 2)
    assert ticks[1] >= due_s - 0.002
    runtime.dispatch(Tick(0.0))
    await asyncio.sleep(0.03)
    assert len(ticks) == 3, "a wake-up that has rung rings no more"


async def test_a_wake_up_that_is_near_does_not_ring_again_and_again(
    house_of: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Timers count milliseconds, and the nearest of them is at once for what is half of one."""
    runtime = house_of().runtime
    due_s, ticks = time.monotonic() + 0.0004, list[float]()

    def handle(event: Tick) -> list[WakeAt]:
        ticks.append(event.now)
        return [WakeAt(due_s)] if event.now < due_s else []

    monkeypatch.setattr(runtime.core, "handle", handle)
    runtime.dispatch(Tick(0.0))
    await until(lambda: ticks[-1] >= due_s)
    assert len(ticks) <= 3


async def test_every_event_is_in_the_journal(house_of: Build, tmp_path: Path) -> None:
    house = house_of()
    config: Configured = house.config
    journal = JournalWriter(tmp_path, 1 << 20, config)
    runtime = Runtime(config, TokenStore(4), journal, house.link, to_workers(lambda *_: None))
    runtime.worker_lost(0, blamed=False)
    runtime.choose_policy("srtf")
    runtime.drain()
    runtime.flush_journal()
    files = list(tmp_path.iterdir())
    assert len(list(read_records(files[0]))) == 4, "written before the next event, if one comes"
    runtime.close()
    assert len(files) == 1
    names = [type(record).__name__ for record in read_records(files[0])]
    assert names == ["Configured", "WorkerLost", "PolicyChosen", "DrainBegun"]
