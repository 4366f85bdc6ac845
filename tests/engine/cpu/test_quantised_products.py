"""Products with weights in blocks on the CPU, in every way, and unpacking bit for bit."""

import itertools

import gguf
import numpy as np
import pytest
import torch

from daemon.engine.cpu import choose_products as choose_products_module
from daemon.engine.cpu import quantised_calls as calls
from daemon.engine.cpu.block_kinds import reader
from daemon.engine.cpu.choose_products import choose_products, possible
from daemon.engine.cpu.integer_dots import LEAST
from daemon.engine.cpu.matrix_dots import have_matrices
from daemon.engine.cpu.product_implementations import (
    EXACT,
    PANELS,
    ROUNDED,
    SIZES,
    ProductWay,
    ProductWays,
    always,
    key,
)
from daemon.engine.cpu.quantised import QuantisedProduct, StateBuffers, can_multiply, look_up
from daemon.engine.cpu.team import Team
from daemon.engine.quantised.unpack import unpack
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.models.formats import FORMATS
from tests.engine.cpu.older_processors import OLDER, pass_on
from tests.engine.quantised.random_blocks import random_weight

# The sizes of groups differ in nothing but for nibbles. Each kind is compiled anew: one that is
# read much like another waits for the long runs.
LIKE_OTHERS = {"Q3_K", "IQ4_NL", "MXFP4", "fp4/64", "fp4/32"}
LIKE_OTHERS |= {"IQ1_S", "IQ2_XXS", "IQ2_S", "IQ3_XXS", "TQ1_0", "TQ2_0"}
KINDS = [
    pytest.param(name, marks=pytest.mark.soak) if name in LIKE_OTHERS else name
    for name in FORMATS
    if name not in {"int8/128", "int8/32", "fp8/64", "fp8/32"}
]
# What comes behind the reading of blocks is compiled for each format, but the same for these.
SOME = ["F16", "BF16", "Q4_0", "Q8_0", "Q2_K", "Q6_K", "int4/128", "int8/64"]
COUNTS = (1, 2, 3, 5, 8, 33)


pytestmark = pytest.mark.usefixtures("seeded")


def rounded(states: torch.Tensor) -> torch.Tensor:
    """float64: what `daemon.engine.cpu.integer_dots` makes of states float32 [T, K]."""
    chunks = states.unflatten(1, (-1, 32))
    most = chunks.abs().amax(2, keepdim=True)
    top = torch.full_like(most, 127.0)
    scale = torch.where(most < LEAST, 0.0, most / top)
    inverse = torch.where(most < LEAST, 0.0, top / most)  # torch's 127 / most is another number
    integers = torch.round(chunks * inverse)
    return (integers.double() * scale.double()).flatten(1)


def check(way: ProductWay, team: Team, name: str, rows: int, columns: int) -> None:
    """A way against float64, with a bias, for all numbers of tokens."""
    weight, bias = random_weight(name, rows, columns), torch.randn(rows)
    numbers = weight.numbers()
    if way is ProductWay.BFLOAT16_BY_MATRICES:
        numbers = numbers.bfloat16()
    product = QuantisedProduct([weight], bias, team, always([weight], way))
    for count in COUNTS:
        states = torch.randn(count, columns) * 3
        states[0, :32] = 0
        exact = rounded(states) if way in ROUNDED else states.double()
        if way is ProductWay.BFLOAT16_BY_MATRICES:
            exact = states.bfloat16().double()
        expected = exact @ numbers.double().T + bias
        error = (product(states) - expected).abs().max() / expected.abs().max()
        assert error < (2e-2 if way is ProductWay.BFLOAT16_PANEL else 3e-6), (way, name, count)


@pytest.mark.parametrize("name", KINDS)
def test_unpacked_bit_for_bit(name: str, team: Team) -> None:
    weight = random_weight(name, 37, 512)
    expected = unpack(weight.format, weight.data)
    for kind, bits in ((torch.float32, torch.int32), (torch.bfloat16, torch.int16)):
        found = torch.zeros(30, 512, dtype=kind)
        team.run(calls.unpacked(weight, range(5, 35), found))
        assert torch.equal(found.view(bits), expected[5:35].to(kind).view(bits))
    indices = torch.tensor([36, 0, 7, 7], dtype=torch.int32)
    assert torch.equal(look_up(weight, indices, team), expected[indices])
    assert look_up(weight, indices[:0], team).shape == (0, 512)


@pytest.mark.parametrize("name", KINDS)
def test_token_by_token(name: str, team: Team) -> None:
    block_len = max(FORMATS[name].block_len, 32)
    check(ProductWay.FLOATS_SINGLY, team, name, 37, block_len)
    if reader(FORMATS[name]).rounds:
        check(ProductWay.ROUNDED_SINGLY, team, name, 37, 5 * block_len)


@pytest.mark.parametrize("name", SOME)
def test_tokens_together(name: str, team: Team) -> None:
    block_len = max(FORMATS[name].block_len, 32)
    check(ProductWay.FLOATS_TOGETHER, team, name, 35, 5 * block_len)
    check(ProductWay.FLOAT32_PANEL, team, name, 35, block_len)
    check(ProductWay.BFLOAT16_PANEL, team, name, 35, block_len)
    if have_matrices():
        check(ProductWay.BFLOAT16_BY_MATRICES, team, name, 67, 5 * block_len)
    if reader(FORMATS[name]).rounds:
        check(ProductWay.ROUNDED_TOGETHER, team, name, 35, 5 * block_len)


@pytest.mark.soak
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("way", ProductWay)
def test_every_way_of_every_format(name: str, way: ProductWay, team: Team) -> None:
    if way in ROUNDED and not reader(FORMATS[name]).rounds:
        return
    if way is ProductWay.BFLOAT16_BY_MATRICES and not have_matrices():
        return
    for blocks in (1, 9):
        check(way, team, name, 67, blocks * max(FORMATS[name].block_len, 32))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("processor", OLDER)
def test_older_processors(processor: str) -> None:
    pass_on(processor, __file__, "older every_way")


def test_the_smallest_and_largest_powers_of_two(team: Team) -> None:
    weight = random_weight("MXFP4", 16, 512)
    weight.data.view(16, 16, 17)[:, :, 0] = torch.arange(256).view(16, 16)
    found = torch.zeros(16, 512)
    team.run(calls.unpacked(weight, range(16), found))
    kind = gguf.GGMLQuantizationType.MXFP4
    with np.errstate(over="ignore"):
        expected = torch.from_numpy(gguf.dequantize(weight.data.numpy(), kind))
    for numbers in (found, unpack(weight.format, weight.data)):
        assert torch.equal(numbers.view(torch.int32), expected.view(torch.int32))


def test_many_tokens_go_in_several_passes(team: Team) -> None:
    weight = random_weight("Q4_0", 3, 64)
    product = QuantisedProduct([weight], None, team, always([weight], ProductWay.ROUNDED_TOGETHER))
    states = torch.randn(300, 64)
    expected = rounded(states) @ weight.numbers().double().T
    torch.testing.assert_close(product(states).double(), expected, rtol=1e-4, atol=1e-5)


def test_numbers_as_large_and_small_as_they_come(team: Team) -> None:
    weight = random_weight("Q8_0", 4, 64)
    product = QuantisedProduct([weight], None, team, always([weight], ProductWay.ROUNDED_SINGLY))
    states = torch.zeros(35, 64)
    states[0, 3], states[1, 3], states[2, 3] = 1e30, 1e-38, 1e-25
    states[3:].fill_diagonal_(torch.nan)
    found, expected = product(states), rounded(states) @ weight.numbers().double().T
    torch.testing.assert_close(found[:3].double(), expected[:3], rtol=1e-5, atol=0.0)
    assert not found[1].any() and found[3:].isnan().all()


@pytest.mark.parametrize(
    "way", [ProductWay.FLOATS_SINGLY, ProductWay.ROUNDED_TOGETHER, ProductWay.FLOAT32_PANEL]
)
def test_parts_of_several_formats_and_orders(way: ProductWay, team: Team) -> None:
    order = torch.randperm(256).int()
    first, second, third = (
        random_weight(name, rows, 256) for name, rows in (("Q4_0", 5), ("Q6_K", 40), ("Q4_0", 1))
    )
    second = QuantisedWeight(second.format, second.data, second.columns, order)
    weights, bias = [first, second, third], torch.randn(46)
    product = QuantisedProduct(weights, bias, team, always(weights, way))
    assert (product.in_features, product.out_features) == (256, 46)
    states = torch.randn(2, 3, 256)
    exact = rounded if way is ProductWay.ROUNDED_TOGETHER else torch.Tensor.double
    rows = states.flatten(0, 1)
    plain, ordered = exact(rows), exact(rows[:, order])
    expected = torch.cat(
        [
            plain @ first.numbers().double().T,
            ordered @ unpack(second.format, second.data).double().T,
            plain @ third.numbers().double().T,
        ],
        1,
    )
    found = product(states).double()
    torch.testing.assert_close(found, (expected + bias).unflatten(0, (2, 3)), rtol=1e-4, atol=1e-4)
    assert product(states[:, :0]).shape == (2, 0, 46)


def test_calls_of_a_program(team: Team) -> None:
    weights = [random_weight("Q4_0", 40, 64), random_weight("Q8_0", 24, 64)]
    ways = always(weights, ProductWay.ROUNDED_TOGETHER)
    first = QuantisedProduct(weights, None, team, ways)
    second = QuantisedProduct([random_weight("Q4_0", 9, 64, 1)], None, team, ways)
    states, inner, output = torch.randn(3, 64), torch.empty(3, 64), torch.empty(3, 9)
    scratch = StateBuffers(5)
    listed = [first.calls(states, inner, scratch), second.calls(inner, output, scratch)]
    assert [len(one or ()) for one in listed] == [3, 2]  # states are rounded once for two weights
    program = [call for one in listed for call in one or ()]
    for _ in range(3):
        states.copy_(torch.randn(3, 64))
        team.run_calls(program)
        assert torch.equal(output, second(first(states)))
    panel = QuantisedProduct(weights, None, team, always(weights, ProductWay.FLOAT32_PANEL))
    assert panel.calls(states, inner, scratch) is None


@pytest.mark.parametrize("name", KINDS)
def test_one_token_by_itself_gets_what_it_gets_among_seven(name: str, team: Team) -> None:
    """To the bit, though rows are unpacked once for a few of them."""
    if not reader(FORMATS[name]).rounds:
        pytest.skip("its states are not rounded")
    weight = random_weight(name, 37, 5 * max(FORMATS[name].block_len, 32))
    product = QuantisedProduct([weight], None, team, always([weight], ProductWay.ROUNDED_SINGLY))
    states = torch.randn(7, weight.columns)
    assert torch.equal(product(states), torch.cat([product(state[None]) for state in states]))


@pytest.mark.parametrize("name", SOME)
def test_a_token_gets_the_same_numbers_wherever_ways_are_alike(team: Team, name: str) -> None:
    """To the bit, if but one other product rounds states: the next one might round up or down."""
    weight, states = random_weight(name, 70, 512), torch.randn(16, 512)
    found: dict[tuple[ProductWay, int], torch.Tensor] = {}
    for count in (1, 2, 4, 8, 16):
        for way in {*possible(weight, count, True), *possible(weight, count, False)} - PANELS:
            product = QuantisedProduct([weight], None, team, always([weight], way))
            found[way, count] = product(states[:count])
    other = {("Q8_0", 32): (ProductWay.ROUNDED_SINGLY,) * len(SIZES)}
    for (way, count), (second, more) in itertools.combinations(found, 2):
        if count == more:
            continue
        ways = {key(weight): [way if size <= count else second for size in SIZES]}
        same = torch.equal(found[way, count], found[second, more][:count])
        assert ProductWays(ways | other).alike(weight, count, more) == same
        assert ProductWays(ways).alike(weight, count, more) == (same or {way, second} <= EXACT)


def test_the_choice(team: Team) -> None:
    weights = [random_weight("Q4_0", 40, 64), random_weight("F16", 40, 64)]
    for exact in (False, True):
        ways = choose_products(weights, team, exact)
        for weight in weights:
            for size in SIZES:
                assert ways.of(weight, size) in possible(weight, size, exact)
                assert ways.of(weight, size) in EXACT or not exact
            assert ways.of(weight, 1000) is ways.of(weight, SIZES[-1])
            assert ways.of(weight, 5) is ways.of(weight, 8)
    panels = set(PANELS)
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        panels.remove(ProductWay.BFLOAT16_PANEL)
    assert set(possible(weights[0], 8, True) + possible(weights[0], 8, False)) > panels


def test_what_numbers_of_four_bytes_multiply_is_not_rounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choose_products_module, "have_matrices", lambda: True)
    found = {
        name: {way for size in SIZES for way in possible(random_weight(name, 4, 64), size, False)}
        for name in ("F32", "BF16")
    }
    assert found["F32"] <= EXACT and not found["BF16"] <= EXACT


def test_weights_without_kernels_are_refused(team: Team) -> None:
    odd = random_weight("F16", 4, 40)
    assert not can_multiply(odd)
    with pytest.raises(ValueError, match="no product on the CPU for F16 of 40 columns"):
        QuantisedProduct([odd], None, team, ProductWays({}))
