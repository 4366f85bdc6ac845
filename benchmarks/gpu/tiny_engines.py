"""Engines of one tiny model that computes as a large one does: fused, and captured on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.gpu.interpreted_engine import triton_backend
from daemon.engine.backend import choose
from daemon.engine.loader import load_model, torch_dtype
from daemon.engine.protocol import Load
from daemon.engine.start import assemble
from daemon.engine.step import Engine
from daemon.models.shape import read_shape
from tests.api.folder import BOS, EOS, build, tokenizer

VOCAB = tokenizer().get_vocab_size()
MAX_LEN = 512


@contextmanager
def tiny_folder() -> Iterator[Path]:
    """A folder with the model and a real tokenizer; its logits are far from each other."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_LEN,
        initializer_range=0.12,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )
    torch.manual_seed(7)
    loader: Any = AutoModelForCausalLM
    with TemporaryDirectory(prefix="gpu-check-") as folder:
        path = build(Path(folder))
        loader.from_config(config).bfloat16().float().save_pretrained(path)
        yield path


def tiny_load(folder: Path, device: str, dtype: str, **changes: Any) -> Load:
    """What a worker would be told."""
    fields: dict[str, Any] = {
        "model": str(folder),
        "device": device,
        "dtype": dtype,
        "block_size": 16,
        "num_blocks": 256,
        "max_slots": 12,
        "max_len": MAX_LEN,
        "max_batch_tokens": 512,
        "num_threads": 1,
    }
    return Load(**fields | changes)


def tiny_engine(load: Load, captured: bool = True) -> Engine:
    """An engine with a GPU's backend, also where a CPU interprets its kernels.

    Where it is not `captured`, every step is launched kernel by kernel.
    """
    device = torch.device(load.device)
    backend = choose(device, torch_dtype(load.dtype)) if device.type == "cuda" else triton_backend()
    if not captured:
        backend = replace(backend, compile=_nothing)
    folder = Path(load.model)
    model = load_model(folder, load.dtype, device)
    return assemble(model, read_shape(folder), load, lambda _stage, _done: None, backend)


def _nothing(*_arguments: Any) -> None:
    """Instead of what compiles whole steps."""
