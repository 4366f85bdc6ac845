"""Engines of tiny models, started from a folder as a worker starts, against transformers."""

import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig, OPTConfig, Qwen3Config

from benchmarks.gpu.report import Check
from daemon.engine.step.step import Engine
from daemon.engine.worker.start import start
from daemon.protocol.worker import Load
from tests.gpu.engine_runs import load_message
from tests.gpu.scored import answer_checks

VOCAB, CONTEXT = 499, 512
LENGTHS = (5, 1, 33, 98)
CHUNK = 40

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.08,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
CONFIGS: dict[str, Any] = {
    "Llama": LlamaConfig(**_COMMON, intermediate_size=512, num_key_value_heads=2),
    "Qwen3": Qwen3Config(**_COMMON, intermediate_size=512, num_key_value_heads=1, head_dim=128),
    "OPT": OPTConfig(**_COMMON, ffn_dim=512, word_embed_proj_dim=256),
    "GPT-NeoX": GPTNeoXConfig(**_COMMON, intermediate_size=512),
}


def started(load: Load) -> Engine:
    """An engine as a worker has it when it is ready."""
    return start(load, lambda _stage, _fraction: None)[0]


def engine_checks(
    device: str,
    names: tuple[str, ...] = tuple(CONFIGS),
    dtypes: tuple[str, ...] = ("float32", "bfloat16"),
    num_tokens: int = 24,
    lengths: tuple[int, ...] = LENGTHS,
    chunk: int = CHUNK,
    build: Callable[[Load], Engine] = started,
) -> Iterator[Check]:
    """Each architecture in each dtype, prefilled in chunks (not if 0) and all at once."""
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            save(name, Path(folder))
            references = {dtype: _load(Path(folder), dtype, device) for dtype in dtypes}
            references |= {"float32": _load(Path(folder), "float32", device)}
            for dtype in dtypes:
                message = load_message(Path(folder), device, dtype, 128, 8, CONTEXT)
                with torch.inference_mode():
                    run = build(message).run
                    yield from answer_checks(
                        name, dtype, run, references, prompts(lengths), num_tokens, chunk
                    )


def prompts(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Random prompts of several lengths."""
    chooser = random.Random(2)
    return [[chooser.randrange(VOCAB) for _ in range(n)] for n in lengths]


def save(name: str, folder: Path) -> None:
    """Write a random model of an architecture as a folder that a worker loads."""
    torch.manual_seed(1)
    loader: Any = AutoModelForCausalLM
    model = loader.from_config(CONFIGS[name]).float()
    # Rounded, so that every dtype holds the same weights.
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")


def _load(folder: Path, dtype: str, device: str) -> Any:
    """transformers' own model, with its plainest attention."""
    loader: Any = AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    return model.eval().to(device)
