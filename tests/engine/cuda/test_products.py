"""Which way a matrix product is computed on a GPU: chosen by measurement, here by a false one."""

import logging
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from daemon.engine.layers.prepare import prepare_linears
from daemon.engine.model import backend, linear
from daemon.engine.model.linear import packed

pytest.importorskip("triton")

from daemon.engine.cuda import products
from daemon.engine.cuda.candidates import (
    LIBRARY,
    MAX_ROWS,
    SCRATCH_CELLS,
    DeviceRoom,
    candidates,
    new_scratch,
)
from daemon.engine.cuda.meter import ProductCall
from daemon.engine.cuda.product_implementations import (
    Implementation,
    Library,
    Strips,
    Tiles,
    Vector,
)
from daemon.engine.cuda.products import Product, ProductShape, choose_products, spread, summary

H200 = DeviceRoom(processors=132, shared_bytes=232_448, early=True)
SMALL_CARD = DeviceRoom(processors=46, shared_bytes=101_376)
SCRATCH = new_scratch(torch.device("meta"))
SHAPES_8B = [(6144, 4096), (4096, 4096), (28_672, 4096), (4096, 14_336), (128_256, 4096)]
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)


class FalseMeter:
    """Says what it is told to: seconds by the name of a way and the rows that it computes."""

    def __init__(self, seconds: Callable[[str, int], float], broken: Sequence[str] = ()) -> None:
        self.told = seconds
        self.broken = broken

    def usable(
        self,
        way: Implementation,
        states: torch.Tensor,
        weight: Any,
        bias: Any,
        plain: Implementation = LIBRARY,
    ) -> bool:
        return way.name not in self.broken

    def seconds(self, calls: Sequence[ProductCall]) -> float:
        return self.told(calls[0].way.name, len(calls[0].states))


def product(out_features: int = 32, in_features: int = 4096, bias: bool = False) -> Product:
    layer = nn.Linear(in_features, out_features, bias=bias, dtype=torch.bfloat16)
    return Product(layer.weight.requires_grad_(False), layer.bias)


def choose(seconds: Callable[[str, int], float], rows: Sequence[int] = (1, 4, 16), **kwargs):
    one = product()
    meter = FalseMeter(seconds, **kwargs)
    choose_products([one], rows, meter, H200)
    return one


def test_the_fastest_way_is_taken_for_each_number_of_rows() -> None:
    told = {("strip 2 w4", 1): 0.5, ("cublas mv", 1): 0.6, ("strip 4 w4", 4): 0.9}
    one = choose(lambda name, rows: told.get((name, rows), 1.0))
    assert [way.name for way in one.ways] == [
        "cublas",
        "strip 2 w4",
        *["strip 4 w4"] * 3,
        *["cublas"] * 12,
    ]


def test_near_draws_go_to_the_library() -> None:
    assert choose(lambda name, _: 1.0 if name == "cublas" else 0.99).ways[4] == LIBRARY
    assert choose(lambda name, _: 1.0 if name == "cublas" else 0.97).ways[4] != LIBRARY


def test_what_computes_something_else_is_never_taken() -> None:
    fast = {"strip 1 w4": 0.1, "strip 2 w4": 0.2}
    one = choose(lambda name, _: fast.get(name, 1.0), broken=["strip 1 w4"])
    assert one.ways[1].name == "strip 2 w4"


def test_the_library_serves_where_not_even_it_gives_numbers() -> None:
    # Weights that are all zero, or that overflow float16: nothing compares with infinity or NaN.
    assert choose(lambda *_: 1.0, rows=[1], broken=["cublas"]).ways[1] == LIBRARY


def test_a_lucky_first_run_is_not_believed() -> None:
    runs: dict[str, int] = {}

    def seconds(name: str, rows: int) -> float:
        runs[name] = runs.get(name, 0) + 1
        return 0.1 if name == "strip 1 w4" and runs[name] == 1 else 1.0

    assert choose(seconds, rows=[1]).ways[1] == LIBRARY


def test_shapes_are_measured_apart_and_others_left_alone() -> None:
    plain = nn.Linear(4096, 32)
    twins, other, biased = [product(), product()], product(64), product(bias=True)
    meter = FalseMeter(lambda name, _: 0.5 if name == "strip 1 w4" else 1.0)
    chosen = choose_products([*twins, plain, other, biased], [1], meter, H200)
    assert set(chosen) == {ProductShape.of(one) for one in (twins[0], other, biased)}
    assert twins[0].ways == twins[1].ways and twins[0].ways[1].name == "strip 1 w4"
    assert choose_products([plain], [1], meter, H200) == {}


def test_weights_take_turns_while_they_are_measured() -> None:
    layers = [product() for _ in range(3)]
    seen: list[int] = []

    class Watching(FalseMeter):
        def seconds(self, calls: Sequence[ProductCall]) -> float:
            seen.extend(call.weight.data_ptr() for call in calls[:4])
            return 1.0

    choose_products(layers, [1], Watching(lambda *_: 1.0), H200)
    addresses = [layer.weight.data_ptr() for layer in layers]
    assert seen[:4] == [*addresses, addresses[0]]


def test_measuring_calls_no_norm_that_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    class Running(FalseMeter):
        def seconds(self, calls: Sequence[ProductCall]) -> float:
            assert calls[0].before is not None
            calls[0].before()
            return 1.0

    measured = partial(choose_products, meter=Running(lambda *_: 1.0), room=H200)
    monkeypatch.setattr(products, "choose_products", measured)
    monkeypatch.setattr(products, "add_norm", None)
    forward = SimpleNamespace(products=lambda: [one])
    one = product()
    slots: Any = SimpleNamespace(block_table=[None] * 2)
    cache: Any = SimpleNamespace(num_groups=1, latent=0, state_pages=0)
    by_torch = frozenset({"norm", "decode"})
    backend.choose_backend(torch.device("cuda:0"), torch.bfloat16, by_torch=by_torch).compile(
        cast("Any", forward), cache, slots
    )
    assert len(one.ways) == 3


@pytest.mark.parametrize("bias", [False, True])
def test_the_library_computes_what_was_not_measured(bias: bool) -> None:
    one = product(24, 64, bias)
    one.ways = (LIBRARY, Vector(), LIBRARY)
    for shape in [(0, 64), (1, 64), (2, 64), (3, 64), (1, 2, 64), (2, 1, 64)]:
        states = torch.randn(shape).bfloat16()
        expected = nn.functional.linear(states, one.weight, one.bias)
        assert one(states).shape == expected.shape
        torch.testing.assert_close(one(states), expected, atol=0.05, rtol=0.02)
    wide = torch.randn(2, 128).bfloat16()[:, ::2]
    assert torch.equal(one(wide), nn.functional.linear(wide, one.weight, one.bias))


def test_rows_between_measured_ones_are_computed_as_the_larger() -> None:
    small, large = Vector(), Library("other")
    assert spread({1: small, 4: large}) == (LIBRARY, small, large, large, large)


def test_candidates_fill_the_card_and_fit_it() -> None:
    for room in (H200, SMALL_CARD):
        for out_features, in_features in SHAPES_8B:
            for rows in ROWS:
                ways = candidates(rows, out_features, in_features, room, SCRATCH)
                assert ways[0] == LIBRARY
                assert len({way.name for way in ways}) == len(ways) <= 32
                tiles = [way for way in ways if isinstance(way, Tiles)]
                assert tiles or rows > 64
                for way in tiles:
                    along_rows, along_outputs = way.tile.count(rows, out_features)
                    programs = along_rows * along_outputs * way.splits
                    assert programs >= 0.6 * room.processors
                    assert way.tile.shared_bytes <= room.shared_bytes
                    cells = programs * way.tile.rows * way.tile.outputs
                    assert way.splits == 1 or cells <= SCRATCH_CELLS
                assert any(isinstance(way, Strips) for way in ways) == (rows <= 4)


def test_no_kernels_of_ours_where_loads_could_not_be_wide() -> None:
    for rows, in_features in ((1, 4100), (16, 4104)):
        ways = candidates(rows, 4096, in_features, H200, SCRATCH)
        assert not [way for way in ways if isinstance(way, Strips | Tiles)]


def test_many_rows_are_not_measured() -> None:
    measured = set()
    one = choose(lambda _, rows: measured.add(rows) or 1.0, rows=[0, 3, 24, 200, MAX_ROWS + 1])
    assert measured == {4, 32, 256}
    assert len(one.ways) == MAX_ROWS + 1


def test_the_log_says_in_one_line_what_was_chosen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "daemon.engine.cuda.products")
    choose(lambda name, rows: 0.5 if name == "strip 1 w4" and rows == 1 else 1.0)
    assert len(caplog.records) == 1
    assert "32x4096: 1 strip 1 w4, 4-16 cublas" in caplog.messages[0]
    assert summary({}) == ""


def on_a_gpu(layer: nn.Linear) -> nn.Linear:
    """The layer with a weight that claims to lie on a GPU."""
    with FakeTensorMode():
        weight = torch.empty(layer.weight.shape, dtype=layer.weight.dtype, device="cuda")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer


def test_linear_layers_of_a_gpu_become_products_over_their_own_weights() -> None:
    layer = on_a_gpu(nn.Linear(64, 32, dtype=torch.bfloat16))
    one = packed(layer, keep_plain=True)
    assert isinstance(one, Product)
    assert set(map(id, one.parameters(recurse=False))) == {id(layer.weight), id(layer.bias)}
    whole = nn.Sequential(on_a_gpu(nn.Linear(64, 32, dtype=torch.float16)), nn.ReLU())
    prepare_linears(whole, partial(packed, keep_plain=True))
    assert isinstance(whole[0], Product)
    single = on_a_gpu(nn.Linear(64, 32))
    assert packed(single, keep_plain=True) is single


def test_linear_layers_stay_where_triton_cannot_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As where it is installed and lacks what kernels import.
    monkeypatch.setitem(sys.modules, "daemon.engine.cuda.products", None)
    linear._product_type.cache_clear()
    layer = on_a_gpu(nn.Linear(64, 32, dtype=torch.bfloat16))
    assert packed(layer, keep_plain=True) is layer
    linear._product_type.cache_clear()


def test_linear_layers_of_a_cpu_are_no_products() -> None:
    layer = nn.Linear(8, 4, dtype=torch.float16)
    assert packed(layer, keep_plain=False) is layer
