"""Engines of tiny models that compute as large ones do: fused where they can be, and captured."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from transformers import AutoModelForCausalLM, GPTNeoXConfig, LlamaConfig, OPTConfig

from daemon.engine.loading.loader import load_model, torch_dtype
from daemon.engine.loading.resolve import shape_here
from daemon.engine.model.backend import choose_backend
from daemon.engine.step.step import Engine
from daemon.engine.verify.model.kept import TrialVerdict
from daemon.engine.worker.start import assemble
from daemon.protocol.worker import Load
from tests.api.folder import BOS, EOS, build, tokenizer
from tests.gpu.interpreted_engine import interpreted_backend

VOCAB = tokenizer().get_vocab_size()
MAX_LEN = 512


_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.08,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
}
CONFIGS: dict[str, Any] = {
    "Llama": LlamaConfig(**_COMMON, intermediate_size=256, num_key_value_heads=2),
    "OPT": OPTConfig(**_COMMON, ffn_dim=512, word_embed_proj_dim=256, init_std=0.08),
    "GPT-NeoX": GPTNeoXConfig(**_COMMON, intermediate_size=512),
}


@contextmanager
def tiny_folder(name: str = "Llama") -> Iterator[Path]:
    """A folder with such a model and a real tokenizer; its logits are far from each other."""
    torch.manual_seed(7)
    loader: Any = AutoModelForCausalLM
    with TemporaryDirectory(prefix="gpu-check-") as folder:
        path = build(Path(folder))
        model = loader.from_config(CONFIGS[name]).float()
        # Rounded, so that every dtype holds the same weights.
        for parameter in model.parameters():
            parameter.data = parameter.data.bfloat16().float()
        model.save_pretrained(path)
        yield path


def tiny_load(folder: Path, device: str, **changes: Any) -> Load:
    """The message to a worker; `changes` are other fields of it."""
    fields: dict[str, Any] = {
        "model": str(folder),
        "device": device,
        "dtype": "float32",
        "block_size": 16,
        "num_blocks": 256,
        "max_slots": 12,
        "max_len": MAX_LEN,
        "max_batch_tokens": 512,
        "num_threads": 1,
    }
    return Load(**fields | changes)


def tiny_engine(load: Load, captured: bool = True) -> Engine:
    """An engine with its device's backend, or with a GPU's where Triton interprets.

    Where it is not `captured`, every step is launched kernel by kernel.
    """
    device, verdict = torch.device(load.device), None
    if triton.knobs.runtime.interpret:
        backend, verdict = (
            interpreted_backend(torch_dtype(load.dtype)),
            TrialVerdict(fused=True, compiled=True),
        )
    else:
        backend = choose_backend(device, torch_dtype(load.dtype))
    if not captured:
        backend = replace(backend, compile=_nothing)
    folder = Path(load.model)
    model = load_model(folder, load.dtype, device)
    shape = shape_here(folder)
    return assemble(model, shape, load, lambda _stage, _done: None, backend, verdict)


def _nothing(*_arguments: Any) -> None:
    """Instead of what compiles whole steps."""
