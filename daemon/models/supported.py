"""Which model folders llmd serves: decoders with attention; others are refused by name.

Refusals go by what the resolved configuration says that a model does, not by names of models. What
no configuration says (a residual that is scaled, a mask of its own) a worker finds out: it listens
to what the model asks of attention, and tries it (`daemon.engine.verify.model`).
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daemon.memory.sizing import DTYPE_BYTES
from daemon.models.quantisation import quantisation, read_quantisation
from daemon.models.resolved import CHUNKED, RECURRENT, SLIDING, Resolved
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
_INDEXED_KEYS = ("index_topk", "index_n_heads")
_STATELESS = frozenset({"moe", "mlp"})
"""Kinds of layers that keep nothing of a sequence."""
_VISION_KEYS = ("vision_config", "audio_config", "image_token_id")
_UNSAID = {
    "bloom": "it has ALiBi positions",
    "mpt": "it has ALiBi positions",
    "diffllama": "its layers attend twice each",
}
"""Reasons to refuse types whose configurations do not name them."""
_ROPES = frozenset({"default", "linear", "yarn", "llama3", "proportional", "dynamic", "longrope"})
_FULL = "full_attention"
_EPSILON = re.compile(r"(^|_)eps(ilon)?$")
_ROPE_SIZES = frozenset({"rope_theta", "factor"})
"""Parameters of rotary positions by which numbers are divided."""


def check_folder(folder: Path, resolved: Resolved) -> None:
    """Raise ModelError, naming the first reason, if the model in `folder` cannot be served."""
    for reason in refusals(resolved):
        raise ModelError(f"{folder}: {resolved.model_type} is not supported yet: {reason}")
    read_quantisation(folder, resolved.fields)
    _check_files(folder)


def refusals(resolved: Resolved) -> Iterator[str]:
    """Every reason why a model of this configuration is not served."""
    fields = resolved.fields
    if fields.get("is_encoder_decoder"):
        yield "it is an encoder-decoder"
    if any(fields.get(key) is not None for key in _VISION_KEYS):
        yield "it reads images or sound"
    if not resolved.causal_class:
        yield "transformers has no causal language model of this type"
    elif not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in resolved.architectures):
        yield f"its architecture {list(resolved.architectures)} is not a causal language model"
    if resolved.sees_ahead:
        yield "its tokens also see those after them, as an encoder's do"
    for reason in resolved.conflicts:
        yield f"its config.json contradicts itself: {reason}"
    yield from unread_refusals(resolved)
    yield from _attention_refusals(resolved)
    yield from _position_refusals(resolved)
    yield from _value_refusals(resolved)
    yield from _quantisation_refusals(fields.get("quantization_config"))
    if resolved.dtype not in DTYPE_BYTES:
        yield f"its weights are stored as {resolved.dtype}, not as {', '.join(DTYPE_BYTES)}"


def _attention_refusals(resolved: Resolved) -> Iterator[str]:
    fields = resolved.fields
    kinds = set(resolved.layer_kinds) - {_FULL, SLIDING, *([CHUNKED] if resolved.chunk > 0 else [])}
    if resolved.layer_states:  # the worker holds the states against what the code asks for
        kinds -= RECURRENT | _STATELESS
    if kinds:
        yield f"it mixes attention layers with {', '.join(sorted(kinds))}"
    if any(fields.get(key) for key in _INDEXED_KEYS):
        yield "an indexer chooses the tokens that its queries see (sparse attention)"
    said = any(fields.get(key) is not None for key in _RECURRENT_KEYS)
    if said and (kinds or not (resolved.layer_kinds or resolved.layer_states)):
        yield "it has state-space or recurrent layers"
    if resolved.by_layer:
        yield f"its layers differ in {', '.join(resolved.by_layer)}"
    if resolved.model_type in _UNSAID:
        yield _UNSAID[resolved.model_type]
    elif resolved.causal_class and not resolved.takes_attention and resolved.num_kv_heads:
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
    if resolved.counts_from_padding:
        yield "its positions are counted from its padding token"
    for rope in resolved.ropes:
        if rope.kind == "default" and rope.parameters.get("factor") not in (None, 1):
            yield f"its rotary positions have a factor of {rope.parameters['factor']} and no kind"
    for kind in sorted({rope.kind for rope in resolved.ropes} - _ROPES):
        yield f"its rotary positions are of an unknown kind ({kind})"


def _value_refusals(resolved: Resolved) -> Iterator[str]:
    """Values with which no logits are numbers, or no token is seen."""
    for name, value in resolved.fields.items():
        if _EPSILON.search(name) and _is_number(value) and not value >= 0:
            yield f"{name} is {value}, and must be 0 or more"
    for rope in resolved.ropes:
        for name in _ROPE_SIZES & rope.parameters.keys():
            value = rope.parameters[name]
            if value is not None and not (_is_number(value) and 0 < value < math.inf):
                yield f"{name} of its rotary positions is {value!r}, and must be a number above 0"
    window = resolved.fields.get("sliding_window")
    is_off = window is None or resolved.fields.get("use_sliding_window") is False
    all_have = not (resolved.layer_kinds or is_off or "sliding_window" in resolved.unread)
    if (SLIDING in resolved.layer_kinds or all_have) and (window or 0) < 1:
        yield f"its layers have a window, and sliding_window is {window}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


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
