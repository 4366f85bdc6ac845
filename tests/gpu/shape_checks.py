"""Models of well-known shapes, two layers of random weights, against transformers' answers."""

import copy
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    GPTNeoXConfig,
    LlamaConfig,
    OPTConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from benchmarks.gpu.report import Check
from daemon.engine.layers.attention import ATTENTION_NAME, register
from daemon.engine.worker.start import assemble
from daemon.models.shape import ModelShape
from daemon.protocol.worker import Load
from tests.gpu.attempts import attempted
from tests.gpu.scored import answer_checks

LAYERS = 2
LENGTHS = (5, 1, 600, 98)
CHUNK = 256
NUM_TOKENS = 12
NUM_BLOCKS = 256

CONFIGS: dict[str, PreTrainedConfig] = {
    "llama-3-8b": LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=LAYERS,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    ),
    "qwen3-8b": Qwen3Config(
        vocab_size=151_936,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=LAYERS,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
    ),
    "opt-13b": OPTConfig(
        vocab_size=50_272,
        hidden_size=5120,
        ffn_dim=20_480,
        num_hidden_layers=LAYERS,
        num_attention_heads=40,
        max_position_embeddings=2048,
        word_embed_proj_dim=5120,
    ),
    "gpt-neox-20b": GPTNeoXConfig(
        vocab_size=50_432,
        hidden_size=6144,
        intermediate_size=24_576,
        num_hidden_layers=LAYERS,
        num_attention_heads=64,
        max_position_embeddings=2048,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.25,
        },
    ),
}


def shape_checks(name: str, device: str) -> Iterator[Check]:
    """One shape in bfloat16 and float32: in chunks, all at once, and decoded."""
    config = CONFIGS[name]
    plain = random_model(config, device, "eager")
    exact = copy.deepcopy(plain).float()
    for dtype in ("bfloat16", "float32"):
        references = {"float32": exact, "bfloat16": plain}
        checks = partial(_checks, name, dtype, config, references, device)
        with torch.inference_mode():
            yield from attempted(f"engine {name} {dtype}", checks)


def _checks(
    name: str, dtype: str, config: PreTrainedConfig, references: dict[str, Any], device: str
) -> Iterator[Check]:
    ours = random_model(config, device, ATTENTION_NAME)
    if dtype == "float32":
        ours = ours.float()  # never to a smaller type: the rotary frequencies would go with it
    ours.load_state_dict(references["bfloat16"].state_dict())
    load = Load(
        model=name,
        device=device,
        dtype=dtype,
        block_size=16,
        num_blocks=NUM_BLOCKS,
        max_slots=len(LENGTHS),
        max_len=1024,
        max_batch_tokens=1024,
    )
    engine = assemble(ours, shape_of(config), load, lambda _stage, _done: None)
    chooser = random.Random(2)
    prompts = [[chooser.randrange(config.vocab_size) for _ in range(n)] for n in LENGTHS]
    yield from answer_checks(name, dtype, engine.run, references, prompts, NUM_TOKENS, CHUNK)


def random_model(config: PreTrainedConfig, device: str, attention: str) -> Any:
    """A bfloat16 model made on its device; its biases are random too, not zero."""
    register()
    loader: Any = AutoModelForCausalLM
    torch.manual_seed(1)
    with torch.device(device):
        model = loader.from_config(
            copy.deepcopy(config), dtype=torch.bfloat16, attn_implementation=attention
        )
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.data.normal_(0.0, 0.1)
    return model.requires_grad_(False).eval()


def shape_of(config: PreTrainedConfig) -> ModelShape:
    """The shape of a model without files."""
    heads = config.num_attention_heads
    return ModelShape(
        model_type=config.model_type,
        num_layers=config.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=getattr(config, "num_key_value_heads", heads),
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        context_len=config.max_position_embeddings,
        num_params=0,
        dtype="bfloat16",
        eos_token_ids=(),
    )
