"""Which model folders llmd serves: uniform full-attention decoders; others are refused by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daemon.models.shape import ModelError, read_json, weight_files

TESTED_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3", "opt", "gpt_neox"})
"""Types whose tokens the tests compare with transformers' own; others are tried as they are."""

_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_HYBRID_KEYS = ("mamba_d_state", "ssm_state_size", "state_size", "attn_layer_period", "lru_width")
_VISION_KEYS = ("vision_config", "audio_config", "image_token_id")
_LEARNED_BIAS_TYPES = {"bloom": "ALiBi positions", "mpt": "ALiBi positions"}
_GROWING_ROPE = frozenset({"dynamic", "longrope"})


def check_folder(folder: Path) -> None:
    """Raise ModelError, naming the first reason, if the model in `folder` cannot be served."""
    if not folder.is_dir():
        raise ModelError(f"{folder} is not a folder")
    config = read_json(folder / "config.json")
    for reason in refusals(config):
        name = config.get("model_type") or "this model"
        raise ModelError(f"{folder}: {name} is not supported yet: {reason}")
    _check_files(folder)


def refusals(config: dict[str, Any]) -> Iterator[str]:
    """Every reason why a model of this config.json is not a uniform full-attention decoder."""
    if config.get("is_encoder_decoder"):
        yield "it is an encoder-decoder"
    if any(config.get(key) is not None for key in _VISION_KEYS):
        yield "it reads images or sound"
    architectures = config.get("architectures") or []
    if not any(str(name).endswith(("ForCausalLM", "LMHeadModel")) for name in architectures):
        yield f"its architecture {architectures} is not a causal language model"
    yield from _attention_refusals(config)
    yield from _position_refusals(config)
    if config.get("quantization_config") is not None:
        yield "its weights are quantized"


def _attention_refusals(config: dict[str, Any]) -> Iterator[str]:
    if _uses_sliding_window(config):
        yield f"it attends through a sliding window of {config['sliding_window']} tokens"
    kinds = set(config.get("layer_types") or ["full_attention"]) - {"full_attention"}
    if kinds - {"sliding_attention"} or (kinds and not config.get("sliding_window")):
        yield f"it mixes attention layers with {', '.join(sorted(kinds))}"
    if config.get("kv_lora_rank"):
        yield "it has latent attention (MLA)"
    if any(config.get(key) is not None for key in _HYBRID_KEYS):
        yield "it has state-space or recurrent layers"
    if config.get("attn_logit_softcapping"):
        yield "it caps attention scores"
    if config.get("model_type") in ("gpt_oss", "gptj", "gpt_neo"):
        yield "its attention differs from the plain one"


def _position_refusals(config: dict[str, Any]) -> Iterator[str]:
    if config.get("alibi") or config.get("model_type") in _LEARNED_BIAS_TYPES:
        yield "it has ALiBi positions"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind in _GROWING_ROPE:
        yield f"its rotary positions depend on the context's length ({kind})"


def _uses_sliding_window(config: dict[str, Any]) -> bool:
    """Whether a token may not see all before it; a window as wide as the context hides nothing."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return False
    layers = config.get("layer_types")
    if layers is not None and "sliding_attention" not in layers:
        return False
    return bool(window < config.get("max_position_embeddings", 0))


def _check_files(folder: Path) -> None:
    missing = [path for path in weight_files(folder) if not path.exists()]
    if missing and any((folder / name).exists() for name in _PICKLED):
        raise ModelError(
            f"{folder} has pickled weights only, which can run code when loaded: "
            "convert them to safetensors"
        )
    for path in (*missing, folder / "tokenizer.json"):
        if not path.exists():
            raise ModelError(f"{path} is missing")
