"""What a worker says of its host pool and its copies reaches the Core; what the Core orders, it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config.core_shares import CoreShare
from daemon.config.cuda import Devices
from daemon.config.load import load
from daemon.config.pool import plan_pool
from daemon.core.values.actions import Action
from daemon.core.values.events import CopiesDone, Event, WorkerReady
from daemon.protocol import worker as protocol
from daemon.runtime.model import ServedModel
from tests.runtime.ends import House
from tests.shapes import tiny_shape

Build = Callable[..., House]

SHAPE = tiny_shape(dtype="bfloat16", context_len=1024)


async def test_a_worker_s_words_become_the_core_s_events(
    house_of: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = house_of().runtime
    told: list[Event] = []

    def handle(event: Event) -> list[Action]:
        told.append(event)
        return []

    monkeypatch.setattr(runtime.core, "handle", handle)
    ready = protocol.Ready(64, 8192, 1, 0.02, 32, 4096, 0.003)
    runtime.worker_ready(0, ready)
    runtime.copied(0, protocol.Copied(7, 3, 0.5, 2, 0.25))
    first, second = told
    assert isinstance(first, WorkerReady)
    assert (first.num_blocks, first.block_bytes, first.step_s) == (64, 8192, 0.02)
    assert (first.num_host_blocks, first.copy_block_s) == (32, 0.003)
    assert second == CopiesDone(second.now, 0, 7, 3, 0.5, 2, 0.25)
    assert second.now >= first.now > 0


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (32, False)),
        ({"memory.compress": True}, (102, True)),
        ({"memory.kv_dtype": "int8"}, (32, False)),
        ({"memory.host_bytes": 5 * 8192 + 1}, (5, False)),
        ({"memory.swap": "recompute"}, (0, False)),
    ],
)
def test_the_worker_is_told_how_large_its_host_pool_is(
    settings: dict[str, object], expected: tuple[int, bool]
) -> None:
    cpu = {"instance": [{"device": "cpu"}]}
    config = load(None, {"memory.kv_blocks": 8, **cpu, **settings}).config
    (spec,) = config.instance
    pool, cores = plan_pool(config, SHAPE, spec, Devices()), CoreShare(1, (0,))
    served = ServedModel(
        "tiny", Path("/models/tiny"), SHAPE, 128, (spec,), ((),), (pool,), (cores,)
    )
    load_message = served.load(config, 0)
    assert (load_message.num_host_blocks, load_message.compress) == expected
    assert load_message.kv_dtype == settings.get("memory.kv_dtype", "")
