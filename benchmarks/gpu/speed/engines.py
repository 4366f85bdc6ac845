"""Engines as a worker assembles them, around models whose random weights are made on the device."""

import copy
import gc
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import logging as transformers_logging

from benchmarks.gpu.speed.limits import DecoderShape
from daemon.engine.layers.attention import ATTENTION_NAME, register
from daemon.engine.step.step import Engine
from daemon.engine.worker.start import assemble
from daemon.engine.worker.warm_up import warm_up
from daemon.models.shape import ModelShape
from daemon.protocol.worker import Load

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Sizes:
    """What an engine must hold."""

    rows: int  # of the slot table
    max_len: int  # tokens of the longest sequence
    num_blocks: int
    max_batch_tokens: int
    num_host_blocks: int = 0
    kv_dtype: str = ""  # of the KV cache: as states have it, or "int8", "fp8"


LLAMA_3_8B = LlamaConfig(
    architectures=["LlamaForCausalLM"],
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    tie_word_embeddings=False,
    bos_token_id=0,
    eos_token_id=1,
)
TINY = LlamaConfig(
    architectures=["LlamaForCausalLM"],
    vocab_size=512,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=512,
    tie_word_embeddings=False,
    bos_token_id=0,
    eos_token_id=1,
)


def config_of(tiny: bool) -> LlamaConfig:
    """The model that everything here runs."""
    return TINY if tiny else LLAMA_3_8B


def shape_of(config: LlamaConfig) -> DecoderShape:
    """What limits need of a model."""
    return DecoderShape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim(config),
        intermediate=config.intermediate_size,
        vocab=config.vocab_size,
    )


def head_dim(config: LlamaConfig) -> int:
    """Width of a head."""
    return int(config.head_dim or config.hidden_size // config.num_attention_heads)


def random_model(config: LlamaConfig, device: str, attention: str) -> Any:
    """transformers' model in bfloat16, its weights drawn on the device."""
    transformers_logging.disable_progress_bar()
    torch.manual_seed(0)
    loader: Any = AutoModelForCausalLM
    with torch.device(device):
        model = loader.from_config(config, dtype=torch.bfloat16, attn_implementation=attention)
    return model.requires_grad_(False).eval()


def engine_of(config: LlamaConfig, device: str, sizes: Sizes) -> Engine:
    """An engine, warm and with every graph captured; its cache holds random keys and values."""
    register()
    load = Load(
        model="",
        device=device,
        dtype="bfloat16",
        block_size=BLOCK_SIZE,
        num_blocks=sizes.num_blocks,
        max_slots=sizes.rows,
        max_len=sizes.max_len,
        max_batch_tokens=sizes.max_batch_tokens,
        num_host_blocks=sizes.num_host_blocks,
        kv_dtype=sizes.kv_dtype,
    )
    model = random_model(config, device, ATTENTION_NAME)
    engine = assemble(model, _model_shape(config), load, lambda _stage, _done: None)
    del model
    warm_up(engine, load)
    while engine.prepare():
        pass
    _scatter(engine)
    gc.collect()
    gc.freeze()  # as a worker does: collections need not look at the model again
    return engine


def with_long_contexts(config: LlamaConfig, max_len: int) -> LlamaConfig:
    """The same model, told that it may see so many tokens."""
    longer = copy.deepcopy(config)
    longer.max_position_embeddings = max_len
    return longer


def forget(device: str) -> None:
    """Give the device's memory back, once nothing refers to an engine any more."""
    gc.unfreeze()
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def _model_shape(config: LlamaConfig) -> ModelShape:
    return ModelShape(
        model_type="llama",
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim(config),
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        context_len=config.max_position_embeddings,
        num_params=0,
        dtype="bfloat16",
        eos_token_ids=(1,),
    )


def _scatter(engine: Engine) -> None:
    """Contexts that nobody computed: keys and values of unit size."""
    cache = engine.cache
    for start in range(0, cache.num_blocks, 512):
        part = cache.blocks[start : start + 512]
        drawn = torch.randn(part.shape, device=part.device, dtype=torch.bfloat16)
        part.copy_(drawn if cache.scales is None else (drawn * 30).clamp(-100, 100))
    if cache.scales is not None:
        cache.scales.fill_(1 / 30)
