"""`llmd check`: every value with its source, the model's shape, and the memory formula's terms."""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import msgspec

from daemon.api.sandbox.chat_template import unused_templates
from daemon.api.sandbox.template_process import what_is_wrong, what_it_refuses
from daemon.api.text.text import Text
from daemon.cli.faults import error_text
from daemon.cli.memory_lines import kinds_of, limits_line, mib, pool_lines
from daemon.cli.parser import overrides
from daemon.cli.plan_profile import KEY as PLAN_PROFILE
from daemon.cli.plan_profile import profile_fault
from daemon.cli.progress import progress
from daemon.cluster.nodes import Node, Nodes, ask_nodes, has_ray
from daemon.config.cluster import by_ray
from daemon.config.core_shares import CoreShare, core_shares
from daemon.config.cores import read_cores
from daemon.config.cuda import Devices, ask_for, missing
from daemon.config.find import Found, find, released
from daemon.config.instance_text import (
    format_instance,
    gpus_of,
    num_ranks,
    num_stages,
    parse_instance,
    placed,
    rank_devices,
    split_devices,
)
from daemon.config.instances import instance_limits
from daemon.config.load import ConfigError, ConfigFault, Loaded, flatten, load
from daemon.config.paths import default_cache, default_journal, default_socket
from daemon.config.pool import PoolPlan, instance_dtype, plan_pools, pool_faults
from daemon.config.schema import Config, InstanceSpec
from daemon.engine.families import FAMILIES
from daemon.engine.verify.kernels.kept import CardStack, all_kept, version_of
from daemon.memory.layout import shown_lengths
from daemon.memory.sizing import (
    SizingError,
    model_layout,
)
from daemon.models.choose import choose_instances
from daemon.models.consistent import checked_shape
from daemon.models.containers import text_fields
from daemon.models.embedded import (
    begin_with_installed,
    converted_folder,
    embedded_gguf,
    gguf_file,
    model_folder,
)
from daemon.models.fitting import ask_fit, check_fit
from daemon.models.generation import DefaultSampling, default_sampling, without_effect
from daemon.models.gguf_index import read_index
from daemon.models.kept_folder import is_converted
from daemon.models.kv_parts import rank_splits, unlinked
from daemon.models.propose import Proposal, Workstation, propose, stage_layers_on, told
from daemon.models.quantisation import read_quantisation
from daemon.models.quantised_folder import NONE, plain_folder, planned, quantised_shape
from daemon.models.resolving import ask_child, resolve
from daemon.models.shape import ModelError, ModelShape, read_json
from daemon.models.stages import rank_parts
from daemon.models.unread import unread_notes
from daemon.models.vocabulary import read_tokenizer
from daemon.models.weights import predicting_weights
from daemon.runtime.model import cache_folder, this_machine, with_instances
from daemon.runtime.preflight import holder, obstacles

DISTRIBUTION = "llmd-server"


KEY = "engine.kernels"
_Planned = tuple[PoolPlan, list[tuple[str, ModelShape]], tuple[int, ...]]


def kernel_notes(config: Config, instances: Iterable[InstanceSpec]) -> Iterator[str]:
    """A sentence for each family of kernels that torch replaces on a card that would serve."""
    devices = {device for spec in instances for device in gpus_of(spec)}
    if not devices:
        return
    if config.engine.kernels == "torch":
        yield "torch computes all, slower than llmd's own kernels"
        return
    for path, verdict in all_kept(cache_folder(config)):
        if verdict.subject.device not in devices or not _as_installed(verdict.card):
            continue
        for family, why in verdict.faults.items():
            meaning = FAMILIES.get(family, family)
            where = f"on {verdict.card.name} ({verdict.subject.device})"
            yield f"torch computes {family} ({meaning}) {where}: {why}; tried again without {path}"


def _as_installed(card: CardStack) -> bool:
    """Whether a verdict is about the installed libraries; their build tags do not count."""
    pairs = ((version_of("torch"), card.torch), (version_of("triton"), card.triton))
    return all(here.partition("+")[0] == tried.partition("+")[0] for here, tried in pairs)


def check(arguments: argparse.Namespace) -> int:
    """Print everything that `serve` would use. 0: it would serve; 1: not on this machine, as it is
    now, or not with this model; 2: the configuration is wrong.
    """
    found = examine(arguments)
    if arguments.json:
        print(as_json(found))
    else:
        print_text(found)
    return found.status


class Checked(msgspec.Struct):
    """The result of a check: what was found, and what keeps it from serving."""

    loaded: Loaded | None = None
    folder: Path | None = None
    shape: ModelShape | None = None
    served: Found = Found(())  # by which instances
    cores: tuple[CoreShare, ...] = ()  # as served.instances
    cluster: Nodes = Nodes()
    sampling: DefaultSampling = DefaultSampling()
    plans: dict[str, PoolPlan] = {}  # by the instance's name
    parts: dict[str, list[tuple[str, ModelShape]]] = {}  # likewise: each rank's device and share
    proposals: tuple[Proposal, ...] = ()  # of instances on this machine, the best first
    faults: list[ConfigFault] = []
    notes: list[ConfigFault] = []  # it serves all the same
    status: int = 0

    def instances(self) -> Iterator[tuple[InstanceSpec, CoreShare]]:
        """Each instance, and its cores."""
        yield from zip(self.served.instances, self.cores, strict=True)

    def cannot(self, text: str, key: str = "") -> None:
        """Record a reason why it cannot serve."""
        fault = ConfigFault("", key, text)
        if fault not in self.faults:  # instances that are alike have the same
            self.faults.append(fault)
        self.status = 1


def examine(arguments: argparse.Namespace) -> Checked:
    """Do what `serve` does before it starts anything, and go on after a fault."""
    found = Checked()
    try:
        found.loaded = load(arguments.config, overrides(arguments))
    except ConfigError as error:
        found.faults, found.status = list(error.faults), 2
        return found
    config = found.loaded.config
    found.notes += found.loaded.notes
    if owners := _foreign_owners():
        found.cannot(
            f"the distribution {owners} also installs a package named daemon: "
            f"give {DISTRIBUTION} a virtual environment of its own"
        )
    if fault := profile_fault(config):
        found.cannot(fault, PLAN_PROFILE)
    for key, text, fatal in obstacles(config):
        if fatal:
            found.cannot(text, key)
        else:
            found.notes.append(ConfigFault("", key, text))
    _examine_cluster(found, config)
    _serve_by(found, config, Found(config.instance))
    named = [device for spec in config.instance for device in split_devices(spec.device)]
    now = holder(config)
    serving = [parse_instance(each.device) for each in now.instances] if now else []
    held = [device for spec in serving for device in gpus_of(spec)]
    devices = released(ask_for(named), held)
    absent = missing(named, devices)
    for text in absent:
        found.cannot(text, "instance")
    _examine_model(found, config, devices, convert=not absent)
    found.notes += [
        ConfigFault("", KEY, text) for text in kernel_notes(config, found.served.instances)
    ]
    return found


def _examine_cluster(found: Checked, config: Config) -> None:
    """Ask the cluster for its nodes, where Ray places workers."""
    if not (by_ray(config) and has_ray()):
        return
    found.cluster = ask_nodes(config.cluster.address)
    if found.cluster.fault:
        found.cannot(f"no cluster answers: {found.cluster.fault}", "cluster.address")
    elif note := too_few(config, found.cluster):
        found.notes.append(ConfigFault("", "instance", note))


def cluster_lines(config: Config, found: Nodes) -> Iterator[str]:
    """The cluster and its nodes, as lines of text."""
    yield f"Ray places workers on the nodes of {config.cluster.address}"
    for node in found.nodes:
        room = _room(config, node)
        workers = f"{room} worker{'' if room == 1 else 's'} of {config.daemon.threads}"
        free = f"{node.free_cpus:g} of {node.cpus:g} CPUs free"
        yield f"  {node.name:<24} {node.address:<16} {free}, room for {workers}"


def too_few(config: Config, found: Nodes) -> str:
    """A note where some instances will wait for a node; empty: there is room for all."""
    room = sum(_room(config, node) for node in found.nodes)
    waiting = len(config.instance) - room
    if waiting <= 0:
        return ""
    return f"{waiting} of {len(config.instance)} will wait until a node joins that has room for it"


def _room(config: Config, node: Node) -> int:
    """How many workers a node holds when nothing else takes its CPUs."""
    return int(node.cpus) // max(config.daemon.threads, 1)


def _serve_by(found: Checked, config: Config, served: Found) -> Config:
    """Record which instances serve, and on which cores; return the configuration with them."""
    config = with_instances(config, served)
    found.served, found.cores = served, core_shares(config, read_cores())
    return config


def _examine_model(found: Checked, config: Config, devices: Devices, *, convert: bool) -> None:
    """Check the model, find the instances that serve it, and plan the pools of each."""
    try:
        if not convert and _needs_conversion(config):
            return
        found.folder = _folder(config)
        shape = _as_served(found.folder, config)
        if config.model.quantize == NONE:  # else `_as_served` has checked it already
            check_fit(found.folder, cache_folder(config), ask_fit)
        found.shape = shape
        found.sampling = default_sampling(config.model.generation_config, found.folder)
        found.notes += [
            ConfigFault("", "", text)
            for text in model_notes(found.folder, found.shape, cache_folder(config))
        ]
        if unused := without_effect(config.model.generation_config, found.folder):
            note = f"generation_config.json says what has no effect here: {', '.join(unused)}"
            found.notes.append(ConfigFault("", "model.generation_config", note))
    except (ModelError, OSError) as error:
        found.cannot(error_text(error))
        return
    machine = this_machine(config, devices)
    found.proposals = propose(config, found.shape, machine)
    served = choose_instances(find(config, found.shape, devices), found.proposals)
    config = _serve_by(found, config, served)
    # What alike instances can have is asked once: available RAM is another number a moment later.
    planned: dict[InstanceSpec, _Planned | None] = {}
    layers: dict[str, tuple[int, ...]] = {}
    for spec in found.served.instances:
        alike = msgspec.structs.replace(spec, name="")
        if alike not in planned:
            planned[alike] = _plan(found, config, spec, devices, machine)
        if (own := planned[alike]) is not None:
            found.plans[spec.name], found.parts[spec.name], layers[spec.name] = own
    known = [spec for spec in found.served.instances if spec.name in layers]
    pools = [found.plans[spec.name] for spec in known]
    splits = rank_splits(known, [layers[spec.name] for spec in known], pools)
    for text in unlinked(found.shape, known, splits):
        found.notes.append(ConfigFault("", "instance", text))


def _plan(
    found: Checked, config: Config, spec: InstanceSpec, devices: Devices, machine: Workstation
) -> _Planned | None:
    """The pools of an instance, its ranks' parts, and the layers of its stages; None where it
    cannot have them, and every reason is recorded.
    """
    assert found.shape is not None, "pools are planned for a model that was examined"
    if num_stages(spec) > 1 and missing(gpus_of(spec), devices):
        return None  # as is recorded already
    try:
        stages = stage_layers_on(config, found.shape, spec, machine)
        parts = rank_parts(found.shape, spec, stages)
    except (ModelError, SizingError) as error:
        found.cannot(str(error))
        return None
    try:
        return plan_pools(config, parts, spec, devices), parts, stages
    except SizingError as error:
        faults = [
            text
            for device, part in dict.fromkeys(parts)
            for text in pool_faults(config, part, spec, devices, device)
        ]
        for text in faults or [str(error)]:
            found.cannot(text)
    return None


def model_notes(folder: Path, shape: ModelShape, cache: Path) -> Iterator[str]:
    """Notes on what a model's files contain and serving ignores, or refuses on request.

    Raises ModelError.
    """
    if unread := unread_notes(resolve(folder, cache, ask_child)):
        yield f"{folder}: fields of config.json that are of no use here: {', '.join(unread)}"
    index = read_index(folder)
    if index is not None and index.unused:
        unused = ", ".join(index.unused)
        yield f"{folder}: fields of the GGUF file that are of no use here: {unused}"
    beyond = read_tokenizer(folder).beyond(shape.vocab_size)
    if beyond:
        named = ", ".join(f"{token.content!r} ({token.id})" for token in beyond[:8])
        more = f" and {len(beyond) - 8} more" if len(beyond) > 8 else ""
        yield (
            f"{folder / 'tokenizer.json'} has tokens beyond the model's vocabulary of "
            f"{shape.vocab_size}: {named}{more}; a prompt that contains one is refused"
        )
    with suppress(OSError, ValueError, LookupError, TypeError):  # reported below
        if further := unused_templates(folder):
            yield f"{folder}: chat templates that are of no use here: {', '.join(further)}"
    if wrong := what_is_wrong(folder) or what_it_refuses(folder):
        yield f"{folder}: {wrong}"


def _told(found: Checked) -> Iterator[str]:
    """The proposals, in words."""
    asked: int | str = found.served.experts_on_cpu
    if not asked and found.loaded is not None:
        asked = found.loaded.config.model.experts_on_cpu
    return told(found.proposals, found.served.instances, asked)


def print_text(found: Checked) -> None:
    """For people: what is known on stdout, what is wrong on stderr."""
    if found.loaded is not None:
        print("\n".join(values(found.loaded, found.served)))
    if found.folder is not None and found.shape is not None:
        print("\n" + "\n".join(model_lines(found.folder, found.shape)))
        if found.loaded is not None and found.loaded.config.model.quantize != NONE:
            print(_rounding_line(found.loaded.config.model.quantize, found.shape))
        print(f"  default sampling: {found.sampling}")
    if lines := list(found.served.lines()):
        print("\n" + "\n".join(lines))
    if lines := list(_told(found)):
        print("\non this machine\n" + "\n".join(f"  {line}" for line in lines))
    if found.loaded is not None and by_ray(found.loaded.config):
        print("\n" + "\n".join(cluster_lines(found.loaded.config, found.cluster)))
    for spec, cores in found.instances():
        print(f"\ninstance {spec.name} on {placed(spec)}")
        print(f"  cores        {cores} ({cores.why})")
        if found.shape is not None and spec.name in found.plans:
            print("\n".join(_memory_lines(spec, found.plans[spec.name], found.parts[spec.name])))
        if found.loaded is not None:
            print(limits_line(instance_limits(found.loaded.config, spec)))
    for note in found.notes:
        print(f"llmd: {note} (no fault)", file=sys.stderr)
    for fault in found.faults:
        print(f"llmd: {fault}", file=sys.stderr)


def _memory_lines(
    spec: InstanceSpec, plan: PoolPlan, parts: Sequence[tuple[str, ModelShape]]
) -> Iterator[str]:
    """The memory formula of an instance; of each rank, where their devices differ."""
    if not plan.ranks:
        if (ranks := num_ranks(spec)) > 1:
            yield f"  ranks        {ranks}; the pool and the weights are those of the largest"
        yield from pool_lines(parts[0][1], plan)
        return
    for number, (device, share) in enumerate(parts):
        layers = f", {share.num_layers} layers" if num_stages(spec) > 1 else ""
        yield f"  rank {number} on {device}{layers}; all have as many blocks"
        yield from pool_lines(share, plan.ranks[number])


def as_json(found: Checked) -> str:
    """For scripts: one object with ok, file, values, model, found, instances and faults."""
    loaded, shape = found.loaded, found.shape
    plain = {
        "ok": found.status == 0,
        "file": loaded.file if loaded is not None else "",
        "values": {
            key: {"value": value, "source": source}
            for key, value, source in _shown(loaded, found.served)
        },
        "model": {"folder": str(found.folder), **msgspec.to_builtins(shape)} if shape else None,
        "found": {
            "gpus": msgspec.to_builtins(found.served.candidates),
            "why_cpu": found.served.why_cpu,
            "why_several": found.served.why_several,
        },
        "nodes": msgspec.to_builtins(found.cluster.nodes),
        "proposals": msgspec.to_builtins(found.proposals),
        "default_sampling": msgspec.to_builtins(found.sampling) if shape else None,
        **(_layout_said(loaded.config, found, shape) if loaded and shape else {}),
        "instances": [
            {
                **msgspec.to_builtins(spec),
                "cores": msgspec.to_builtins(cores),
                "limits": msgspec.to_builtins(instance_limits(loaded.config, spec)),
                "pool": msgspec.to_builtins(found.plans.get(spec.name)),
            }
            for spec, cores in found.instances()
            if loaded is not None
        ],
        "faults": [fault._asdict() for fault in found.faults],
        "notes": [note._asdict() for note in found.notes],
    }
    return msgspec.json.format(msgspec.json.encode(plain).decode(), indent=2)


def _layout_said(config: Config, found: Checked, shape: ModelShape) -> dict[str, Any]:
    """For scripts: the kinds of layers, and the bytes that one sequence of a length holds, on the
    first instance.
    """
    device = rank_devices(found.served.instances[0])[-1] if found.served.instances else "cpu"
    dtype = instance_dtype(config, device, shape.dtype)
    block_size, kinds = config.memory.block_size, kinds_of(shape)
    held = model_layout(shape, shape.windows, block_size, dtype, config.memory.kv_dtype)
    return {
        "layout": [
            {
                "kind": kind,
                "layers": kinds.count((kind, window)),
                "page_tokens": block_size,
                "window": window,
            }
            for kind, window in sorted(set(kinds))
        ],
        "state_bytes": held.state_pages * held.page_bytes,
        "kv_bytes_by_tokens": {
            str(length): held.bytes_at(length) for length in shown_lengths(shape.context_len)
        },
    }


def values(loaded: Loaded, served: Found) -> Iterator[str]:
    """One line a value: key, value, source."""
    for key, value, source in _shown(loaded, served):
        shown = " ".join(value) if isinstance(value, list) else json.dumps(value)
        yield f"{key:<28} {shown:<40} {source}"


def _shown(loaded: Loaded | None, served: Found) -> Iterator[tuple[str, Any, str]]:
    """Key, value and source of every value; of API keys the names alone."""
    if loaded is None:
        return
    places = {
        "control.socket": default_socket(),
        "journal.folder": default_journal(),
        "daemon.cache": default_cache(),
    }
    for key, value in flatten(loaded.config).items():
        shown, source = value, loaded.source(key)
        if key == "instance":
            shown = [f"{spec.name}={format_instance(spec)}" for spec in served.instances]
            source = source if value else "found"
        elif key == "key":
            shown = [key_config.name for key_config in value]
        elif value == "" and key in places:
            shown = str(places[key])
        yield key, shown, source


def model_lines(folder: Path, shape: ModelShape) -> Iterator[str]:
    """The model's shape and quantisation, as lines of text."""
    yield f"model {folder}"
    yield (
        f"  {shape.model_type}: {shape.num_params:,} parameters stored as {shape.dtype}, "
        f"{shape.num_layers} layers, {_heads_said(shape)}, hidden {shape.hidden_size}, "
        f"vocabulary {shape.vocab_size:,}, "
        f"context {shape.context_len} tokens"
    )
    if left_out := predicting_weights(folder):
        yield f"  {len(left_out)} weights predict further tokens and are not read"
    yield from _quantisation_lines(folder)


def _heads_said(shape: ModelShape) -> str:
    """The heads of the layers that attend."""
    heads = f"{shape.num_heads} heads ({shape.num_kv_heads} of keys) of {shape.head_dim}"
    return heads if shape.num_heads else "none of which attends"


def _rounding_line(kind: str, shape: ModelShape) -> str:
    """A line on how model.quantize rounds the weights."""
    share = shape.packed_params / shape.num_params
    return (
        f"  quantized to {kind} when it is first served: {share:.0%} of the weights in "
        f"{mib(shape.packed_bytes).strip()} of blocks, kept in the cache folder"
    )


def _quantisation_lines(folder: Path) -> Iterator[str]:
    """How a checkpoint's weights are quantised, and what of it has no effect here."""
    found = read_quantisation(folder, text_fields(read_json(folder / "config.json")))
    if found is None:
        return
    states = ", states stay as they are computed" if found.rounds_states else ""
    yield f"  weights are quantized by {found.method}{states}"
    for note in found.notes:
        yield f"  {note}"


def _folder(config: Config) -> Path:
    """The model's folder, converting a GGUF file the first time, as `serve` would."""
    path, cache = config.model.path, cache_folder(config)
    if config.model.quantize != NONE:
        return plain_folder(path, config.model.quantize, cache)
    source = _needs_conversion(config)
    if source is None:
        return model_folder(path, cache)
    print(f"llmd: converting {source.name}, once", file=sys.stderr)
    with progress() as show:
        return model_folder(path, cache, tell=lambda share: show(share, 1.0, "converting"))


def _as_served(folder: Path, config: Config) -> ModelShape:
    """The model's shape, its weights as they will be held: nothing is rounded yet.

    Raises ModelError, also for a tokenizer that the process of the API could not read.
    """
    shape, kind = checked_shape(folder, cache_folder(config)), config.model.quantize
    try:
        Text(folder)
    except ValueError as error:
        raise ModelError(f"the tokenizer cannot be read: {error}") from None
    return shape if kind == NONE else quantised_shape(shape, planned(folder, kind))


def _needs_conversion(config: Config) -> Path | None:
    """The model's GGUF file, if it is one and not yet converted. Raises ModelError."""
    path, cache = config.model.path, cache_folder(config)
    source = gguf_file(Path(path).expanduser()) if path else embedded_gguf()
    if source is None or not source.is_file():
        return None
    if not path:
        begin_with_installed(cache)
    return None if is_converted(converted_folder(source, cache)) else source


def _foreign_owners() -> str:
    """Other distributions whose package `daemon` would be imported in place of llmd's."""
    return ", ".join(sorted(set(packages_distributions().get("daemon", ())) - {DISTRIBUTION}))
