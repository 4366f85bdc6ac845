"""Pipeline stages: which layers of a model each worker of an instance computes.

The last stage is the first rank: it has the head, so it samples and answers. The ranks behind it
are the stages from the first one on.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import eq

import msgspec

from daemon.config.instance_text import gpus_of, num_ranks, num_stages, rank_devices
from daemon.config.schema import InstanceSpec
from daemon.memory.layout import KVHeads
from daemon.memory.sizing import block_bytes, heads_of
from daemon.memory.state_layout import StatePart
from daemon.models.rank_shares import Range, largest_share
from daemon.models.shape import ModelError, ModelShape


def stage_of(rank: int, num_stages: int) -> int:
    """The stage that a rank computes."""
    return (rank - 1) % num_stages


def rank_of(stage: int, num_stages: int) -> int:
    """The rank that computes a stage."""
    return (stage + 1) % num_stages


def layers_of(stage: int, stage_layers: Sequence[int]) -> Range:
    """The layers of a stage, where `stage_layers` counts those of each."""
    begins = [0, *accumulate(stage_layers)]
    return Range(begins[stage], begins[stage + 1])


_BLOCK_TOKENS = 16
"""Tokens of a block, by which pages of stages are compared."""


def stage_refusals(shape: ModelShape) -> Iterator[str]:
    """Every reason why a model of this shape cannot be split into stages."""
    if shape.layer_inputs:
        yield "its layers read tokens' embeddings beside the states of the layer before"
    if any(heads.source >= 0 for heads in shape.layer_heads):
        yield "some of its layers read the keys and values of others"


def _check(shape: ModelShape, num_stages: int) -> None:
    for reason in stage_refusals(shape):
        raise ModelError(f"{shape.model_type} cannot be split into stages yet: {reason}")
    counts = {"": shape.num_layers, " with keys and values": sum(_have_keys(shape))}
    for which, count in counts.items():
        if 0 < count < num_stages:
            said = f"{count} layers{which} cannot be split into {num_stages} stages"
            raise ModelError(f"{shape.model_type}: {said}")


def _have_keys(shape: ModelShape) -> list[bool]:
    """Whether each layer has keys and values of its own."""
    return [heads.is_own for heads in heads_of(shape)]


class StageDevice(msgspec.Struct, frozen=True):
    """The device of a stage."""

    slowness: float = 1.0  # time of a unit of cost
    room_bytes: float = math.inf  # for layers and what lies beside them


class LayerCosts(msgspec.Struct, frozen=True):
    """Costs of layers for a stage, and of the ends of a model: the embedding, and the head."""

    layers: tuple[float, ...]  # time of each on a device of slowness 1
    layer_bytes: tuple[float, ...]  # of each, with its keys and values
    ends: tuple[float, float] = (0.0, 0.0)
    ends_bytes: tuple[float, float] = (0.0, 0.0)
    has_keys: tuple[bool, ...] = ()  # of which each stage has one: a block is one of all stages


def split_layers(costs: LayerCosts, devices: Sequence[StageDevice]) -> tuple[int, ...]:
    """The layers of each stage, at least one, such that the slowest stage is as fast as can be and
    each fits its device. Of equal splits it is the one whose first stages have the fewest layers.

    Raises ModelError where none fits.
    """
    time = [0.0, *accumulate(costs.layers)]
    size = [0.0, *accumulate(costs.layer_bytes)]
    num_layers, num_stages = len(costs.layers), len(devices)
    keys = [0, *accumulate(map(int, costs.has_keys or (True,) * num_layers))]
    # The slowest of the stages so far, and their layers, by how many of the first these are.
    slowest: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage, device in enumerate(devices):
        has_ends = stage == 0, stage + 1 == num_stages
        beside, beside_bytes = (
            sum(end for end, has in zip(ends, has_ends, strict=True) if has)
            for ends in (costs.ends, costs.ends_bytes)
        )
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for last in range(stage + 1, num_layers - (num_stages - stage - 1) + 1):
            splits = [
                (
                    max(before, device.slowness * (time[last] - time[first] + beside)),
                    (*counts, last - first),
                )
                for first, (before, counts) in slowest.items()
                if keys[first] < keys[last]
                and size[last] - size[first] + beside_bytes <= device.room_bytes
            ]
            if splits:
                found[last] = min(splits)
        slowest = found
    if num_layers not in slowest:
        raise ModelError(f"{num_layers} layers do not fit {num_stages} stages on these devices")
    return slowest[num_layers][1]


def split_model(
    shape: ModelShape, costs: LayerCosts, devices: Sequence[StageDevice]
) -> tuple[int, ...]:
    """The layers of each stage of a model, as `split_layers` finds them: whole periods of kinds of
    layers, if there are enough, so that no stage pads its pages to count them as the others do.

    Raises ModelError where the model cannot be split so.
    """
    _check(shape, len(devices))
    period = _period(_kinds(shape))
    num_periods, left = divmod(shape.num_layers, period)
    if left or num_periods < len(devices):
        period = 1
    begins = range(0, shape.num_layers, period)
    has_keys = _have_keys(shape)
    periods = msgspec.structs.replace(
        costs,
        layers=tuple(sum(costs.layers[at : at + period]) for at in begins),
        layer_bytes=tuple(sum(costs.layer_bytes[at : at + period]) for at in begins),
        has_keys=tuple(any(has_keys[at : at + period]) for at in begins) if any(has_keys) else (),
    )
    return tuple(period * count for count in split_layers(periods, devices))


def given_layers(shape: ModelShape, spec: InstanceSpec) -> tuple[int, ...]:
    """The layers of each stage that an instance's configuration gives; empty: it gives none.

    Raises ModelError where they are not those of the model.
    """
    if not spec.layers:
        return ()
    _check(shape, len(spec.layers))
    if sum(spec.layers) != shape.num_layers:
        said = f"layers = {[*spec.layers]} are {sum(spec.layers)}"
        raise ModelError(f"{said} of the {shape.num_layers} layers of {shape.model_type}")
    own = _have_keys(shape)
    parts = (layers_of(stage, spec.layers) for stage in range(len(spec.layers)))
    if any(own) and not all(any(own[part.first : part.last]) for part in parts):
        said = f"layers = {[*spec.layers]} leave a stage of {shape.model_type}"
        raise ModelError(f"{said} without a layer that has keys and values")
    return spec.layers


def own_stage_layers(shape: ModelShape, spec: InstanceSpec) -> tuple[int, ...]:
    """The layers of each stage of an instance on equal devices: as given, or by weights.

    Raises ModelError.
    """
    return given_layers(shape, spec) or stage_layers(shape, num_stages(spec))


def stage_layers(shape: ModelShape, num_stages: int) -> tuple[int, ...]:
    """The layers of each stage of a model on equal devices, by the numbers that a step reads.

    Raises ModelError where the model cannot be split so.
    """
    head, layer = _numbers(shape)
    layers = (layer,) * shape.num_layers
    costs = LayerCosts(layers, layers, (0.0, head))
    return split_model(shape, costs, [StageDevice()] * num_stages)


_Kind = tuple[int, KVHeads, tuple[StatePart, ...]]
"""The window, the heads and the state of a layer, by which it holds a sequence."""


def _kinds(shape: ModelShape) -> list[_Kind]:
    """The kind of each layer."""
    windows = shape.windows or (0,) * shape.num_layers
    states = shape.layer_states or ((),) * shape.num_layers
    return [*zip(windows, heads_of(shape), states, strict=True)]


def _period(kinds: Sequence[_Kind]) -> int:
    """The fewest layers after which kinds are the same again: stages of whole periods have as many
    pages of each.
    """
    lengths = range(1, len(kinds) + 1)
    return next((n for n in lengths if all(map(eq, kinds, kinds[n:]))), 1)


def _numbers(shape: ModelShape) -> tuple[float, float]:
    """The weights of the head, which may be the embedding's, and of a layer."""
    head = shape.vocab_size * shape.hidden_size
    return head, max(shape.num_params - head, shape.num_layers) / shape.num_layers


def shape_of_stage(shape: ModelShape, stage: int, stage_layers: Sequence[int]) -> ModelShape:
    """The shape of what a stage holds, its weights too, beside the others. Raises ModelError."""
    _check(shape, len(stage_layers))
    if sum(stage_layers) != shape.num_layers:
        said = f"{shape.num_layers} layers are not those of stages of {[*stage_layers]}"
        raise ModelError(f"{shape.model_type}: {said}")
    numbers = range(len(stage_layers))
    own, *others = (
        _alone(shape, number, stage_layers)
        for number in (stage, *(each for each in numbers if each != stage))
    )
    return msgspec.structs.replace(own, beside=tuple(others))


def _alone(shape: ModelShape, stage: int, stage_layers: Sequence[int]) -> ModelShape:
    """The shape of a stage without the others."""
    own = layers_of(stage, stage_layers)
    head, layer = _numbers(shape)
    ends = (stage == 0) + (stage + 1 == len(stage_layers) and len(stage_layers) > 1)
    part = min(1.0, (ends * head + own.size * layer) / shape.num_params)
    return msgspec.structs.replace(
        shape,
        num_layers=own.size,
        windows=shape.windows[own.first : own.last],
        layer_heads=shape.layer_heads[own.first : own.last],
        layer_states=shape.layer_states[own.first : own.last],
        num_params=-int(-shape.num_params * part),
        packed_params=-int(-shape.packed_params * part),
        packed_bytes=-int(-shape.packed_bytes * part),
    )


def largest_part(shape: ModelShape, spec: InstanceSpec) -> ModelShape:
    """The shape of the worker of an instance that holds the most. Raises ModelError."""
    if num_stages(spec) == 1:
        return largest_share(shape, num_ranks(spec))
    counts = own_stage_layers(shape, spec)
    parts = [shape_of_stage(shape, stage, counts) for stage in range(len(counts))]
    widest = max(parts, key=lambda part: block_bytes(part, _BLOCK_TOKENS, part.dtype))
    largest = max(parts, key=lambda part: part.num_params)
    sizes = largest.num_params, largest.packed_params, largest.packed_bytes
    return msgspec.structs.replace(
        widest, **dict(zip(("num_params", "packed_params", "packed_bytes"), sizes, strict=True))
    )


def rank_parts(
    shape: ModelShape, spec: InstanceSpec, stage_layers: Sequence[int]
) -> list[tuple[str, ModelShape]]:
    """The device of each rank of an instance, and the shape of what it holds: on CPUs, which share
    memory, that of the largest. `stage_layers`: of its stages, where it has some.

    Raises ModelError.
    """
    named = rank_devices(spec)
    if not gpus_of(spec) or not stage_layers:
        return [(device, largest_part(shape, spec)) for device in named]
    parts = [
        shape_of_stage(shape, stage_of(rank, len(named)), stage_layers)
        for rank in range(len(named))
    ]
    return list(zip(named, parts, strict=True))
