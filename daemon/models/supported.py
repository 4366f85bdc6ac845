"""Which model folders llmd serves: uniform full-attention decoders; others are refused by name.

Refusals go by what the resolved configuration says that a model does, not by names of models. What
no configuration says (a residual that is scaled, a mask of its own) a worker finds out: it listens
to what the model asks of attention, and tries it (`daemon.engine.verify.model`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daemon.memory.sizing import DTYPE_BYTES
from daemon.models.quantisation import quantisation, read_quantisation
from daemon.models.resolved import Resolved
from daemon.models.shape import ModelError
from daemon.models.unread import unread_refusals
from daemon.models.weights import weight_files

_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_RECURRENT_KEYS = (
    "mamba_d_state",
    "mamba_d_conv",
    "ssm_state_size",
    "state_size",
    "attn_layer_period",
    "lru_width",
    "linear_num_value_heads",
)
_VISION_KEYS = ("vision_config", "audio_config", "image_token_id")
_CAPS = ("attn_logit_softcapping", "attn_logit_softcap", "attention_logit_cap")
_UNSAID = {
    "bloom": "it has ALiBi positions",
    "mpt": "it has ALiBi positions",
    "diffllama": "its layers attend twice each",
    "gpt_oss": "its attention has sinks",
}
"""Reasons to refuse types whose configurations do not name them."""
_GROWING_ROPE = frozenset({"dynamic", "longrope"})
_STEADY_ROPE = frozenset({"default", "linear", "yarn", "llama3", "proportional"})
_FULL, _SLIDING = "full_attention", "sliding_attention"


def check_folder(folder: Path, resolved: Resolved) -> None:
    """Raise ModelError, naming the first reason, if the model in `folder` cannot be served."""
    for reason in refusals(resolved):
        raise ModelError(f"{folder}: {resolved.model_type} is not supported yet: {reason}")
    read_quantisation(folder, resolved.fields)
    _check_files(folder)


def refusals(resolved: Resolved) -> Iterator[str]:
    """Every reason why a model of this configuration is not a uniform full-attention decoder."""
    fields = resolved.fields
    if fields.get("is_encoder_decoder"):
        yield "it is an encoder-decoder"
    if any(fields.get(key) is not None for key in _VISION_KEYS):
        yield "it reads images or sound"
    if not resolved.causal_class:
        yield "transformers has no causal language model of this type"
    names = resolved.architectures
    if not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        yield f"its architecture {list(names)} is not a causal language model"
    if resolved.sees_ahead:
        yield "its tokens also see those after them, as an encoder's do"
    for reason in resolved.conflicts:
        yield f"its config.json contradicts itself: {reason}"
    yield from unread_refusals(resolved)
    yield from _attention_refusals(resolved)
    yield from _position_refusals(resolved)
    yield from _quantisation_refusals(fields.get("quantization_config"))
    if resolved.dtype not in DTYPE_BYTES:
        yield f"its weights are stored as {resolved.dtype}, not as {', '.join(DTYPE_BYTES)}"


def _attention_refusals(resolved: Resolved) -> Iterator[str]:
    fields = resolved.fields
    if resolved.window and resolved.window < resolved.context_len:
        yield f"it attends through a sliding window of {resolved.window} tokens"
    kinds = set(resolved.layer_kinds) - {_FULL}
    if kinds - {_SLIDING} or (kinds and not resolved.window):
        yield f"it mixes attention layers with {', '.join(sorted(kinds))}"
    if fields.get("kv_lora_rank"):
        yield "it has latent attention (MLA)"
    if any(fields.get(key) is not None for key in _RECURRENT_KEYS):
        yield "it has state-space or recurrent layers"
    if any(fields.get(key) for key in _CAPS):
        yield "it caps attention scores"
    if resolved.by_layer:
        yield f"its layers differ in {', '.join(resolved.by_layer)}"
    if resolved.model_type in _UNSAID:
        yield _UNSAID[resolved.model_type]
    elif resolved.causal_class and not resolved.takes_attention:
        yield "its modelling code does not use transformers' attention interface"


def _quantisation_refusals(said: Any) -> Iterator[str]:
    try:
        if said is not None:
            quantisation(said)
    except ModelError as error:
        yield str(error)


def _position_refusals(resolved: Resolved) -> Iterator[str]:
    if resolved.fields.get("alibi"):
        yield "it has ALiBi positions"
    fields = resolved.fields
    if fields.get("attn_temperature_tuning") and 0 in (fields.get("no_rope_layers") or ()):
        yield "it scales attention by positions that it counts itself"
    if resolved.counts_from_padding:
        yield "its positions are counted from its padding token"
    for rope in resolved.ropes:
        if rope.kind == "default" and rope.parameters.get("factor") not in (None, 1):
            yield f"its rotary positions have a factor of {rope.parameters['factor']} and no kind"
    for kind in sorted({rope.kind for rope in resolved.ropes} - _STEADY_ROPE):
        if kind in _GROWING_ROPE:
            yield f"its rotary positions depend on the context's length ({kind})"
        else:
            yield f"its rotary positions are of an unknown kind ({kind})"


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
