"""A step's limit, against numbers worked out by hand for Llama 3 8B on 4.3 TB/s and 780 TFLOP/s."""

import pytest

from benchmarks.gpu.speed.limits import (
    LLAMA_3_8B,
    Limits,
    Row,
    decode_rows,
    operators,
    prefill_steps,
    step_limit_s,
)

LIMITS = Limits(4.3e12, 780e12)


def test_weights_and_tokens_in_bytes() -> None:
    # 32 layers of 4096 x (6144 + 4096 + 28672) and 14336 x 4096, and 4096 x 128256, two bytes each.
    assert LLAMA_3_8B.weight_bytes == 2 * (32 * (4096 * 38_912 + 14_336 * 4096) + 4096 * 128_256)
    assert LLAMA_3_8B.token_bytes() == 131_072
    assert LLAMA_3_8B.token_bytes(1) == 32 * 2 * 8 * (128 + 4)


@pytest.mark.parametrize(
    ("batch", "bandwidth_alone", "limit"),
    # At 256 rows the products are bound by arithmetic: 4.9 ms instead of the weights' 3.5.
    [(1, 284, 284), (32, 7_126, 7_123), (128, 17_090, 17_073), (256, 22_282, 19_784)],
)
def test_decode_of_a_thousand_tokens(batch: int, bandwidth_alone: int, limit: int) -> None:
    work = operators(LLAMA_3_8B, decode_rows(batch, 1024))
    moved = sum(one.weight_bytes + one.kv_bytes for one in work)
    assert round(batch * LIMITS.bytes_per_s / moved) == bandwidth_alone
    assert round(batch / step_limit_s(work, LIMITS)) == limit
    assert step_limit_s(work, LIMITS, passed=True) > step_limit_s(work, LIMITS)


def test_8_bit_keys_and_values_at_256_rows() -> None:
    plain, small = (
        step_limit_s(operators(LLAMA_3_8B, decode_rows(256, 1024), size), LIMITS) for size in (2, 1)
    )
    assert plain / small == pytest.approx(1.427, abs=1e-3)


def test_a_prompt_is_bound_by_arithmetic() -> None:
    (rows,) = prefill_steps(4096, 8192)
    work = {one.name: one for one in operators(LLAMA_3_8B, rows)}
    layer = 4096 * 38_912 + 14_336 * 4096
    products = sum(work[name].operations for name in ("qkv", "output", "gate_up", "down"))
    assert products == 2 * 4096 * 32 * layer
    # Queries times keys and weights times values, 32 heads of 128, each token all up to itself.
    assert work["attention"].operations == 32 * 4 * 32 * 128 * (4096 * 4097 // 2)
    assert work["head"].operations == 2 * 4096 * 128_256  # of the last token alone
    total_s = step_limit_s(list(work.values()), LIMITS)
    assert total_s == pytest.approx(0.0793, abs=1e-4)


def test_chunks_of_a_prompt() -> None:
    steps = list(prefill_steps(20_000, 8192))
    assert [row for (row,) in steps] == [
        Row(0, 8192, sampled=False),
        Row(8192, 8192, sampled=False),
        Row(16_384, 3616, sampled=True),
    ]
    head = {one.name: one for one in operators(LLAMA_3_8B, steps[0])}["head"]
    assert head.weight_bytes == head.operations == 0
    assert sum(row.pairs for (row,) in steps) == 20_000 * 20_001 // 2
