"""What is to be served, and what each instance's worker is told: found before anything starts."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from daemon.config.core_shares import CoreShare, core_shares
from daemon.config.cores import read_cores
from daemon.config.cuda import check_devices
from daemon.config.paths import default_cache
from daemon.config.pool import PoolPlan, longest, plan_pool
from daemon.config.schema import Config
from daemon.core.events import Configured, InstanceConfig
from daemon.engine.protocol import Load
from daemon.models.consistent import checked_shape
from daemon.models.embedded import EMBEDDED_NAME, model_folder
from daemon.models.shape import ModelShape

T = TypeVar("T")


class ServedModel(msgspec.Struct, frozen=True):
    """A model that can be served, and how each instance will hold it."""

    name: str
    folder: Path
    shape: ModelShape
    max_len: int  # tokens of the longest sequence, before the pools have their say
    pools: tuple[PoolPlan, ...]  # as config.instance
    cores: tuple[CoreShare, ...]  # as config.instance

    def load(self, config: Config, instance: int) -> Load:
        """What the instance's worker is told."""
        pool, cores = self.pools[instance], self.cores[instance]
        return Load(
            model=str(self.folder),
            device=config.instance[instance].device,
            dtype=pool.dtype,
            block_size=config.memory.block_size,
            num_blocks=pool.size.num_blocks if pool.size else 0,
            max_slots=config.scheduler.max_running,
            max_len=self.max_len,
            max_batch_tokens=config.scheduler.max_batch_tokens,
            num_threads=cores.threads,
            num_host_blocks=pool.host.num_blocks,
            compress=config.memory.compress,
            kv_dtype="" if config.memory.kv_dtype == "auto" else config.memory.kv_dtype,
            cpus=cores.cpus,
        )

    def configured(self, config: Config, now: float) -> Configured:
        """What the Core is built with."""
        scheduler = config.scheduler
        return Configured(
            now=now,
            instances=tuple(
                InstanceConfig(
                    spec.name, spec.role, spec.device, ahead=spec.device.startswith("cuda")
                )
                for spec in config.instance
            ),
            policy=scheduler.policy,
            block_size=config.memory.block_size,
            max_running=scheduler.max_running,
            max_batch_tokens=scheduler.max_batch_tokens,
            prefill_chunk=scheduler.prefill_chunk,
            max_waiting=scheduler.max_waiting,
            max_len=self.max_len,
            prefix_cache=scheduler.prefix_cache,
            depth=scheduler.depth,
            swap=config.memory.swap,
            starve_s=scheduler.starve_s,
        )


def served_name(config: Config) -> str:
    """The name that clients use."""
    if config.model.name:
        return config.model.name
    return Path(config.model.path).stem if config.model.path else EMBEDDED_NAME


def cache_folder(config: Config) -> Path:
    """Where converted models and what was measured of earlier starts are kept."""
    return Path(config.daemon.cache) if config.daemon.cache else default_cache()


def find_model(config: Config) -> ServedModel:
    """The configured model, converted and checked; blocks.

    Raises DeviceError before anything is converted, ModelError, SizingError.
    """
    check_devices([spec.device for spec in config.instance])
    folder = model_folder(config.model.path, cache_folder(config))
    shape = checked_shape(folder)
    pools = tuple(plan_pool(config, shape, spec) for spec in config.instance)
    cores = core_shares(config, read_cores())
    return ServedModel(
        served_name(config), folder, shape, longest(config, shape.context_len), pools, cores
    )


async def in_thread(work: Callable[[], T]) -> T:
    """The result of blocking work, without making a daemon that is told to stop wait for it.

    An executor's threads are joined at exit; this one is left behind, and a converter that it
    started dies with it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if not done.done():
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

    def target() -> None:
        result, fault = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever awaits the result
            fault = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, fault)

    threading.Thread(target=target, name="find-model", daemon=True).start()
    return await done
