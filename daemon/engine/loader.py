"""Loads a model folder with transformers' own modelling code and our attention."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from daemon.engine.attention import ATTENTION_NAME, register
from daemon.models.shape import ModelError
from daemon.models.supported import check_folder


def load_model(folder: Path, dtype: str, device: torch.device) -> PreTrainedModel:
    """The causal language model in `folder`, ready to compute. Raises ModelError."""
    check_folder(folder)
    register()
    transformers_logging.disable_progress_bar()  # a daemon's log is read later, line by line
    loader: Any = AutoModelForCausalLM
    model, told = loader.from_pretrained(
        folder,
        dtype=torch_dtype(dtype),
        attn_implementation=ATTENTION_NAME,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    if missing := sorted(told["missing_keys"]):  # transformers would make them up
        raise ModelError(f"{folder} lacks {len(missing)} of its weights: {missing[0]} ...")
    if not isinstance(model, PreTrainedModel) or not model._supports_attention_backend:
        raise ModelError(f"{type(model).__name__} does not use transformers' attention interface")
    model.requires_grad_(False)
    return model.eval().to(device)


def torch_dtype(name: str) -> torch.dtype:
    """torch's type for a name such as "float32"."""
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return dtypes[name]
