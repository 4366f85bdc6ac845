"""What the daemon says of itself, from the first moment to the last."""

import asyncio
import os
import time
from collections.abc import Callable

import msgspec
import pytest

from daemon.config.schema import (
    Config,
    InstanceSpec,
    MemoryConfig,
    ModelConfig,
    PredictConfig,
    SchedulerConfig,
)
from daemon.control.orders import RefusalError
from daemon.protocol.api import Predicting
from daemon.protocol.control import (
    AskOwners,
    AskStory,
    BlockOwners,
    GpuStatus,
    PredictorStatus,
    Snapshot,
    Story,
)
from daemon.protocol.worker import Fallback, Loading
from daemon.runtime import status as status_module
from daemon.runtime.status import DaemonStatus
from daemon.scheduler.policies import POLICIES
from daemon.state.request import sequence_id
from daemon.wire.columns import decoder, encoder
from tests.hangs import HANG_S
from tests.runtime.ends import House, generate, until

Build = Callable[..., House]

CONFIG = Config(
    model=ModelConfig(name="tiny"),
    memory=MemoryConfig(block_size=4),
    instance=(InstanceSpec("cpu", "mixed", "first"),),
)


def starting(house: House, config: Config = CONFIG) -> DaemonStatus:
    return DaemonStatus(house.parts(config))


@pytest.fixture
async def status(house_of: Build) -> DaemonStatus:
    return starting(house_of())


async def test_before_the_model_is_known(status: DaemonStatus) -> None:
    status._loads.stage = "preparing the model"
    serving = status.serving()
    assert (serving.model, serving.root, serving.status) == ("tiny", "", "preparing the model")
    assert not serving.ready and not serving.draining
    assert (serving.max_len, serving.context_len, serving.vocab_size) == (0, 0, 0)
    assert serving.block_size == 4 and serving.last_step_age_s == -1.0
    snapshot = status.snapshot()
    assert snapshot.pid == os.getpid() and snapshot.uptime_s >= 0
    assert snapshot.sequences == () and snapshot.running == snapshot.waiting == 0
    (one,) = snapshot.instances
    assert (one.name, one.device, one.state) == ("first", "cpu", "loading")
    assert (one.load_stage, one.load_fraction) == ("preparing the model", 0.0)
    assert (one.policy, one.swap) == ("gittins", "proactive")


async def test_before_the_core_exists_the_swap_mode_is_the_one_it_will_have(
    house_of: Build,
) -> None:
    for swap, wanted in (("", POLICIES["mlfq"].swap), ("reactive", "reactive")):
        config = msgspec.structs.replace(
            CONFIG, scheduler=SchedulerConfig(policy="mlfq"), memory=MemoryConfig(swap=swap)
        )
        (one,) = starting(house_of(), config).snapshot().instances
        assert (one.policy, one.swap) == ("mlfq", wanted)


async def test_a_chosen_policy_is_seen_by_viewers(house_of: Build) -> None:
    house = house_of()
    status = house.status(CONFIG)
    house.ready()
    before = status.snapshot().instances[0]
    assert (before.policy, before.levels) == ("sarathi", ())
    house.runtime.choose_policy("mlfq")
    after = status.snapshot().instances[0]
    assert after.policy == "mlfq"
    assert len(after.levels) == POLICIES["mlfq"].num_levels


async def test_while_a_worker_loads(house_of: Build) -> None:
    house = house_of()
    status = house.status(CONFIG)
    status._loads.came(0, Loading("weights", 0.4))
    serving = status.serving()
    assert not serving.ready and serving.status == "loading: weights 40%"
    assert (serving.root, serving.max_len, serving.context_len) == ("/models/tiny", 128, 256)
    (one,) = status.snapshot().instances
    assert (one.state, one.load_stage, one.load_fraction) == ("loading", "weights", 0.4)
    assert one.load_left_s == -1.0, "never started before"


async def test_what_torch_stands_in_for_is_told_until_the_worker_dies(house_of: Build) -> None:
    house = house_of(num_blocks=64)
    status = house.status(CONFIG)
    status.fell_back(0, Fallback("prefill", "no such card"))
    house.ready()
    status.fell_back(0, Fallback("graphs", "a step cannot be captured"))
    expected = (("graphs", "a step cannot be captured"), ("prefill", "no such card"))
    assert status.gauges(0.0).instances[0].fallbacks == expected
    assert status.snapshot().instances[0].fallbacks == expected
    status.lost(0)
    assert status.snapshot().instances[0].fallbacks == ()


async def test_while_a_model_is_converted(status: DaemonStatus) -> None:
    status._loads.stage = "preparing the model"
    status._loads.converts(0.4)
    assert status.serving().status == "loading: converting the model 40%"
    (one,) = status.snapshot().instances
    assert (one.load_stage, one.load_fraction) == ("converting the model", 0.4)
    status._loads.converts(1.0)
    assert status.serving().status == "preparing the model"


async def test_a_log_says_now_and_then_how_far_a_start_is(
    status: DaemonStatus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(status_module, "DRAW_S", 0.001)
    monkeypatch.setattr(status_module, "LOG_S", 0.002)
    status._loads.converts(0.4)
    with caplog.at_level("INFO"):
        async with asyncio.timeout(HANG_S):
            showing = asyncio.create_task(status_module.show_start(status._loads, lambda: status))
            while "loading: converting the model 40%" not in caplog.text:
                await asyncio.sleep(0.001)
            status.started = True
            await showing


async def test_once_ready_the_pool_has_its_say(house_of: Build) -> None:
    house = house_of(num_blocks=20)
    status = house.status(CONFIG)
    status._loads.came(0, Loading("warm-up", 0.9))
    house.ready()
    serving = status.serving()
    assert status.ready and serving.ready and serving.status == "ready"
    assert (serving.max_len, serving.vocab_size) == (80, 193)
    assert serving.last_step_age_s == -1.0
    (one,) = status.snapshot().instances
    assert (one.state, one.kv_blocks, one.load_fraction) == ("ready", 20, 1.0)
    began_s = time.monotonic()
    house.api.send(generate(0, [1, 2, 3], 4))
    await house.ended(1)
    age_s = status.serving().last_step_age_s
    assert 0.0 <= age_s <= time.monotonic() - began_s
    assert status.snapshot().counters.finished == 1


async def test_stories_owners_and_gpus_reach_viewers(house_of: Build) -> None:
    house = house_of(num_blocks=20)
    with pytest.raises(RefusalError, match="nothing can be told yet"):
        starting(house).look_closer(AskStory(0))
    gpu = GpuStatus("a card", power_w=71.5)
    status = house.status(CONFIG, gpu)
    house.ready()
    house.api.send(generate(0, [1, 2, 3], 4))
    await house.ended(1)
    story = status.look_closer(AskStory(sequence_id(0, 0)))
    assert isinstance(story, Story)
    assert (story.marks[0].what, story.marks[-1].what) == ("arrived", "finished")
    owned = status.look_closer(AskOwners(0))
    assert isinstance(owned, BlockOwners) and owned.owners.shape == (20,)
    for instance in (-1, 1):
        with pytest.raises(RefusalError, match="there is no instance"):
            status.look_closer(AskOwners(instance))
    snapshot = status.snapshot()
    assert snapshot.gpus == (gpu,)
    assert snapshot.policies == tuple(POLICIES)


async def test_the_predictor_as_the_api_process_last_told_of_it(house_of: Build) -> None:
    config = msgspec.structs.replace(CONFIG, predict=PredictConfig("features"))
    house = house_of()
    assert starting(house, config).snapshot().predictor == PredictorStatus("features")
    status = house.status(config)
    assert status.snapshot().predictor == PredictorStatus("features")
    told = PredictorStatus("features", True, 9, 1, 8, 0.5)
    house.api.send(Predicting(told))
    await until(lambda: status.snapshot().predictor == told)


async def test_a_lost_worker_and_draining_are_not_ready(house_of: Build) -> None:
    house = house_of()
    status = house.status(CONFIG)
    house.ready()
    house.lose()
    assert not status.serving().ready
    assert status.snapshot().instances[0].state == "lost"
    house.ready()
    assert status.serving().ready
    house.runtime.drain()
    serving = status.serving()
    assert (serving.ready, serving.draining, serving.status) == (False, True, "draining")


async def test_a_snapshot_of_work_crosses_the_wire(house_of: Build) -> None:
    house = house_of(max_running=1)
    status = house.status(CONFIG)
    house.ready()
    house.paused = True
    house.api.send(generate(0, [1, 2, 3, 4, 5], 4, n=2))
    await until(lambda: len(house.link._live) == 1)
    snapshot = status.snapshot()
    assert (snapshot.running, snapshot.waiting, len(snapshot.sequences)) == (1, 1, 2)
    copy: Snapshot = decoder(Snapshot).decode(encoder().encode(snapshot))
    assert copy.sequences == snapshot.sequences
    assert copy.instances[0].block_map.tolist() == snapshot.instances[0].block_map.tolist()
    with pytest.raises(AttributeError):
        snapshot.running = 0  # type: ignore[misc]
