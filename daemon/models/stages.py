"""Pipeline stages: which layers of a model each worker of an instance computes.

The last stage is the first rank: it has the head, so it samples and answers. The ranks behind it
are the stages from the first one on.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import eq

import msgspec

from daemon.config.instance_text import num_ranks, num_stages
from daemon.config.schema import InstanceSpec
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


def stage_refusals(shape: ModelShape) -> Iterator[str]:
    """Every reason why the layers of a model of this shape cannot be stages."""
    if shape.layer_states:
        yield "it has recurrent layers"
    if any(heads.latent for heads in shape.layer_heads):
        yield "its layers keep latent rows"
    elif shape.layer_heads:
        yield "its layers have unlike heads"


def _check(shape: ModelShape, num_stages: int) -> None:
    for reason in stage_refusals(shape):
        raise ModelError(f"{shape.model_type} cannot be split into stages yet: {reason}")
    if shape.num_layers < num_stages:
        raise ModelError(f"{shape.num_layers} layers cannot be split into {num_stages} stages")


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


def split_layers(costs: LayerCosts, devices: Sequence[StageDevice]) -> tuple[int, ...]:
    """The layers of each stage, at least one, such that the slowest stage is as fast as can be and
    each fits its device. Of equal splits it is the one whose first stages have the fewest layers.

    Raises ModelError where none fits.
    """
    time = [0.0, *accumulate(costs.layers)]
    size = [0.0, *accumulate(costs.layer_bytes)]
    num_layers, num_stages = len(costs.layers), len(devices)
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
                if first < last and size[last] - size[first] + beside_bytes <= device.room_bytes
            ]
            if splits:
                found[last] = min(splits)
        slowest = found
    if num_layers not in slowest:
        raise ModelError(f"{num_layers} layers do not fit {num_stages} stages on these devices")
    return slowest[num_layers][1]


def stage_layers(shape: ModelShape, num_stages: int) -> tuple[int, ...]:
    """The layers of each stage of a model on equal devices, by the numbers that a step reads.

    Raises ModelError where the model cannot be split so.
    """
    _check(shape, num_stages)
    head, layer = _numbers(shape)
    period = _period(shape.windows)
    num_periods = shape.num_layers // period
    if shape.num_layers % period or num_periods < num_stages:
        said = f"{shape.num_layers} layers with windows, alike every {period}, are no {num_stages}"
        raise ModelError(f"{shape.model_type} cannot be split into stages yet: {said} equal kinds")
    periods = (period * layer,) * num_periods
    costs = LayerCosts(periods, periods, (0.0, head))
    counts = split_layers(costs, [StageDevice()] * num_stages)
    return tuple(period * count for count in counts)


def _period(windows: Sequence[int]) -> int:
    """The fewest layers after which windows are the same again: stages of whole periods have pages
    of the same kinds, and so one block table.
    """
    lengths = range(1, len(windows) + 1)
    return next((n for n in lengths if all(map(eq, windows, windows[n:]))), 1)


def _numbers(shape: ModelShape) -> tuple[float, float]:
    """The weights of the head, which may be the embedding's, and of a layer."""
    head = shape.vocab_size * shape.hidden_size
    return head, max(shape.num_params - head, shape.num_layers) / shape.num_layers


def shape_of_stage(shape: ModelShape, stage: int, stage_layers: Sequence[int]) -> ModelShape:
    """The shape of what a stage holds, its weights too. Raises ModelError."""
    _check(shape, len(stage_layers))
    if sum(stage_layers) != shape.num_layers:
        said = f"{shape.num_layers} layers are not those of stages of {[*stage_layers]}"
        raise ModelError(f"{shape.model_type}: {said}")
    own = layers_of(stage, stage_layers)
    head, layer = _numbers(shape)
    ends = (stage == 0) + (stage + 1 == len(stage_layers) and len(stage_layers) > 1)
    part = min(1.0, (ends * head + own.size * layer) / shape.num_params)
    return msgspec.structs.replace(
        shape,
        num_layers=own.size,
        windows=shape.windows[own.first : own.last],
        num_params=-int(-shape.num_params * part),
        packed_params=-int(-shape.packed_params * part),
        packed_bytes=-int(-shape.packed_bytes * part),
    )


def largest_part(shape: ModelShape, spec: InstanceSpec) -> ModelShape:
    """The shape of the worker of an instance that holds the most. Raises ModelError."""
    if num_stages(spec) == 1:
        return largest_share(shape, num_ranks(spec))
    counts = stage_layers(shape, num_stages(spec))
    parts = [shape_of_stage(shape, stage, counts) for stage in range(len(counts))]
    most = max(part.num_layers for part in parts)
    largest = max(parts, key=lambda part: part.num_params)
    return msgspec.structs.replace(largest, num_layers=most)
