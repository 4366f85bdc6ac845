"""The compiled kernels of 8-bit KV caches do what plain torch does."""

from pathlib import Path

import pytest
import torch

from daemon.engine.kv.eight_bit import FP8, INT8, LARGEST, quantise
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention_torch import TorchAttention
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.resolve import shape_here
from daemon.engine.model.backend import Backend, choose_backend, torch_backend
from daemon.engine.verify.model.kept import TrialVerdict
from daemon.engine.worker.start import assemble
from tests.engine.driver import Driver
from tests.engine.model.test_backends import batch_of
from tests.engine.verify.model.tries import COMMON, Tries, save

CPU = torch.device("cpu")
KINDS = pytest.mark.parametrize("kv_dtype", [INT8, FP8])


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def stored(key: torch.Tensor, value: torch.Tensor, kv_dtype: torch.dtype) -> PagedKV:
    """A pool of one layer in which the kernels have written a prompt from its first token on."""
    count, heads, head_dim = key.shape
    cache = PagedKV(-(-count // 8) + 1, 1, 8, heads, head_dim, torch.float32, CPU, kv_dtype)
    batch = batch_of([0], [count], 8)
    choose_backend(CPU, torch.float32).attend(batch, cache)(0, key, key, value, 1.0)
    return cache


def ordered(cache: PagedKV, count: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers and scales of the tokens that `stored` wrote: keys (0) or values (1)."""
    batch = batch_of([0], [count], 8)
    blocks, offsets = torch.from_numpy(batch.blocks), torch.from_numpy(batch.offsets)
    assert cache.scales is not None
    numbers = cache.blocks.view(torch.uint8)[blocks, 0, part, offsets]
    return numbers, cache.scales[blocks, 0, part, offsets]


@KINDS
@pytest.mark.parametrize("head_dim", [16, 64, 80])
def test_tokens_are_stored_bit_by_bit_as_torch_stores_them(
    kv_dtype: torch.dtype, head_dim: int
) -> None:
    key, value = torch.randn(2, 300, 3, head_dim) * torch.logspace(-9, 9, 300)[:, None, None]
    largest = LARGEST[kv_dtype]
    # Numbers at, between and beside those of e4m3 and of int8, with a scale of 1.
    key[:128] = torch.linspace(-largest, largest, 128 * head_dim * 3).view(128, 3, head_dim)
    exact = torch.arange(128, dtype=torch.uint8).view(FP8).float()[:127]
    middles = torch.cat((exact[:-1], (exact[1:] + exact[:-1]) / 2, torch.arange(127) + 0.5))
    beside = torch.stack((middles.nextafter(torch.tensor(0.0)), middles, -middles)).flatten()
    beside = beside.clamp(-largest, largest)
    flat = value[:128].view(-1)
    flat[: len(beside)] = beside
    key[..., 0] = value[..., 0] = largest
    key[200:] *= 1e-9
    value[210], value[211, :, 1:] = 0.0, -0.0
    cache = stored(key, value, kv_dtype)
    for part, states in enumerate((key, value)):
        expected, scales = quantise(states, kv_dtype)
        numbers, found = ordered(cache, 300, part)
        assert torch.equal(found, scales)
        assert torch.equal(numbers, expected.view(torch.uint8))


@KINDS
def test_what_is_no_number_is_stored_as_none(kv_dtype: torch.dtype) -> None:
    key, value = torch.randn(2, 40, 2, 16)
    key[3, 1, 5], key[9, 0, 0], value[12, 1, 15] = torch.nan, torch.inf, -torch.inf
    cache = stored(key, value, kv_dtype)
    for part, states in enumerate((key, value)):
        expected, scales = quantise(states, kv_dtype)
        numbers, found = ordered(cache, 40, part)
        fine = scales.isfinite()
        assert int((~fine).sum()) == 2 - part and torch.equal(found.isnan(), scales.isnan())
        assert torch.equal(numbers[fine], expected.view(torch.uint8)[fine])


@KINDS
@pytest.mark.parametrize("block_size", [1, 6, 8, 16])
@pytest.mark.parametrize("heads", [(4, 2, 16), (9, 3, 64), (8, 1, 80), (4, 4, 128)])
def test_attention_over_pages(
    kv_dtype: torch.dtype, block_size: int, heads: tuple[int, int, int]
) -> None:
    num_heads, num_kv_heads, head_dim = heads
    sizes = 2, block_size, num_kv_heads, head_dim, torch.float32, CPU, kv_dtype
    batch = batch_of([0, 7, 8, 30, 5, 0], [1, 1, 1, 1, 9, 6], block_size)
    ours, theirs = (PagedKV(batch.block_tables.size, *sizes) for _ in range(2))
    fill(ours)
    theirs.raw.copy_(ours.raw)
    merged = torch.randn(len(batch.tokens), num_heads + 2 * num_kv_heads, head_dim)
    query, key, value = merged.split((num_heads, num_kv_heads, num_kv_heads), 1)
    attentions = (
        choose_backend(CPU, torch.float32).attend(batch, ours),
        TorchAttention(batch, theirs),
    )
    for layer in (1, 0):
        got, expected = (attend(layer, query, key, value, 0.3) for attend in attentions)
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours.raw, theirs.raw)


@KINDS
def test_a_fault_reaches_its_own_sequence_and_no_other(kv_dtype: torch.dtype) -> None:
    batch = batch_of([7, 8, 30], [1, 1, 1], 8)
    caches = [PagedKV(32, 1, 8, 2, 16, torch.float32, CPU, kv_dtype) for _ in range(2)]
    for cache in caches:
        fill(cache, 1)
    soiled = caches[1]
    assert soiled.scales is not None
    # Behind every sequence's end, and where another sequence has a key and another a value.
    for table, length in zip(batch.block_tables, (8, 9, 31), strict=True):
        soiled.scales[int(table[length // 8]), ..., length % 8 :, :] = torch.nan
    soiled.scales[int(batch.block_tables[0, 0]), 0, 0, 3, 1] = torch.nan
    soiled.scales[int(batch.block_tables[1, 0]), 0, 1, 5, 0] = torch.nan
    query, key, value = (torch.randn(3, heads, 16) for heads in (4, 2, 2))
    expected, got = (
        choose_backend(CPU, torch.float32).attend(batch, cache)(0, query, key, value, 0.3)
        for cache in caches
    )
    assert got[0, 2:].isnan().all() and got[1, :2].isnan().all()
    for fine in ((0, slice(2)), (1, slice(2, 4)), 2):
        assert torch.equal(got[fine], expected[fine])


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_answers_are_those_of_plain_torch(kv_dtype: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = save(tmp_path / "llama", "llama", **COMMON)
    tries = Tries(tmp_path)
    load = tries.load(folder, kv_dtype=kv_dtype)

    def answers(backend: Backend | None, verdict: TrialVerdict | None) -> list[list[int]]:
        with torch.inference_mode():
            model, shape = load_model(folder, load.dtype, CPU), shape_here(folder)
            engine = assemble(model, shape, load, lambda *_: None, backend, verdict)
            assert engine.model.fused and engine.model.compiled == (backend is None)
            plans = Driver(load.block_size, list(range(load.num_blocks)))
            rows = [plans.add(slot, list(range(3 + slot, 60, 2 + slot))) for slot in range(3)]
            work = [(row, len(row.tokens)) for row in rows]
            for _ in range(12):
                plans.take(work, engine.run(plans.plan(work)))
                work = [(row, 1) for row in rows]
        return [row.outputs for row in rows]

    # The first is tried: its steps are compiled only where transformers' logits come out.
    assert answers(None, None) == answers(torch_backend(), TrialVerdict(True, False))


def fill(cache: PagedKV, seed: int = 0) -> None:
    """Random keys and values everywhere."""
    generator = torch.Generator().manual_seed(seed)
    shape = cache.num_blocks * cache.block_size, *cache.blocks.shape[4:]
    blocks = torch.arange(cache.num_blocks).repeat_interleave(cache.block_size)
    rows = cache.row_of(blocks, torch.arange(cache.block_size).repeat(cache.num_blocks))
    for layer in range(cache.num_layers):
        cache.write(layer, rows, *torch.randn(2, *shape, generator=generator))
