"""Profiles of mixtures with experts in host memory: bytes and times computed by hand."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from daemon.cost.curve import Curve, Surface
from daemon.cost.experts_below import HOST_S
from daemon.cost.profile import DeviceSpec, Operators, Profile
from daemon.cost.step_cost import step_cost
from daemon.cost.work import StepWork
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.experts_in_ram import with_experts_in_ram
from daemon.lab.profiles.load import load_profile, save_profile
from daemon.lab.simulator.pool import pool_of
from daemon.memory.experts import ExpertShape

GIB = 1 << 30
LAYERS = 8
EXPERTS = ExpertShape(
    num_layers=LAYERS,
    count=8,
    chosen=2,
    num_params=4 * GIB,
    packed_params=0,
    packed_bytes=0,
)
DEVICE = DeviceSpec(
    name="card",
    memory_bytes=24 * GIB,
    bandwidth_bytes_per_s=500e9,
    ram_bytes_per_s=50e9,
    ram_flops=1e12,
)


def mixture() -> Profile:
    """5 GiB of numbers of two bytes, of which one is shared by all tokens; 40 ms a step."""
    base = load_profile("llama-3-8b@a100-80g")
    step = Operators(
        tokens_s=Curve((1.0, 1024.0), (0.040, 0.040)),
        prefill_s=Surface((0.0,), (0.0,), ((0.0,),)),
        decode_s=Surface((0.0,), (0.0,), ((0.0,),)),
    )
    model = replace(
        base.model, name="mixture", num_layers=LAYERS, num_params=5 * GIB, experts=EXPERTS
    )
    return replace(base, name="mixture@card", model=model, device=DEVICE, step=step)


def test_a_step_reads_the_experts_of_both_sides_at_once() -> None:
    half = with_experts_in_ram(mixture(), LAYERS // 2)
    assert half.name == "mixture@card-ram4" and half.model.num_params == 3 * GIB
    # Of 8 GiB of experts a token reads 2, and 2 of those that all tokens read.
    alone_s = 0.040 * 2 / (2 + 2)
    below_s = 0.5 * 2 * GIB / 50e9  # which is longer than the half that the device reads
    expected = 0.040 - alone_s + below_s + 2 * LAYERS * HOST_S
    decode = step_cost(half.step).step_s(StepWork(1, 100))
    assert decode == pytest.approx(expected, rel=1e-3)
    prompt = step_cost(half.step).step_s(StepWork(0, 0, ((1024, 0),)))
    computed_s = 0.5 * 1024 * 2 * 4 * GIB * (2 / 8) / 1e12
    assert prompt == pytest.approx(0.040 - 0.032 + computed_s + 2 * LAYERS * HOST_S, rel=1e-3)


def test_the_device_has_room_for_more_keys_and_values() -> None:
    sizes = [
        pool_of(profile, 0.0, 16, 512, 2048).kv_bytes
        for profile in (mixture(), with_experts_in_ram(mixture(), LAYERS))
    ]
    assert sizes[1] - sizes[0] == pytest.approx(8 * GIB, abs=2)


def test_a_simulation_and_its_profile_name_experts_in_host_memory(tmp_path: Path) -> None:
    path = tmp_path / "mixture.json"
    save_profile(mixture(), path)
    assert load_profile(f"{path}-ram8") == with_experts_in_ram(load_profile(str(path)), 8)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": replace(mixture().model, experts=None)}, "has no experts that host memory"),
        ({"device": replace(DEVICE, ram_flops=0.0)}, "does not say how fast"),
        ({}, "it has 8 layers with experts, and not 9"),
    ],
)
def test_what_a_profile_does_not_tell_is_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ProfileError, match=said):
        with_experts_in_ram(replace(mixture(), **changes), LAYERS + 1 if not changes else LAYERS)
