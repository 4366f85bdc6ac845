"""The model to serve and what each instance's worker is sent: found before anything starts."""

import logging
import os
import time
from dataclasses import asdict
from itertools import permutations
from pathlib import Path

import msgspec

from daemon.config.core_shares import CoreShare, core_shares
from daemon.config.cores import read_cores
from daemon.config.cuda import Card, Devices, ask_for, check_devices
from daemon.config.find import DeviceCandidate, Found, find
from daemon.config.instance_text import (
    gpus_of,
    num_ranks,
    num_stages,
    placed,
    rank_devices,
    split_devices,
)
from daemon.config.instances import (
    finds_size,
    instance_limits,
    shared_limits,
    worker_limits,
)
from daemon.config.machine import available_ram_bytes, measured_ram_bytes_per_s
from daemon.config.paths import cache_of
from daemon.config.pool import PoolPlan, longest, plan_pools
from daemon.config.schema import Config, InstanceSpec
from daemon.core.values.events import POLICY_NAMES, Configured, InstanceConfig
from daemon.core.values.limits import says_budget, says_chunk
from daemon.memory.sizing import GPU_RUNTIME_BYTES
from daemon.models.choose import choose_instances
from daemon.models.consistent import checked_shape
from daemon.models.embedded import EMBEDDED_NAME, is_gguf
from daemon.models.generation import DefaultSampling, default_sampling, without_effect
from daemon.models.gguf_header import whole_name
from daemon.models.hub import hub_name
from daemon.models.kept_folder import Tell
from daemon.models.kv_parts import RankLink, rank_links, rank_splits, unlinked
from daemon.models.propose import Workstation, machine_of, propose, stage_layers_on, told
from daemon.models.quantised_folder import ensure_quantised, plain_folder
from daemon.models.resolving import Ask, ask_child
from daemon.models.shape import ModelShape
from daemon.models.stages import rank_parts
from daemon.protocol.worker import Load
from daemon.runtime.start_times import StartTimes, start_name
from daemon.state.role import Role

log = logging.getLogger(__name__)

FREEING_S = 1.0
"""Interval at which a GPU whose memory is being freed is looked at again."""
FREED_S = 30.0
"""Longest wait for a GPU's memory to be freed."""

UNKNOWN_WAKE_S = 30.0
"""How long an instance is taken to need to wake that never started here."""


class ServedModel(msgspec.Struct, frozen=True):
    """A model that can be served, and how each instance will hold it."""

    name: str
    folder: Path
    shape: ModelShape
    max_len: int  # tokens of the longest sequence, before the pools have their say
    instances: tuple[InstanceSpec, ...]  # as configured, or as found
    cards: tuple[tuple[str, ...], ...]  # as instances: their GPUs' UUIDs, as far as known
    pools: tuple[PoolPlan, ...]  # as instances
    cores: tuple[CoreShare, ...]  # as instances
    defaults: DefaultSampling = DefaultSampling()
    stage_layers: tuple[tuple[int, ...], ...] = ()  # as instances: of each stage; empty: none

    @property
    def limited_cards(self) -> list[tuple[str, ...]]:
        """The cards of each instance whose power is limited: its own, or the one that it names."""
        pairs = zip(self.instances, self.cards, strict=True)
        return [(spec.card,) if spec.card else cards for spec, cards in pairs]

    def loads(self, config: Config, instance: int) -> list[Load]:
        """The messages that have each rank of an instance load its part of the model."""
        world_size = num_ranks(self.instances[instance])
        return [self.load(config, instance, rank) for rank in range(world_size)]

    def load(self, config: Config, instance: int, rank: int = 0) -> Load:
        """The message that has the instance's worker, or one of its ranks, load the model."""
        pool, cores = self.pools[instance].of_rank(rank), self.cores[instance].of_rank(rank)
        config = msgspec.structs.replace(config, instance=self.instances)
        limits = worker_limits(config, self.instances[instance])
        return Load(
            model=str(self.folder),
            device=rank_devices(self.instances[instance])[rank],
            dtype=pool.dtype,
            block_size=config.memory.block_size,
            num_blocks=pool.num_blocks,
            max_slots=limits.max_running,
            max_len=self.max_len,
            max_batch_tokens=limits.max_batch_tokens,
            num_threads=cores.threads,
            rank=rank,
            world_size=num_ranks(self.instances[instance]),
            num_host_blocks=pool.host.num_blocks,
            compress=config.memory.compress,
            kv_dtype="" if config.memory.kv_dtype == "auto" else config.memory.kv_dtype,
            cache=str(cache_folder(config)),
            cpus=cores.cpus,
            kernels=config.engine.kernels,
            finds_size=finds_size(config, self.instances[instance]),
            weight_dtype=pool.weight_dtype,
            exact=config.model.dtype == "float32",
            stage_layers=self.stage_layers[instance] if self.stage_layers else (),
            experts_on_cpu=pool.experts_on_cpu,
        )

    def pair_links(self) -> dict[tuple[int, int], tuple[RankLink, ...]]:
        """The links of ranks from each instance to each other one."""
        splits = rank_splits(self.instances, self.stage_layers, self.pools)
        return {
            (source, target): rank_links(self.shape, splits[source], splits[target])
            for source, target in permutations(range(len(splits)), 2)
        }

    def _wakes_in_s(self, config: Config, instance: int, times: StartTimes | None) -> float:
        """How long the instance should take to wake: as configured, or as its last start took."""
        last = times.last(start_name(self.load(config, instance))) if times is not None else {}
        return self.instances[instance].wake_s or sum(last.values()) or UNKNOWN_WAKE_S

    def configured(
        self,
        config: Config,
        now: float,
        written: Config | None = None,
        times: StartTimes | None = None,
    ) -> Configured:
        """The event that builds the Core. `written`: the configuration before its open values were
        chosen; None: all of it was written. `times`: how long workers' last starts took.
        """
        shared = shared_limits(written or config)
        specs = (written or config).instance or self.instances
        scheduler = msgspec.structs.asdict(config.scheduler)
        del scheduler["prompt_lookup"]  # the runtime's affair; each StepDone tells the Core
        return Configured(
            now=now,
            instances=tuple(
                InstanceConfig(
                    spec.name,
                    Role(spec.role),
                    placed(spec),
                    stages=num_stages(spec),
                    ahead=spec.device.startswith("cuda") or num_stages(spec) > 1,
                    **asdict(instance_limits(config, spec)),
                    chunk_is_own=not says_chunk(said, shared),
                    budget_is_own=not says_budget(said, shared),
                    wakes_in_s=self._wakes_in_s(config, index, times) if spec.asleep else 0.0,
                )
                for index, (spec, said) in enumerate(zip(self.instances, specs, strict=True))
            ),
            block_size=config.memory.block_size,
            max_len=self.max_len,
            swap=config.memory.swap,
            slo_ttft_s=config.slo.ttft_s,
            slo_tpot_s=config.slo.tpot_s,
            policy_names=POLICY_NAMES,
            **scheduler,
        )


def served_name(config: Config) -> str:
    """The name that clients use."""
    if config.model.name:
        return config.model.name
    if not config.model.path:
        return EMBEDDED_NAME
    path = Path(os.path.abspath(config.model.path))  # "." has a name; a link keeps its own
    return hub_name(config.model.path) or (whole_name(path) if is_gguf(path) else path.name)


def model_in_words(config: Config) -> str:
    """The model, and where it comes from, for a person."""
    return f"{served_name(config)} ({config.model.path or 'the embedded model'})"


def cache_folder(config: Config) -> Path:
    """The folder of converted models and of measurements from earlier starts."""
    return cache_of(config.daemon.cache)


def find_model(
    config: Config, ask: Ask = ask_child, progress: Tell = lambda share: None
) -> ServedModel:
    """The configured model, converted and checked, and the instances that serve it; blocks.

    `progress` receives the progress of the conversion, or of rounding its weights.

    Raises DeviceError before anything is converted, ModelError, SizingError.
    """
    named = [device for spec in config.instance for device in split_devices(spec.device)]
    devices = ask_for(named)
    check_devices(named, devices)
    cache = cache_folder(config)
    kind = config.model.quantize
    source = plain_folder(config.model.path, kind, cache, progress)
    shape = checked_shape(source, cache, ask)
    folder = ensure_quantised(source, kind, cache, progress)
    if folder != source:
        shape = checked_shape(folder, cache, ask)
    found, devices = _found(config, shape, devices)
    machine = machine_of(devices, available_ram_bytes())
    if devices.cards:
        machine = this_machine(config, devices)
    proposals = propose(config, shape, machine) if devices.cards and not config.instance else ()
    found = choose_instances(found, proposals)
    in_place = bool(found.why_cpu and devices.cards)
    for line in found.lines():
        log.log(logging.WARNING if in_place else logging.INFO, "%s", line)
    config = with_instances(config, found)
    if proposals:
        for line in told(proposals, found.instances, config.model.experts_on_cpu):
            log.info("%s", line)
    stages = [stage_layers_on(config, shape, spec, machine) for spec in found.instances]
    pools = tuple(
        plan_pools(config, rank_parts(shape, *each), each[0], devices)
        for each in zip(found.instances, stages, strict=True)
    )
    for line in unlinked(shape, found.instances, rank_splits(found.instances, stages, pools)):
        log.warning("%s", line)
    if unused := without_effect(config.model.generation_config, folder):
        log.warning("generation_config.json says what has no effect here: %s", ", ".join(unused))
    return ServedModel(
        name=served_name(config),
        folder=folder,
        shape=shape,
        max_len=longest(config, shape.context_len),
        instances=found.instances,
        cards=tuple(
            tuple(filter(None, map(devices.uuid_of, gpus_of(spec)))) for spec in found.instances
        ),
        pools=pools,
        cores=core_shares(config, read_cores()),
        stage_layers=tuple(stages),
        defaults=default_sampling(config.model.generation_config, folder),
    )


def _found(config: Config, shape: ModelShape, devices: Devices) -> tuple[Found, Devices]:
    """The instances that serve, and the devices at that time. Waits while a GPU's memory is being
    freed: a killed daemon's takes seconds, and the CPU would serve until the next start.
    """
    until_s = time.monotonic() + FREED_S
    found = find(config, shape, devices)
    while any(map(_misses, found.candidates, devices.cards)) and time.monotonic() < until_s:
        time.sleep(FREEING_S)
        later = ask_for(())
        if _free(later) <= _free(devices):
            break
        log.info("a GPU's memory is being freed: the devices are chosen anew")
        found, devices = find(config, shape, later), later
    return found, devices


def _misses(candidate: DeviceCandidate, card: Card) -> bool:
    """Whether a card lacks room for all that was wanted, while other programs hold some of it."""
    held_bytes = 0 if card.free_bytes is None else card.total_bytes - card.free_bytes
    return bool(candidate.fault or candidate.tokens) and held_bytes > GPU_RUNTIME_BYTES


def _free(devices: Devices) -> int:
    return sum(card.free_bytes or 0 for card in devices.cards)


def this_machine(config: Config, devices: Devices) -> Workstation:
    """This machine as a configuration can use it, with the measured rate of its RAM, unless there
    is a card whose rate is not known: neither is taken to be faster then.
    """
    here = machine_of(devices, available_ram_bytes(), kv_dtype=config.memory.kv_dtype)
    if not all(place.bytes_per_s for place in here.places):
        return here
    rate = measured_ram_bytes_per_s(min(read_cores().granted, 8))
    return msgspec.structs.replace(here, ram_bytes_per_s=rate)


def with_instances(config: Config, found: Found) -> Config:
    """The configuration with the instances that serve: pools and cores are divided among them; and
    with where a mixture's experts lie, where that was chosen for them.
    """
    model = config.model
    if found.experts_on_cpu:
        model = msgspec.structs.replace(model, experts_on_cpu=found.experts_on_cpu)
    return msgspec.structs.replace(config, instance=found.instances, model=model)
