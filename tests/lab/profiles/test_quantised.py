"""Profiles with narrow weights and caches: bytes and times computed by hand."""

import pytest
from msgspec.structs import replace

from daemon.cost.curve import Curve, Surface
from daemon.cost.profile import Operators, PhaseFit, Profile
from daemon.cost.step_cost import step_cost
from daemon.cost.work import StepWork
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.load import load_profile
from daemon.lab.profiles.quantised import quantised, with_narrow_cache
from daemon.lab.simulator.pool import pool_of
from daemon.lab.simulator.scenario import ScenarioError
from daemon.memory.sizing import GPU_RUNTIME_BYTES, block_bytes

TWO_A100 = "llama-2-70b@a100-80g-tp2"
TWO_L40S = "llama-2-70b@l40s-tp2-int4"
PARAMS = 68_976_648_192
ENDS = 2 * 32_000 * 8192  # embedding and head


def small() -> Profile:
    """Reading takes 8 ms; products take 0.1 ms a token, and both hide each other whole."""
    step = Operators(
        tokens_s=Curve((1.0, 80.0, 240.0), (0.008, 0.008, 0.024)),
        prefill_s=Surface((0.0,), (0.0,), ((0.0,),)),
        decode_s=Surface((0.0, 100.0), (0.0, 1000.0), ((0.0, 0.0), (0.001, 0.101))),
        sampled_s=Curve((0.0, 1.0, 16.0), (0.0, 0.0016, 0.0016)),
    )
    return replace(load_profile(TWO_A100), step=step)


@pytest.mark.parametrize(
    ("weights", "layers", "ends"),
    [("int4", 4.5, 8.5), ("int8", 8.5, 8.5), ("fp8", 8.5, 8.5), ("Q4_K_M", 4.84, 4.84)],
)
def test_bytes_of_a_70b(weights: str, layers: float, ends: float) -> None:
    model = load_profile(f"{TWO_A100}-{weights}").model
    expected = int(((PARAMS - ENDS) * layers + ENDS * ends) / 8)
    assert model.num_params == PARAMS and model.weight_bytes("float16") == expected
    assert load_profile(TWO_A100).model.weight_bytes("float16") == 2 * PARAMS


def test_in_4_bits_it_fits_two_cards_of_48_gb_and_leaves_room_for_keys_and_values() -> None:
    profile = load_profile(TWO_L40S)
    weights, total = 39_061_508_608, 2 * 46_068 * 2**20
    assert profile.model.weight_bytes("float16") == weights
    size = pool_of(profile, 0.0, 16, 64, 2048)
    # 80 layers, keys and values, 16 tokens, 8 heads of 128 numbers of two bytes
    assert size.block_bytes == 80 * 2 * 16 * 8 * 128 * 2 == 5_242_880
    activations = 2048 * (16 * 8192 + 2 * (64 + 16) * 128) * 2 + 64 * 32_000 * 12
    unpacked = 2 * 128 * 2**20  # at a time, on each card
    room = int(0.9 * total) - weights - activations - unpacked - 2 * GPU_RUNTIME_BYTES
    assert size.activation_bytes == activations and abs(size.kv_bytes - room) <= 1
    assert size.num_blocks == min(room // 5_242_880, 64 * 256)  # 45.5 GB: 138,000 tokens
    wide = replace(profile, model=load_profile(TWO_A100).model)
    with pytest.raises(ScenarioError, match="tp2-int4"):
        pool_of(wide, 0.0, 16, 64, 2048)


def test_keys_and_values_in_8_bits_take_132_bytes_for_256() -> None:
    narrow = load_profile(f"{TWO_L40S}-kv8")
    size = pool_of(narrow, 0.0, 16, 1024, 2048)
    assert size.block_bytes == 5_242_880 * 132 // 256
    assert size.block_bytes == block_bytes(narrow.model, 16, "float16", "int8")
    wide = pool_of(load_profile(TWO_L40S), 0.0, 16, 1024, 2048)
    assert size.num_blocks == pytest.approx(wide.num_blocks * 256 / 132, rel=1e-3)


def test_a_step_takes_what_it_still_reads_or_computes() -> None:
    cost = step_cost(quantised(small(), "int4").step)
    alone = [StepWork(0, 0, ((tokens, 0),)) for tokens in (1, 10, 40, 80, 160, 240)]
    # 8 ms * 4.5 / 16 are 2.25 ms: as long as 22.5 tokens' products
    expected = [0.00225, 0.00225, 0.004, 0.008, 0.016, 0.024]
    assert [cost.step_s(work) for work in alone] == pytest.approx(expected)
    head = cost.step_s(StepWork(0, 0, ((1, 0),), 1)) - 0.00225
    assert head == pytest.approx(0.0016 * 8.5 / 16)


def test_attention_of_decodes_reads_the_narrow_cache() -> None:
    narrow = with_narrow_cache(small()).step
    assert isinstance(narrow, Operators)
    assert narrow.decode_s(100, 1000) == pytest.approx(0.001 + 0.1 * 132 / 256, rel=1e-4)
    assert narrow.decode_s(100, 0) == pytest.approx(0.001)
    fit = load_profile("opt-13b@a100-80g-kv8").step
    was = load_profile("opt-13b@a100-80g").step
    assert isinstance(fit, PhaseFit) and isinstance(was, PhaseFit)
    assert fit.decode_s == (was.decode_s[0], was.decode_s[1] * 132 / 256, was.decode_s[2])


def test_a_decode_of_a_70b_reads_a_third_and_a_long_prompt_computes_as_before() -> None:
    narrow, wide = (load_profile(f"{TWO_A100}{how}").step for how in ("-int4", ""))
    assert isinstance(narrow, Operators) and isinstance(wide, Operators)
    assert narrow.tokens_s(1) == pytest.approx(wide.tokens_s(1) * 4.5 / 16, rel=1e-4)
    assert narrow.tokens_s(4096) == pytest.approx(wide.tokens_s(4096), rel=1e-4)
    assert narrow.communication_s == wide.communication_s


def test_names_say_all_that_was_derived() -> None:
    both = load_profile(f"{TWO_A100}-Q4_K_M-kv8-pp2")
    assert both.name == f"{TWO_A100}-Q4_K_M-kv8-pp2" and both.model.kv_dtype == "int8"
    assert sum("not measured" in line for line in both.source) == 2


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("opt-13b@a100-80g-int4", "only operators tell what reading the weights takes"),
        (f"{TWO_L40S}-int4", "its weights are quantised already"),
        (f"{TWO_A100}-int5", "unknown profile"),
        (f"{TWO_A100}-kv8-int4", "unknown profile"),
    ],
)
def test_what_cannot_be_derived_is_said(name: str, fault: str) -> None:
    with pytest.raises(ProfileError, match=fault):
        load_profile(name)
