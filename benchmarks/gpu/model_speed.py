"""A model of Llama 3 8B's shape with random weights, through our engine, against the limits."""

import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.gpu.engine_runs import Rows
from benchmarks.gpu.kernel_speed import Limits
from benchmarks.gpu.report import Figure
from daemon.engine.attention import ATTENTION_NAME, register
from daemon.engine.backend import choose
from daemon.engine.grammar import SlotGrammars
from daemon.engine.kv_cache import KVCache
from daemon.engine.model import optimise
from daemon.engine.sampler import Sampler
from daemon.engine.scoring import PromptScorer
from daemon.engine.slots import Slots
from daemon.engine.step import Engine
from daemon.models.grammar import Compiler
from daemon.request import SamplingParams

BLOCK_SIZE = 16
WORKSPACE_BYTES = 3 << 30


@dataclass(frozen=True, slots=True)
class Case:
    """A model's shape, and what is run through it."""

    config: LlamaConfig
    batches: tuple[int, ...]
    context: int
    decode_steps: int
    prefill: int


FULL = Case(
    LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    ),
    batches=(1, 32, 128),
    context=512,
    decode_steps=32,
    prefill=4096,
)
TINY = Case(
    LlamaConfig(
        vocab_size=101,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
    ),
    batches=(1, 2),
    context=10,
    decode_steps=2,
    prefill=20,
)


def model_figures(device: str, case: Case, limits: Limits) -> Iterator[Figure]:
    """Decode at each batch size, and one prefill; what the device has no room for is said."""
    config = case.config
    token_bytes = 4 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    decoded = case.context + case.decode_steps + 1
    jobs = [*((batch, decoded) for batch in case.batches), (1, case.prefill + 1)]
    needed = [rows * (length + BLOCK_SIZE) * token_bytes for rows, length in jobs]
    weights = _weight_bytes(config)
    room = _room_bytes(device) - weights - WORKSPACE_BYTES
    fitting = [size for size in needed if size <= room]
    if not fitting:
        yield Figure("Llama 3 8B left out, needs", (weights + WORKSPACE_BYTES) / 1e9, "GB")
        return
    num_blocks = max(fitting) // (token_bytes * BLOCK_SIZE) + max(case.batches)
    with torch.inference_mode():
        engine = _engine(device, case, num_blocks)
        yield Figure("weights", weights / 1e9, "GB")
        for batch, size in zip(case.batches, needed, strict=False):
            if size > room:
                yield Figure(f"decode batch {batch} left out, needs", size / 1e9, "GB")
            else:
                yield from _decode(engine, case, batch, weights, token_bytes, limits)
        if needed[-1] <= room:
            yield _prefill(engine, case, weights, limits)


def _decode(
    engine: Engine, case: Case, batch: int, weights: int, token_bytes: int, limits: Limits
) -> Iterator[Figure]:
    """Tokens a second, and the step beside the time to read weights and keys once."""
    prompts = [_prompt(case, case.context, row) for row in range(batch)]
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    rows = Rows(engine.run, prompts, case.decode_steps, BLOCK_SIZE, sampling)
    rows.prefill(case.context)
    times = [rows.decode().elapsed_s for _ in range(case.decode_steps)]
    rows.leave()
    step_s = statistics.median(times)
    read = weights - _embedding_bytes(case.config) + batch * case.context * token_bytes
    best_s = max(read / limits.bytes_per_s, batch * weights / limits.operations_per_s)
    yield Figure(f"decode batch {batch}, a step", step_s * 1e3, "ms")
    yield Figure(f"decode batch {batch}", batch / step_s, "tokens/s", batch / best_s)


def _prefill(engine: Engine, case: Case, weights: int, limits: Limits) -> Figure:
    """Prompt tokens a second beside what the matmul rate allows."""
    times = []
    for _ in range(4):
        sampling = SamplingParams(temperature=0.0, ignore_eos=True)
        rows = Rows(engine.run, [_prompt(case, case.prefill, 0)], 1, BLOCK_SIZE, sampling)
        times.append(sum(reply.elapsed_s for reply in rows.prefill(case.prefill)))
        rows.leave()
    config = case.config
    # Two operations a weight of two bytes, but only one token goes through the last projection.
    products = (weights - 2 * _embedding_bytes(config)) * case.prefill
    width = config.num_attention_heads * config.head_dim
    attention = 2 * case.prefill**2 * width * config.num_hidden_layers
    best_s = (products + attention) / limits.operations_per_s
    rate = case.prefill / statistics.median(times[1:])
    return Figure(f"prefill {case.prefill}", rate, "tokens/s", case.prefill / best_s)


def _engine(device: str, case: Case, num_blocks: int) -> Engine:
    """As the worker's start, but with weights that are made on the device, not read."""
    register()
    config = case.config
    loader: Any = AutoModelForCausalLM
    with torch.device(device):
        model = loader.from_config(
            config, dtype=torch.bfloat16, attn_implementation=ATTENTION_NAME
        ).eval()
    cache = KVCache(
        num_blocks,
        config.num_hidden_layers,
        BLOCK_SIZE,
        config.num_key_value_heads,
        config.head_dim,
        torch.bfloat16,
        torch.device(device),
    )
    longest = max(case.context + case.decode_steps, case.prefill)
    slots = Slots(max(case.batches), longest // BLOCK_SIZE + 2, ())
    backend = choose(torch.device(device), torch.bfloat16)
    fastest = optimise(model.requires_grad_(False), cache, backend)
    sampler = Sampler(config.vocab_size, device)
    grammars = SlotGrammars(_no_grammar, config.vocab_size, ())
    return Engine(fastest, cache, slots, sampler, grammars, PromptScorer(), backend)


def _no_grammar() -> Compiler:
    raise AssertionError("nothing here follows a grammar")


def _prompt(case: Case, length: int, seed: int) -> list[int]:
    chooser = random.Random(seed)
    return [chooser.randrange(case.config.vocab_size) for _ in range(length)]


def _embedding_bytes(config: LlamaConfig) -> int:
    return int(2 * config.vocab_size * config.hidden_size)


def _weight_bytes(config: LlamaConfig) -> int:
    """Bytes of the bfloat16 weights (norms, which are tiny, left out)."""
    hidden, heads = config.hidden_size, config.num_attention_heads + 2 * config.num_key_value_heads
    attention = hidden * config.head_dim * (heads + config.num_attention_heads)
    layer = attention + 3 * hidden * config.intermediate_size
    return 2 * _embedding_bytes(config) + int(2 * config.num_hidden_layers * layer)


def _room_bytes(device: str) -> int:
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    return 64 << 30
