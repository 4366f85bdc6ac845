"""A folder with a tiny random model whose steps take about a millisecond, for what is not text."""

import json
from pathlib import Path

from daemon.engine.worker.torch_stubs import leave_out
from tests.api.folder import BOS, EOS, build, tokenizer
from tests.shapes import SIZES

CONTEXT_LEN = 2048


def tiny_folder(folder: Path) -> Path:
    """Write the model and its tokenizer; gives the folder back."""
    leave_out()
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    build(folder)
    sizes = {
        **SIZES,
        "vocab_size": tokenizer().get_vocab_size(),
        "hidden_size": 32,
        "intermediate_size": 64,
        "max_position_embeddings": CONTEXT_LEN,
    }
    config = LlamaConfig(
        **sizes,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )
    torch.manual_seed(7)
    LlamaForCausalLM(config).float().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))
    return folder
