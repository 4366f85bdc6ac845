"""Kinds of a GGUF file's values: a field that llmd reads and that holds another kind is refused.

A file says with each value what it is, and a writer may have put anything there. What comes behind
this check may take a text for a text and a count for a count.
"""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from daemon.models.shape import ModelError

_LONGEST_SHOWN = 60


class _Kind(NamedTuple):
    """A kind of values, in words, and whether a value is of it, or each one of a list."""

    words: str
    fits: Callable[[Any], bool]
    is_list: bool = False

    def fault(self, value: Any) -> str:
        """The value, or the item of a list, that does not fit, in words; empty where all fits."""
        if not self.is_list or not isinstance(value, list):
            return "" if not self.is_list and self.fits(value) else f"is {_shown(value)}"
        return next((f"has {_shown(item)}" for item in value if not self.fits(item)), "")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]} ..."


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_TEXT = _Kind("a text", lambda value: isinstance(value, str))
_FLAG = _Kind("true or false", lambda value: isinstance(value, bool))
_WHOLE = _Kind("a whole number", lambda value: type(value) is int)
_COUNT = _Kind("a whole number, 0 or more", lambda value: type(value) is int and value >= 0)
_SIZE = _Kind("a whole number above 0", lambda value: type(value) is int and value > 0)
_NUMBER = _Kind("a number", _is_number)
_SMALL = _Kind("a number, 0 or more", lambda value: _is_number(value) and value >= 0)
_POSITIVE = _Kind("a number above 0", lambda value: _is_number(value) and value > 0)
_TEXTS = _Kind("a list of texts", _TEXT.fits, is_list=True)
_NUMBERS = _Kind("a list of numbers", _is_number, is_list=True)
_TOKEN_TYPES = _Kind(
    "a list of kinds of tokens, each 1 to 6",
    lambda value: type(value) is int and 1 <= value <= 6,
    is_list=True,
)
_ANY_NUMBERS = _Kind(
    "a number or a list of numbers",
    lambda value: all(
        isinstance(item, int | float) for item in (value if isinstance(value, list) else [value])
    ),
)

_FILES: dict[str, _Kind] = {
    **dict.fromkeys(("general.architecture", "general.name", "general.type"), _TEXT),
    **dict.fromkeys(("split.count", "split.no"), _COUNT),
    "general.alignment": _Kind(
        "a power of two", lambda value: _SIZE.fits(value) and value & (value - 1) == 0
    ),
    "general.sampling.top_k": _WHOLE,
    **dict.fromkeys(("general.sampling.temp", "general.sampling.top_p"), _NUMBER),
    **dict.fromkeys(("general.sampling.min_p", "general.sampling.penalty_repeat"), _NUMBER),
    "tokenizer.chat_templates": _TEXTS,
    "tokenizer.huggingface.json": _TEXT,
    **dict.fromkeys(("tokenizer.ggml.model", "tokenizer.ggml.pre"), _TEXT),
    **dict.fromkeys(("tokenizer.ggml.tokens", "tokenizer.ggml.merges"), _TEXTS),
    "tokenizer.ggml.scores": _NUMBERS,
    "tokenizer.ggml.token_type": _TOKEN_TYPES,
    "tokenizer.ggml.token_type_count": _COUNT,
}
"""Fields that every architecture has under the same name."""
_LIKE: tuple[tuple[re.Pattern[str], _Kind], ...] = (
    (re.compile(r"tokenizer\.chat_template(\..+)?"), _TEXT),
    (re.compile(r"tokenizer\.ggml\.add_\w+"), _FLAG),
    (re.compile(r"tokenizer\.ggml\.\w+_token_id"), _COUNT),
)
_OF_MODEL: dict[str, _Kind] = {
    **dict.fromkeys(("context_length", "embedding_length", "block_count", "vocab_size"), _SIZE),
    **dict.fromkeys(("attention.head_count", "attention.head_count_kv"), _SIZE),
    **dict.fromkeys(("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size"), _SIZE),
    **dict.fromkeys(("ssm.time_step_rank", "ssm.group_count"), _SIZE),
    "full_attention_interval": _SIZE,
    "shortconv.l_cache": _SIZE,
    **dict.fromkeys(("interleave_moe_layer_step", "moe_latent_size", "kda.head_dim"), _SIZE),
    **dict.fromkeys(("attention.shared_kv_layers", "embedding_length_per_layer_input"), _COUNT),
    **dict.fromkeys(("attention.q_lora_rank", "attention.kv_lora_rank"), _COUNT),
    **dict.fromkeys(("attention.key_length_mla", "attention.value_length_mla"), _SIZE),
    "ssm.dt_b_c_rms": _FLAG,
    "attention.recurrent_layers": _FLAG,
    "rope.scaling.finetuned": _FLAG,
    **dict.fromkeys(("attention.key_length", "attention.value_length"), _SIZE),
    **dict.fromkeys(("attention.key_length_swa", "attention.value_length_swa"), _SIZE),
    **dict.fromkeys(("rope.dimension_count", "rope.dimension_count_swa"), _SIZE),
    **dict.fromkeys(("feed_forward_length", "expert_feed_forward_length"), _COUNT),
    **dict.fromkeys(("expert_count", "expert_used_count"), _COUNT),
    "expert_shared_feed_forward_length": _COUNT,
    **dict.fromkeys(("expert_shared_count", "leading_dense_block_count"), _COUNT),
    "nextn_predict_layers": _COUNT,
    "attention.sliding_window": _COUNT,
    "rope.scaling.original_context_length": _COUNT,
    **dict.fromkeys(("expert_weights_norm", "use_parallel_residual"), _FLAG),
    "attention.layer_norm_rms_epsilon": _SMALL,
    "attention.layer_norm_epsilon": _SMALL,
    **dict.fromkeys(("rope.freq_base", "rope.freq_base_swa"), _POSITIVE),
    **dict.fromkeys(("rope.scaling.factor", "rope.scale_linear"), _NUMBER),
    **dict.fromkeys(("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"), _NUMBER),
    **dict.fromkeys(("rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"), _NUMBER),
    **dict.fromkeys(("expert_weights_scale", "logit_scale", "attention.scale"), _NUMBER),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), _NUMBER),
    **dict.fromkeys(("embedding_scale", "residual_scale"), _NUMBER),
    **dict.fromkeys(("attention.temperature_scale", "rope.scaling.yarn_log_multiplier"), _NUMBER),
    **dict.fromkeys(("rope.scaling.type", "tensor_data_layout"), _TEXT),
    "attention.sliding_window_pattern": _Kind(
        _COUNT.words, lambda value: isinstance(value, bool) or _COUNT.fits(value)
    ),
}
"""Fields of an architecture, by what comes behind its name; each may be a list by layer."""

_RECURRENT = frozenset(
    {
        *("granitehybrid", "jamba", "lfm2", "lfm2moe", "mamba", "mamba2"),
        *("kimi-linear", "nemotron_h", "nemotron_h_moe"),
    }
)
"""Architectures in which layers, or all of them, may have no heads of attention."""
_OF_HEADS = frozenset({"attention.head_count", "attention.head_count_kv"})


def check_kinds(fields: dict[str, Any]) -> None:
    """Raise ModelError, a sentence without the file, for the first field of another kind."""
    for name, value, kind in _known(fields):
        if fault := kind.fault(value):
            raise ModelError(f"{name} {fault}, and must be {kind.words}")


def _known(fields: dict[str, Any]) -> Iterator[tuple[str, Any, _Kind]]:
    """The fields with a known kind, their values, and this kind."""
    begin = f"{fields.get('general.architecture', '')}."
    for name, value in fields.items():
        kind = _FILES.get(name) or next(
            (kind for like, kind in _LIKE if like.fullmatch(name)), None
        )
        if kind is not None:
            yield name, value, kind
        elif name.startswith(begin):
            own = name.removeprefix(begin)
            kind = _OF_MODEL.get(own, _ANY_NUMBERS)
            if own in _OF_HEADS and begin[:-1] in _RECURRENT:
                kind = _COUNT
            by_layer = isinstance(value, list) and value
            yield from ((name, item, kind) for item in (value if by_layer else [value]))
