"""Layers of pipeline stages: as even as can be, and what each stage holds."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.instance_text import parse_instance
from daemon.config.schema import InstanceSpec
from daemon.memory.layout import NO_KEYS, KVHeads
from daemon.memory.sizing import block_bytes, configured_layout
from daemon.memory.state_layout import SSM, StatePart
from daemon.models.shape import ModelError
from daemon.models.stages import (
    LayerCosts,
    StageDevice,
    given_layers,
    largest_part,
    layers_of,
    rank_of,
    shape_of_stage,
    split_layers,
    stage_layers,
    stage_of,
)
from tests.shapes import tiny_shape

STATE = (StatePart(SSM, 2, 4),)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.data())
def test_no_other_split_that_fits_has_a_faster_slowest_stage(
    layers: list[int], data: st.DataObject
) -> None:
    num_stages = data.draw(st.integers(1, len(layers)))
    ends = data.draw(st.tuples(st.integers(0, 20), st.integers(0, 20)))
    sizes = data.draw(st.tuples(*[st.integers(1, 5)] * len(layers)))
    devices = [
        StageDevice(data.draw(st.integers(1, 4)), data.draw(st.sampled_from([8, 16, math.inf])))
        for _ in range(num_stages)
    ]
    costs = LayerCosts(tuple(layers), sizes, ends, ends_bytes=(2, 3))

    def parts(
        counts: tuple[int, ...], each: Sequence[float], at_ends: Sequence[float]
    ) -> list[float]:
        sums = [sum(each[slice(*layers_of(stage, counts))]) for stage in range(num_stages)]
        sums[0] += at_ends[0]
        sums[-1] += at_ends[1]
        return sums

    def slowest(counts: tuple[int, ...]) -> float:
        times = parts(counts, layers, ends)
        return max(device.slowness * it for device, it in zip(devices, times, strict=True))

    places = combinations(range(1, len(layers)), num_stages - 1)
    every = [tuple(b - a for a, b in pairwise((0, *cut, len(layers)))) for cut in places]
    fit = [
        counts
        for counts in every
        if all(
            it <= device.room_bytes
            for device, it in zip(devices, parts(counts, sizes, (2, 3)), strict=True)
        )
    ]
    if not fit:
        with pytest.raises(ModelError, match="do not fit"):
            split_layers(costs, devices)
        return
    found = split_layers(costs, devices)
    assert found in fit and slowest(found) == min(map(slowest, fit))


def test_cards_of_24_and_12_gb_hold_what_two_of_12_do_not() -> None:
    """32 layers of 0.9 GB: evenly they would need 14.4 GB a card, so the larger one has more."""
    costs = LayerCosts((1.0,) * 32, (0.9,) * 32, ends_bytes=(0.5, 0.5))
    assert split_layers(costs, [StageDevice(1.0, 24.0), StageDevice(1.0, 12.0)]) == (20, 12)
    assert split_layers(costs, [StageDevice(1.0, 22.0), StageDevice(9.0, 64.0)]) == (23, 9)
    with pytest.raises(ModelError, match="32 layers do not fit 2 stages on these devices"):
        split_layers(costs, [StageDevice(1.0, 12.0)] * 2)


@given(st.integers(2, 16))
def test_the_first_rank_has_the_last_stage(num_stages: int) -> None:
    stages = [stage_of(rank, num_stages) for rank in range(num_stages)]
    assert stages == [num_stages - 1, *range(num_stages - 1)]
    assert [rank_of(stage, num_stages) for stage in stages] == list(range(num_stages))


def test_a_stage_holds_its_layers_and_an_end_the_tokens_too() -> None:
    shape = tiny_shape(num_layers=10, num_params=193 * 64 + 10 * 5000)
    assert stage_layers(shape, 2) == (6, 4)
    first, last = (shape_of_stage(shape, stage, (6, 4)) for stage in (0, 1))
    assert (first.num_layers, last.num_layers) == (6, 4)
    assert (first.num_params, last.num_params) == (12352 + 30_000, 12352 + 20_000)
    largest = largest_part(shape, parse_instance("cpu:pp2"))
    assert (largest.num_layers, largest.num_params) == (6, first.num_params)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_inputs": 8}, "its layers read tokens' embeddings beside the states"),
        (
            {"layer_heads": (KVHeads(2, 16), KVHeads(2, 16, 0))},
            "some of its layers read the keys and values of others",
        ),
        (
            {"layer_heads": (KVHeads(2, 16), NO_KEYS), "layer_states": ((), STATE)},
            "1 layers with keys and values cannot be split into 2 stages",
        ),
        ({"num_layers": 1}, "1 layers cannot be split into 2 stages"),
    ],
)
def test_what_cannot_be_split_is_said(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        stage_layers(tiny_shape(**changes), 2)


def test_stages_have_all_layers() -> None:
    with pytest.raises(ModelError, match=r"2 layers are not those of stages of \[2, 1\]"):
        shape_of_stage(tiny_shape(), 0, (2, 1))


def test_stages_have_whole_periods_of_windows() -> None:
    shape = tiny_shape(num_layers=18, num_params=193 * 64 + 18 * 5000)
    assert stage_layers(shape, 2) == (10, 8)
    local = msgspec.structs.replace(shape, windows=(8, 8, 8, 8, 8, 0) * 3)
    assert stage_layers(local, 2) == (12, 6)
    assert shape_of_stage(local, 1, (12, 6)).windows == (8, 8, 8, 8, 8, 0)
    same = msgspec.structs.replace(shape, windows=(8,) * 18)
    assert stage_layers(same, 2) == (10, 8)
    left = msgspec.structs.replace(shape, num_layers=17, windows=local.windows[:17])
    assert stage_layers(left, 2) == (10, 7), "no whole periods"
    states = (STATE, STATE, ()) * 6
    heads = tuple(NO_KEYS if state else KVHeads(2, 16) for state in states)
    mixed = msgspec.structs.replace(shape, layer_states=states, layer_heads=heads)
    assert stage_layers(mixed, 2) == (9, 9)
    assert shape_of_stage(mixed, 1, (9, 9)).layer_states == states[9:]


def test_each_stage_has_a_layer_with_keys() -> None:
    costs = LayerCosts((1.0,) * 6, (1.0,) * 6, has_keys=(True, True, *[False] * 4))
    assert split_layers(costs, [StageDevice()] * 2) == (1, 5)


def test_stages_count_pages_alike_and_the_formula_has_their_padding() -> None:
    """Two windows in one stage and one in the other; the recurrent layer is in the second."""
    heads = (*[KVHeads(2, 16)] * 5, NO_KEYS)
    states = (*[()] * 5, STATE)
    shape = tiny_shape(num_layers=6, windows=(8, 8, 0, 8, 0, 0), layer_heads=heads)
    shape = msgspec.structs.replace(shape, layer_states=states)
    stages = [shape_of_stage(shape, stage, (3, 3)) for stage in (0, 1)]
    layouts = [configured_layout(stage, 16, "float32") for stage in stages]
    assert [layout.windows for layout in layouts] == [(0, 8, 8)] * 2
    assert [layout.state_pages for layout in layouts] == [1, 1]
    assert [[*group.layers] for group in layouts[1].groups] == [[1], [0], []]
    for stage, layout in zip(stages, layouts, strict=True):
        assert block_bytes(stage, 16, "float32") == 3 * layout.page_bytes
    largest = largest_part(shape, parse_instance("cpu:pp2"))
    assert largest.beside and largest.num_params == max(stage.num_params for stage in stages)


def test_an_instance_may_give_the_layers_of_its_stages() -> None:
    shape = tiny_shape(num_layers=10, num_params=193 * 64 + 10 * 5000)
    spec = InstanceSpec("cpu", parallel="pp2", layers=(3, 7))
    assert given_layers(shape, spec) == (3, 7)
    assert largest_part(shape, spec).num_layers == 7
    assert given_layers(shape, parse_instance("cpu:pp2")) == ()
    with pytest.raises(ModelError, match=r"layers = \[3, 8\] are 11 of the 10 layers of"):
        given_layers(shape, InstanceSpec("cpu", parallel="pp2", layers=(3, 8)))
    keyless = tiny_shape(
        num_layers=3,
        layer_heads=(NO_KEYS, KVHeads(2, 16), KVHeads(2, 16)),
        layer_states=(STATE, (), ()),
    )
    with pytest.raises(ModelError, match=r"leave a stage of .* without a layer that has keys"):
        given_layers(keyless, InstanceSpec("cpu", parallel="pp2", layers=(1, 2)))
