"""The compiled kernels compute what plain torch does."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.functional import linear, rms_norm

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.cpu import calls, choose_linear, kernels
from daemon.engine.cpu.kernels import run_program
from daemon.engine.cpu.packed_linear import PackedLinear
from daemon.engine.cpu.team import Team, table_of
from daemon.engine.cuda.triton import reference
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import AttentionVariant
from daemon.engine.layers.attention_torch import TorchAttention
from daemon.engine.layers.ops import Norm
from daemon.engine.model.backend import choose_backend, torch_backend
from daemon.wire.columns import int32

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-5, atol=1e-5)


def test_float32_on_the_cpu_is_compiled_and_the_rest_is_not() -> None:
    assert choose_backend(CPU, torch.float32).name == "numba"
    assert choose_backend(CPU, torch.bfloat16).name == "torch"


@pytest.mark.parametrize("count", [1, 7, 300])
def test_small_operations(count: int) -> None:
    ours, theirs = choose_backend(CPU, torch.float32).ops, torch_backend().ops
    states, added, weight = torch.randn(count, 80), torch.randn(count, 80), torch.randn(80)
    other, norm = states.clone(), Norm(weight, 1e-5)
    assert close(ours.norm(states, added, norm), theirs.norm(other, added, norm))
    assert close(states, other)
    assert close(ours.norm(states, None, norm), rms_norm(states, (80,), weight, 1e-5))
    assert close(ours.silu_mul(states * 20), theirs.silu_mul(states * 20))
    assert close(ours.gelu_mul(states * 20), theirs.gelu_mul(states * 20))
    other, of_added = states.clone(), Norm(torch.randn(80), 1e-3)
    assert close(
        ours.norm(states, added, norm, of_added), theirs.norm(other, added, norm, of_added)
    )
    assert close(states, other)
    wide = torch.randn(count, 6, 16)
    other = wide.clone()
    cos, sin, weight = torch.randn(count, 12), torch.randn(count, 12), torch.randn(16)
    for ops, heads in ((ours, wide[:, 1:5]), (theirs, other[:, 1:5])):
        ops.rotate(heads, cos, sin)
        ops.turn_pairs(heads[..., 4:], cos, sin)
        ops.norm_heads(heads, Norm(weight, 1e-6))
    assert close(wide, other)


@pytest.mark.parametrize("count", [1, 2, 4, 7, 9])
@pytest.mark.parametrize("columns", [3, 32, 70])
@pytest.mark.parametrize("biased", [False, True])
def test_products(count: int, columns: int, biased: bool) -> None:
    states, weight = torch.randn(count, 37), torch.randn(columns, 37)
    bias = torch.randn(columns) if biased else None
    output = torch.full((count, columns), torch.nan)
    Team(run_program).run(calls.linear(weight, bias, states, output))
    expected = linear(states, weight, bias)
    assert close(output, expected)
    if count == 1:
        output.fill_(torch.nan)
        Team(run_program).run(calls.linear(weight, bias, states, output, waited_longest=True))
        assert close(output, expected)
    for keep_plain in (False, True):
        with torch.inference_mode():
            product = PackedLinear(weight, bias, keep_plain)(states.unsqueeze(0))[0]
        assert close(product, expected)


def test_a_program_s_calls_wait_for_each_other() -> None:
    team = Team(run_program)
    weights = [torch.randn(256, 256) / 16 for _ in range(20)]
    states = [torch.randn(3, 256), *(torch.empty(3, 256) for _ in weights)]
    table = table_of(
        [
            calls.linear(weight, None, states[index], states[index + 1])
            for index, weight in enumerate(weights)
        ]
    )
    expected = states[0]
    for weight in weights:
        expected = linear(expected, weight)
    for _ in range(50):
        states[-1].zero_()
        team.run_program(table)
        assert close(states[-1], expected)


def test_weights_are_read_in_turn_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    team, weights = Team(run_program), [torch.randn(70, 64), torch.randn(64, 37)]
    now_s = 0.0

    def run_program_of(seconds: dict[int, float]) -> Callable[[np.ndarray], None]:
        def run(table: np.ndarray) -> None:
            nonlocal now_s
            now_s += seconds[int(table[0, 3])]
            Team.run_program(team, table)

        return run

    monkeypatch.setattr(choose_linear.time, "perf_counter", lambda: now_s)
    for in_turn_s, faster in ((0.5, True), (2.0, False)):
        seconds = {kernels.IN_TURN: in_turn_s, kernels.LINEAR: 1.0}
        monkeypatch.setattr(team, "run_program", run_program_of(seconds))
        assert choose_linear.reads_in_turn(weights, team) is faster


@pytest.mark.parametrize("heads", [(4, 2, 16), (6, 6, 64), (9, 3, 64), (8, 1, 80), (4, 4, 128)])
def test_attention_over_pages(heads: tuple[int, int, int]) -> None:
    num_heads, num_kv_heads, head_dim = heads
    caches = [PagedKV(32, 2, 8, num_kv_heads, head_dim, torch.float32, CPU) for _ in range(2)]
    caches[0].blocks.normal_()
    caches[1].blocks.copy_(caches[0].blocks)
    batch = batch_of(starts=[0, 7, 8, 30, 5, 0], counts=[1, 1, 1, 1, 9, 6], block_size=8)
    total = len(batch.tokens)
    # Slices of one merged projection: rows lie apart.
    merged = torch.randn(total, num_heads + 2 * num_kv_heads, head_dim)
    query, key, value = merged.split((num_heads, num_kv_heads, num_kv_heads), 1)
    ours = choose_backend(CPU, torch.float32).attend(batch, caches[0])
    theirs = TorchAttention(batch, caches[1])
    for layer in (1, 0):
        expected = theirs(layer, query, key, value, 0.3)
        assert close(ours(layer, query, key, value, 0.3), expected)
        # As transformers gives them: heads before tokens.
        turned = [s.transpose(0, 1).contiguous().transpose(0, 1) for s in (query, key, value)]
        assert close(ours(layer, turned[0], turned[1], turned[2], 0.3), expected)
    assert torch.equal(caches[0].blocks, caches[1].blocks)


@pytest.mark.parametrize("window", [0, 1, 5, 8, 300])
@pytest.mark.parametrize("cap", [0.0, 4.0])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("kv_dtype", [None, torch.int8])
def test_variants_of_attention(
    window: int, cap: float, with_sinks: bool, head_dim: int, kv_dtype: torch.dtype | None
) -> None:
    sizes = 2, 8, 2, head_dim, torch.float32, CPU, kv_dtype
    batch = batch_of(starts=[0, 7, 8, 30, 5, 0], counts=[1, 1, 1, 1, 9, 300], block_size=8)
    num_blocks = int(batch.block_tables.max()) + 1
    caches = [PagedKV(num_blocks, *sizes) for _ in range(2)]
    everywhere = torch.arange(num_blocks * 8)
    for layer in range(2):
        before = torch.randn(2, len(everywhere), 2, head_dim)
        for cache in caches:
            cache.write(layer, cache.row_of(everywhere // 8, everywhere % 8), *before)
    variant = AttentionVariant(window, cap, torch.randn(6) * 3 if with_sinks else None)
    count = len(batch.tokens)
    query, key, value = (torch.randn(count, heads, head_dim) * 2 for heads in (6, 2, 2))
    attentions = (
        TorchAttention(batch, caches[0]),
        choose_backend(CPU, torch.float32).attend(batch, caches[1]),
    )
    plain, found = (attend(1, query, key, value, 0.3, variant) for attend in attentions)
    for row, (start, rows) in enumerate(zip(batch.starts, batch.counts, strict=True)):
        table = torch.from_numpy(batch.block_tables[row])
        tokens = slice(int(batch.row_offsets[row]), int(batch.row_offsets[row] + rows))
        keys, values = reference.gather(
            caches[0].blocks, caches[0].scales, 1, table, int(start + rows)
        )
        expected = reference.attend(query[tokens], keys, values, int(start), 0.3, variant)
        assert close(plain[tokens], expected)
        assert close(found[tokens], expected)


@pytest.mark.parametrize("name", ["numba", "torch"])
def test_what_another_left_in_a_block_reaches_no_answer(name: str) -> None:
    backend = torch_backend() if name == "torch" else choose_backend(CPU, torch.float32)
    clean = PagedKV(48, 2, 8, 2, 16, torch.float32, CPU)
    clean.blocks.normal_()
    batch = batch_of(starts=[0, 7, 8, 30, 5, 0], counts=[1, 1, 1, 1, 9, 6], block_size=8)
    soiled = PagedKV(48, 2, 8, 2, 16, torch.float32, CPU)
    soiled.blocks.fill_(torch.nan)
    for table, start in zip(batch.block_tables, batch.starts, strict=True):
        for position in range(start):
            cell = int(table[position // 8]), slice(None), slice(None), position % 8
            soiled.blocks[cell] = clean.blocks[cell]
    query, key, value = (torch.randn(len(batch.tokens), heads, 16) for heads in (4, 2, 2))
    expected = backend.attend(batch, clean)(1, query, key, value, 0.3)
    assert torch.equal(backend.attend(batch, soiled)(1, query, key, value, 0.3), expected)


def batch_of(starts: list[int], counts: list[int], block_size: int) -> FlatBatch:
    """Rows whose blocks are scattered over the pool and do not overlap."""
    used = max(s + c for s, c in zip(starts, counts, strict=True)) // block_size + 1
    tables = np.random.default_rng(0).permutation(len(starts) * used).astype(np.int32)
    tables = tables.reshape(len(starts), used)
    rows = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    offsets = ends - np.array(counts)
    positions = np.array(starts)[rows] + np.arange(ends[-1]) - offsets[rows]
    return FlatBatch(
        tokens=np.zeros(ends[-1], np.int64),
        own_tokens=np.zeros(0, np.int64),
        own_slots=np.zeros(0, np.int64),
        slots=int32(range(len(counts))),
        positions=positions,
        blocks=tables[rows, positions // block_size].astype(np.int64),
        offsets=positions % block_size,
        row_offsets=int32(offsets),
        starts=int32(starts),
        counts=int32(counts),
        block_tables=tables,
        single_rows=np.flatnonzero(np.array(counts) == 1),
        chunk_rows=np.flatnonzero(np.array(counts) != 1),
        sampled_tokens=ends - 1,
        sampled_slots=int32(range(len(counts))),
        sampled_positions=np.array(starts) + np.array(counts),
    )
