"""A KV pool of 8 bits: what it holds, what attention makes of it, swapped and served."""

import msgspec
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from daemon.config.paths import default_cache
from daemon.engine.cuda.triton import reference
from daemon.engine.kv.eight_bit import FP8, INT8, KV_DTYPES, LARGEST, kv_fault, quantise
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention_torch import TorchAttention
from daemon.engine.loading.resolve import shape_here
from daemon.engine.step.step import Engine
from daemon.engine.swap.link import swap_link
from daemon.engine.worker.start import start
from daemon.memory.sizing import block_bytes
from daemon.models.embedded import model_folder
from daemon.state.request import SamplingParams
from daemon.wire.columns import int32
from tests.engine.driver import Driver
from tests.engine.model.test_backends import batch_of
from tests.engine.process import cpu_load

CPU = torch.device("cpu")
KINDS = pytest.mark.parametrize("kv_dtype", [INT8, FP8])
RELATIVE = {INT8: 1 / 254 + 1e-6, FP8: 1 / 16}
"""Half a step: of the largest number of a head in int8, of the number itself in fp8."""


def pool(kv_dtype: torch.dtype | None, num_blocks: int = 32) -> PagedKV:
    return PagedKV(num_blocks, 2, 8, 2, 16, torch.float32, CPU, kv_dtype)


@KINDS
def test_numbers_come_back_within_half_a_step(kv_dtype: torch.dtype) -> None:
    values = torch.randn(50, 3, 64) * torch.logspace(-6, 4, 50)[:, None, None]
    stored, scales = quantise(values, kv_dtype)
    assert stored.dtype == kv_dtype
    assert stored.shape == values.shape and scales.shape == (50, 3)
    wrong = (stored.float() * scales.unsqueeze(-1) - values).abs()
    largest = values.abs().amax(-1, keepdim=True)
    steps = largest if kv_dtype == INT8 else values.abs() + largest / 2**12
    # Below 2 ** -24 a scale does not go.
    assert (wrong <= RELATIVE[kv_dtype] * steps + 2.0**-25).all()
    assert torch.equal(stored.float().abs().amax(-1)[30:], torch.full((20, 3), LARGEST[kv_dtype]))


def test_halves_are_rounded_to_even() -> None:
    stored, scales = quantise(torch.tensor([[127.0, 0.5, 1.5, -2.5, 63.5]]), INT8)
    assert scales.tolist() == [1.0]
    assert stored.tolist() == [[127, 0, 2, -2, 64]]


@KINDS
def test_what_is_no_number_stays_none(kv_dtype: torch.dtype) -> None:
    values = torch.ones(4, 8)
    values[1, 3], values[2, 0], values[3] = torch.nan, -torch.inf, 0.0
    stored, scales = quantise(values, kv_dtype)
    back = stored.float() * scales.unsqueeze(-1)
    assert back[0].isfinite().all() and not back[1:3].isfinite().any()
    assert not back[3].any()


@KINDS
def test_a_block_is_one_row_of_bytes(kv_dtype: torch.dtype) -> None:
    cache = pool(kv_dtype, 5)
    assert cache.scales is not None
    assert cache.block_bytes == 2 * 2 * 8 * 2 * (16 + 4)
    assert cache.raw.shape == (5, cache.block_bytes) and not cache.raw.any()
    rows = cache.row_of(torch.tensor([0, 4, 4, 2]), torch.tensor([0, 7, 6, 3]))
    key, value = torch.randn(2, 4, 2, 16)
    cache.write(1, rows, key, value)
    stored, scales = quantise(value, kv_dtype)
    assert torch.equal(cache.scales[4, 1, 1, 7], scales[1])
    assert torch.equal(cache.blocks[2, 1, 1, 3].float(), stored[3].float())
    assert torch.equal(cache.read(1, rows)[1], stored.float() * scales.unsqueeze(-1))
    assert not cache.raw[[1, 3]].any()
    cache.copy(int32([4, 2]), int32([1, 4]))
    moved = cache.read(1, cache.row_of(torch.tensor([1]), torch.tensor([7])))[1]
    assert torch.equal(moved[0], stored[1].float() * scales[1].unsqueeze(-1))
    assert torch.equal(cache.raw[4], cache.raw[2])


@pytest.mark.parametrize("name", ["", "int8", "fp8"])
def test_the_daemon_knows_how_large_a_block_is(name: str) -> None:
    shape = shape_here(model_folder("", default_cache()))
    sizes = (shape.num_layers, 32, shape.num_kv_heads, shape.head_dim)
    cache = PagedKV(1, *sizes, torch.float32, CPU, KV_DTYPES[name])
    assert cache.block_bytes == block_bytes(shape, 32, "float32", name or "auto")


@KINDS
def test_attention_is_that_of_what_the_pool_holds(kv_dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours, exact = pool(kv_dtype), pool(None)
    assert ours.scales is not None
    batch = batch_of([0, 7, 8, 30, 5, 0], [1, 1, 1, 1, 9, 6], 8)
    first = torch.randn(2, 2, 32 * 8, 2, 16)
    for layer in range(2):
        everywhere = ours.row_of(torch.arange(32).repeat_interleave(8), torch.arange(8).repeat(32))
        for cache in (ours, exact):
            cache.write(layer, everywhere, *first[layer])
    query, key, value = torch.randn(len(batch.tokens), 8, 16).split((4, 2, 2), 1)
    got = TorchAttention(batch, ours)(1, query, key, value, 0.3)
    expected = reference.paged_prefill_attention(
        query,
        ours.blocks,
        1,
        torch.from_numpy(batch.block_tables),
        torch.from_numpy(batch.starts),
        torch.from_numpy(batch.counts),
        torch.from_numpy(batch.row_offsets),
        0.3,
        ours.scales,
    )
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=1e-5)
    plain = TorchAttention(batch, exact)(1, query, key, value, 0.3)
    apart = float((got - plain).norm() / plain.norm())
    assert 1e-4 < apart < (0.02 if kv_dtype == INT8 else 0.06)


@KINDS
def test_blocks_leave_and_come_back_with_their_scales(kv_dtype: torch.dtype) -> None:
    cache = pool(kv_dtype, 6)
    link = swap_link(cache, 4, compress=False)
    assert link is not None and link.pool.block_bytes == cache.block_bytes
    cache.raw.copy_(torch.randint(0, 256, cache.raw.shape, dtype=torch.uint8))
    before = cache.raw.clone()
    plans = Driver(8, [])
    plans.outs = [(5, 0), (1, 1), (2, 2)]
    link.order(plans.plan([]).batch)
    link.wait(plans.step)
    cache.raw.zero_()
    plans.ins = [(0, 3), (1, 1), (2, 0)]
    link.order(plans.plan([]).batch)
    link.close()
    assert torch.equal(cache.raw[[3, 1, 0]], before[[5, 1, 2]])
    assert not cache.raw[[2, 4, 5]].any()


@pytest.mark.parametrize(("capability", "fine"), [((8, 6), False), ((8, 9), True), ((9, 0), True)])
def test_fp8_needs_a_gpu_that_rounds_to_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], fine: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    fault = kv_fault(FP8, torch.device("cuda:1"))
    assert fine is not ("8.9 or higher, and cuda:1 has 8.6: use" in fault)
    assert not kv_fault(INT8, torch.device("cuda:1")) and not kv_fault(FP8, CPU)


@pytest.mark.soak
def test_the_embedded_model_s_text_is_nearly_that_of_float32() -> None:
    folder = model_folder("", default_cache())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    asked = "<|im_start|>user\nWhy does rain fall?<|im_end|>\n<|im_start|>assistant\n"
    prompt = tokenizer.encode(asked).ids
    load = cpu_load(str(folder), max_batch_tokens=64)
    with torch.inference_mode():
        plain = start(load, lambda stage, done: None)[0]
        answer = _answer(plain, prompt, 12)
        expected = _scores(plain, prompt + answer)
        eight = start(msgspec.structs.replace(load, kv_dtype="int8"), lambda stage, done: None)[0]
        got = _scores(eight, prompt + answer)
        assert _answer(eight, prompt, 3) == answer[:3]
    apart = np.abs(got - expected)[len(prompt) - 1 :]
    assert 1e-5 < apart.mean() < 0.1


def _answer(engine: Engine, prompt: list[int], count: int) -> list[int]:
    plans = Driver(16, list(range(64)))
    row = plans.add(0, prompt)
    for _ in range(count):
        work = [(row, len(row.tokens) - row.num_computed)]
        plans.take(work, engine.run(plans.plan(work)))
    plans.leave(row)
    engine.run(plans.plan([]))
    return row.outputs


def _scores(engine: Engine, tokens: list[int]) -> np.ndarray:
    """Log-probabilities of a text's tokens from the second on."""
    plans = Driver(16, list(range(64)))
    sampling = SamplingParams(temperature=0.0, ignore_eos=True, prompt_logprobs=0)
    row = plans.add(0, tokens, sampling)
    work = [(row, len(tokens))]
    reply = engine.run(plans.plan(work))
    plans.take(work, reply)
    plans.leave(row)
    engine.run(plans.plan([]))
    return np.concatenate([told.chosen for told in reply.prompts])
