"""Which devices serve where none is named: by generation, memory, and what others keep."""

from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daemon.config.cuda import Card, Devices
from daemon.config.find import LEAST_CONTEXT, Found, Needs, choose, find, needs_of, released
from daemon.config.instances import shared_limits
from daemon.config.load import load
from daemon.config.pool import demand_of, plan_pool
from daemon.memory.sizing import Room, SizingError, size_pool
from tests.shapes import LLAMA_3_8B

GIB = 1 << 30
NEEDS = Needs(weight_bytes=14 * GIB, work_bytes=2 * GIB, kv_bytes=1 * GIB, utilization=0.9)


def card(
    name: str, gib: float, in_use_gib: float = 0.0, capability: tuple[int, int] = (9, 0)
) -> Card:
    total_bytes = int(gib * GIB)
    return Card(f"NVIDIA {name}", "", capability, total_bytes, total_bytes - int(in_use_gib * GIB))


H100, L4, L40 = card("H100", 80), card("L4", 24, 0.5, (8, 9)), card("L40", 48, 0.0, (8, 9))
RTX_3070, T4 = card("RTX 3070", 8, 0.0, (8, 6)), card("T4", 32, 0.0, (7, 5))
B200 = card("B200", 180, 0.0, (10, 0))


def chosen(found: Found) -> list[str]:
    assert all(spec.role == "mixed" and spec.name for spec in found.instances)
    return [spec.device for spec in found.instances]


def faults(found: Found) -> list[str]:
    return [one.fault for one in found.candidates]


def test_every_card_that_can_serves_and_none_is_passed_over() -> None:
    found = choose(Devices((H100,)), NEEDS)
    assert chosen(found) == ["cuda:0"] and found.why_cpu == ""
    assert list(found.lines()) == [
        "cuda:0 (NVIDIA H100) serves: needs 17.00 GiB, has 72.00 GiB of 80.00 GiB "
        "(memory.utilization = 0.9)"
    ]
    found = choose(Devices((H100, L4, L40, H100)), NEEDS)
    assert chosen(found) == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert [spec.name for spec in found.instances] == ["cuda0", "cuda1", "cuda2", "cuda3"]


def test_a_card_that_is_too_small_is_named_and_the_others_serve() -> None:
    found = choose(Devices((RTX_3070, L4)), NEEDS)
    assert chosen(found) == ["cuda:1"] and found.why_cpu == ""
    assert str(found.candidates[0]) == (
        "cuda:0 (NVIDIA RTX 3070) does not serve: too little memory: needs 17.00 GiB, has 7.20 GiB "
        "of 8.00 GiB (memory.utilization = 0.9)"
    )


@pytest.mark.parametrize(
    ("one", "torch_cuda", "fault"),
    [
        (
            T4,
            (13, 0),
            "not supported: its compute capability is 7.5, and llmd's kernels need 8.0 or higher",
        ),
        (
            B200,
            (12, 6),
            "not supported: its compute capability is 10.0, and torch's build for CUDA 12.6 ends "
            "below 10.0: driver 580 and `make venv TORCH=cuda` bring one that does not",
        ),
        (B200, (12, 8), ""),
        (B200, (13, 0), ""),
        (B200, None, ""),
        (H100, (12, 6), ""),
    ],
)
def test_a_generation_needs_kernels_of_llmd_s_and_of_torch_s(
    one: Card, torch_cuda: tuple[int, int] | None, fault: str
) -> None:
    found = choose(Devices((L40, one), torch_cuda=torch_cuda), NEEDS)
    assert faults(found) == ["", fault]
    assert chosen(found) == (["cuda:0"] if fault else ["cuda:0", "cuda:1"])


def test_a_card_that_others_use_is_taken() -> None:
    busy = card("H100", 80, 70)
    kept = msgspec.structs.replace(H100, taken="another process has it to itself")
    found = choose(Devices((busy, kept, H100)), NEEDS)
    assert chosen(found) == ["cuda:2"]
    assert faults(found) == [
        "taken: other programs hold 70.00 GiB of its memory: needs 17.00 GiB, has 2.00 GiB of "
        "80.00 GiB (memory.utilization = 0.9)",
        "taken: another process has it to itself",
        "",
    ]


def test_what_a_daemon_holds_comes_free_when_another_takes_its_place() -> None:
    busy = card("H100", 80, 70)
    alone = msgspec.structs.replace(busy, taken="another process has it to itself")
    devices = released(Devices((busy, alone, busy)), ["cuda:0", "cuda:1", "cpu"])
    assert chosen(choose(devices, NEEDS)) == ["cuda:0", "cuda:1"]


def test_where_free_memory_is_unknown_all_of_it_counts() -> None:
    unknown = msgspec.structs.replace(L4, free_bytes=None)
    small = msgspec.structs.replace(RTX_3070, free_bytes=None)
    found = choose(Devices((unknown, small)), NEEDS)
    assert chosen(found) == ["cuda:0"]


@pytest.mark.parametrize(
    ("devices", "why"),
    [
        (Devices(fault="there is no NVIDIA driver here"), "there is no NVIDIA driver here"),
        (Devices((H100,), "torch is built without CUDA"), "torch is built without CUDA"),
        (Devices((T4,)), "the one GPU here cannot serve this model: not supported"),
        (
            Devices((T4, RTX_3070, T4)),
            "none of the 3 GPUs here can serve this model: not supported, too little memory",
        ),
    ],
)
def test_without_a_card_that_can_the_cpu_serves_and_says_why(devices: Devices, why: str) -> None:
    found = choose(devices, NEEDS)
    assert chosen(found) == ["cpu"] and found.why_cpu == why
    lines = list(found.lines())
    assert lines[-1] == f"the CPU serves: {why}"
    assert len(lines) == 1 + (0 if devices.fault else len(devices.cards))


def config(**settings: Any) -> Any:
    return load(None, {key.replace("__", "."): value for key, value in settings.items()}).config


def test_devices_that_are_named_are_taken_as_they_are() -> None:
    named = config(instance=[{"device": "cpu"}, {"device": "cuda:1"}])
    assert find(named, LLAMA_3_8B, Devices((T4, T4))) == Found(named.instance)
    assert chosen(find(config(), LLAMA_3_8B, Devices((T4, H100)))) == ["cuda:1"]


LONG = msgspec.structs.replace(LLAMA_3_8B, context_len=131_072)


def test_a_card_that_is_too_small_for_the_model_s_context_beats_a_cpu() -> None:
    found = find(config(), LONG, Devices((L4, RTX_3070)))
    assert chosen(found) == ["cuda:0"] and found.why_cpu == ""
    tokens = found.candidates[0].tokens
    assert 8192 < tokens < 131_072
    assert f"serves: contexts of up to {tokens:,} tokens; for the model's own it needs 3" in str(
        found.candidates[0]
    )
    assert chosen(find(config(model__max_len=tokens), LONG, Devices((L4,)))) == ["cuda:0"]
    assert chosen(find(config(model__max_len=tokens + 1), LONG, Devices((L4,)))) == ["cpu"]


def test_it_stands_back_where_another_holds_the_whole_context() -> None:
    found = find(config(), LONG, Devices((L4, H100)))
    assert chosen(found) == ["cuda:1"]
    said = found.candidates[0].fault.rpartition("it would do for model.max_len = ")[2]
    assert int(said) == found.candidates[0].tokens > 8192


def test_where_no_context_is_whole_much_shorter_ones_stay_out() -> None:
    cards = (card("near", 24.0), card("full", 24.0, 0.5), card("less", 18.5))
    found = find(config(), LONG, Devices(cards))
    tokens = [one.tokens for one in found.candidates]
    assert tokens[0] > tokens[1] > tokens[0] / 2 > tokens[2] > 0
    assert chosen(found) == ["cuda:0", "cuda:1"]
    useless = card("useless", 17.4)
    found = find(config(), LONG, Devices((useless,)))
    assert chosen(found) == ["cpu"] and found.candidates[0].tokens < LEAST_CONTEXT


def test_a_pool_of_a_size_that_was_asked_for_need_not_hold_a_full_context() -> None:
    assert chosen(find(config(memory__kv_blocks=64), LONG, Devices((L4,)))) == ["cuda:0"]
    found = find(config(memory__kv_bytes=9 * GIB), LONG, Devices((L4,)))
    assert chosen(found) == ["cpu"]
    assert found.candidates[0].fault.startswith("too little memory: needs 25.")


def test_fp8_needs_a_later_generation() -> None:
    a100 = card("A100", 80, 0.0, (8, 0))
    found = find(config(memory__kv_dtype="fp8"), LLAMA_3_8B, Devices((a100, L40)))
    assert chosen(found) == ["cuda:1"]
    assert 'compute capability is 8.0, and memory.kv_dtype = "fp8" needs 8.9' in faults(found)[0]
    assert chosen(find(config(memory__kv_dtype="int8"), LLAMA_3_8B, Devices((a100,)))) == ["cuda:0"]


@example(total_mib=34_494, in_use_share=0.0, context_len=4097, utilization=0.5)
@given(
    total_mib=st.integers(1024, 100 * 1024),
    in_use_share=st.floats(0.0, 1.0),
    context_len=st.integers(1, 131_072),
    utilization=st.sampled_from((0.5, 0.9, 1.0)),
)
def test_it_fits_where_the_formula_has_a_pool_for_a_full_context(
    total_mib: int, in_use_share: float, context_len: int, utilization: float
) -> None:
    settings = config(memory__utilization=utilization)
    model = msgspec.structs.replace(LLAMA_3_8B, context_len=context_len)
    total_bytes = total_mib << 20
    free_bytes = total_bytes - int(in_use_share * total_bytes)
    devices = Devices((Card("NVIDIA", "", (9, 0), total_bytes, free_bytes),))
    room = Room(
        weight_bytes=model.weight_bytes("bfloat16"),
        total_bytes=total_bytes,
        free_bytes=free_bytes,
        is_cpu=False,
        utilization=utilization,
    )
    demand = demand_of(settings, model, "bfloat16", shared_limits(settings))

    def fits(tokens: int) -> bool:
        try:
            size_pool(model, msgspec.structs.replace(demand, required_len=tokens), room)
        except SizingError:
            return False
        return True

    found = choose(devices, needs_of(settings, model))
    (one,) = found.candidates
    # Without the whole, it serves with what fits of it, if that is of any use.
    whole, of_use = fits(context_len), one.tokens >= LEAST_CONTEXT
    assert chosen(found) == (["cuda:0"] if whole or of_use else ["cpu"])
    assert not (whole and one.tokens) and (not one.tokens or fits(one.tokens))
    if not found.why_cpu:
        served = msgspec.structs.replace(settings, instance=found.instances)
        plan = plan_pool(served, model, found.instances[0], devices)
        assert plan.size is not None and plan.size.max_len == (one.tokens or context_len)
