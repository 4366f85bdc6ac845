"""Default sampling: what a model's generation_config.json recommends, where a request says nothing.

Read as vLLM reads it: temperature, top_k, top_p, min_p, repetition_penalty and max_new_tokens;
`do_sample` is left alone, since most files that give a temperature leave it at its default. Beyond
it: min_new_tokens, stop_strings, suppress_tokens, and bad_words_ids of one token each. Other fields
about sampling have no effect here, and are named.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from daemon.base.accepted import wrong_value
from daemon.base.files import read_whole
from daemon.models.shape import ModelError

_MOST_SHOWN = 8
AUTO, NEUTRAL = "auto", "llmd"
"""Values of `model.generation_config`; any other one is a folder."""

_FILE = "generation_config.json"
_SAYS_NOTHING: dict[str, tuple[Any, ...] | None] = {
    **dict.fromkeys(("pad_token_id", "bos_token_id", "decoder_start_token_id", "do_sample"), None),
    **dict.fromkeys(("eos_token_id", "transformers_version", "trust_remote_code"), None),
    **dict.fromkeys(("_from_model_config", "_name_or_path", "_commit_hash"), None),
    **dict.fromkeys(("use_cache", "cache_implementation", "cache_config", "max_cache_len"), None),
    **dict.fromkeys(("compile_config", "disable_compile", "continuous_batching_config"), None),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_scores"), None),
    **dict.fromkeys(("output_logits", "return_dict_in_generate", "low_memory"), None),
    **dict.fromkeys(("prefill_chunk_size", "remove_invalid_values", "renormalize_logits"), None),
    **dict.fromkeys(("use_mtp", "is_assistant", "num_assistant_tokens"), None),
    **dict.fromkeys(("num_assistant_tokens_schedule", "assistant_confidence_threshold"), None),
    **dict.fromkeys(("prompt_lookup_num_tokens", "max_matching_ngram_size"), None),
    **dict.fromkeys(("assistant_early_exit", "assistant_lookbehind", "target_lookbehind"), None),
    **dict.fromkeys(("assistant_ensemble_weight", "speculation_type"), None),
    **dict.fromkeys(("early_stopping", "length_penalty"), None),  # of beams alone
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences"), (1,)),
    **dict.fromkeys(("typical_p", "top_h", "encoder_repetition_penalty", "guidance_scale"), (1,)),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "diversity_penalty", "penalty_alpha"), (0,)),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length"), (0,)),
    "token_healing": (False,),
}
"""Fields that change no answer, and with which values; None: any. They are caches, ways to compute,
tokens that the tokenizer names, too, and neutral values.
"""


class DefaultSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters of a request that names none. These defaults change no distribution."""

    temperature: float = 1.0
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int = 0  # of a chat's answer; 0: as many as the context has room for
    min_tokens: int = 0
    stop: tuple[str, ...] = ()  # texts that end an answer, beside those that a request names
    suppressed: tuple[int, ...] = ()  # tokens that are never sampled

    def __str__(self) -> str:
        """The settings that have an effect, in words."""
        given = msgspec.structs.asdict(self)
        neutral = msgspec.structs.asdict(DefaultSampling())
        changed = [
            f"{key} {_shown(value)}" for key, value in given.items() if value != neutral[key]
        ]
        return f"{', '.join(changed)} (by {_FILE})" if changed else "neutral"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        named = " ".join(repr(text) for text in value[:_MOST_SHOWN])
        return (
            named if len(value) <= _MOST_SHOWN else f"{named} and {len(value) - _MOST_SHOWN} more"
        )
    return f"{value:g}"


_Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class _File(msgspec.Struct, frozen=True):
    """The fields of the file that are read; null is as good as absent."""

    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=10.0)] | None = None
    max_new_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    min_new_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    stop_strings: list[str] | str | None = None
    suppress_tokens: list[_Token] | None = None
    bad_words_ids: list[list[_Token]] | None = None


def default_sampling(setting: str, folder: Path) -> DefaultSampling:
    """The defaults that `model.generation_config` asks for, of the model in `folder`.

    Raises ModelError for a file that cannot be read, and for a folder named that has none.
    """
    data = _data(setting, folder)
    try:
        said = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _unusable(_path(setting, folder), _why(error, data)) from None
    stops = [said.stop_strings] if isinstance(said.stop_strings, str) else said.stop_strings or []
    words = [word[0] for word in said.bad_words_ids or [] if len(word) == 1]
    given: dict[str, Any] = {
        "temperature": said.temperature,
        "top_k": max(said.top_k or 0, 0),
        "top_p": said.top_p,
        "min_p": said.min_p,
        "repetition_penalty": said.repetition_penalty,
        "max_tokens": said.max_new_tokens,
        "min_tokens": said.min_new_tokens,
        "stop": tuple(stop for stop in stops if stop),
        "suppressed": tuple(dict.fromkeys([*(said.suppress_tokens or []), *words])),
    }
    return DefaultSampling(**{name: value for name, value in given.items() if value is not None})


def without_effect(setting: str, folder: Path) -> list[str]:
    """Sampling settings of the file that llmd does not support. Raises ModelError."""
    data = _data(setting, folder)
    try:
        said = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _unusable(_path(setting, folder), _why(error, data)) from None
    return [f"{name} {str(value)[:60]}" for name, value in _left(said)]


def _left(said: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in said.items():
        if name == "bad_words_ids":
            longer = [word for word in value or [] if len(word) > 1]
            if longer:
                yield name, longer
        elif name not in _File.__struct_fields__:
            neutral = _SAYS_NOTHING.get(name, ())
            is_empty = value is None or value is False or value in ("", [], {})
            if not is_empty and neutral is not None and value not in neutral:
                yield name, value


def _path(setting: str, folder: Path) -> Path:
    return (folder if setting == AUTO else Path(setting).expanduser()) / _FILE


def _data(setting: str, folder: Path) -> bytes:
    """The file that `model.generation_config` asks for; of none an empty object."""
    if setting == NEUTRAL:
        return b"{}"
    path = _path(setting, folder)
    try:
        return read_whole(path)
    except FileNotFoundError:
        if setting == AUTO:
            return b"{}"
        raise ModelError(f"{path} is missing: model.generation_config names its folder") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise _unusable(path, str(error)) from None


def _why(error: Exception, data: bytes) -> str:
    """An error of the file's content in words: which field must be what, and what it is."""
    if not isinstance(error, msgspec.ValidationError):
        return str(error)
    return wrong_value(_File, error, msgspec.json.decode(data))


def _unusable(path: Path, why: str) -> ModelError:
    way_out = f"--generation-config {NEUTRAL} does without it"
    return ModelError(f"{path} cannot be used: {why}; {way_out}")
