"""What the runtime says for /metrics: true, small, and never falling."""

from collections.abc import Callable

import msgspec

from daemon.config.schema import Config, InstanceSpec, MemoryConfig
from daemon.core.values.snapshot import Counters
from daemon.protocol.api import Gauges
from daemon.protocol.control import GpuStatus
from daemon.runtime.serving import ServingStatus
from daemon.wire.columns import encoder
from tests.runtime.ends import House, generate, until

Build = Callable[..., House]

CONFIG = Config(
    memory=MemoryConfig(block_size=4), instance=(InstanceSpec("cpu", "mixed", "first"),)
)
LARGEST_BYTES = 4096


def told(status: ServingStatus, house: House) -> Gauges:
    """Send what is so now; it arrives at the API process's end by `house.api.of(Gauges)`."""
    gauges = status.gauges(0.25)
    house.link.send(gauges)
    return gauges


async def test_gauges_reach_the_api_process_and_never_fall(house_of: Build) -> None:
    house = house_of(max_running=1, num_blocks=64)
    status = house.status(CONFIG, GpuStatus(power_w=250.0))
    house.ready()
    house.paused = True
    house.api.send(generate(0, [1, 2, 3, 4, 5], 4, n=3))
    await until(lambda: bool(house.plans))
    told(status, house)
    house.resume()
    await house.ended(3)
    told(status, house)
    house.lose()
    house.ready()
    house.api.send(generate(1, [1, 2, 3], 2))
    await house.ended(4)
    told(status, house)
    await until(lambda: len(house.api.of(Gauges)) == 3)
    first, second, third = house.api.of(Gauges)

    assert first.lag_s == 0.25 and first.gpus == (GpuStatus(power_w=250.0),)
    assert (first.instances[0].running, first.waiting) == (1, 2)
    assert (third.instances[0].running, third.waiting) == (0, 0)
    assert first.instances[0].step_p99_s == 0.0 < second.instances[0].step_p99_s
    assert third.counters.output_tokens == 14 and third.counters.worker_deaths == 1
    for before, after in ((first, second), (second, third)):
        for field in msgspec.structs.fields(Counters):
            name = field.name
            assert getattr(after.counters, name) >= getattr(before.counters, name)
        for name in ("steps", "out_blocks", "in_blocks", "link_s"):
            assert getattr(after.instances[0], name) >= getattr(before.instances[0], name)
    assert not third.instances[0].block_map.size
    assert len(encoder().encode(third)) < LARGEST_BYTES
