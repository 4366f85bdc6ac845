"""What a folder's tokenizer.json says of its tokens' ids, and which tokens end an answer.

A model answers with ids below its vocabulary's size. A tokenizer may have tokens beyond: they have
no row in the embedding, and no prompt may contain them.
"""

from pathlib import Path
from typing import Any

import msgspec

from daemon.models.shape import ModelError, read_json

_CONFIG, _OLDER = "tokenizer_config.json", "special_tokens_map.json"


class AddedToken(msgspec.Struct):
    """A token that is found in a text as it stands."""

    id: int
    content: str


class _Template(msgspec.Struct):
    special_tokens: dict[str, Any] = {}


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[msgspec.Raw] = {}


class TokenizerFile(msgspec.Struct):
    """Of tokenizer.json, what says which ids there are."""

    model: _Model
    added_tokens: list[AddedToken] | None = None
    post_processor: Any = None

    @property
    def highest(self) -> int:
        """The highest id of its vocabulary, added tokens aside; -1: there is none."""
        vocab = self.model.vocab
        return max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1

    def beyond(self, vocab_size: int) -> list[AddedToken]:
        """Added tokens for which a model with so many has no row."""
        return [one for one in self.added_tokens or () if one.id >= vocab_size]

    def around(self) -> set[int]:
        """The ids that are put around every prompt."""
        return set(_ids(self.post_processor))

    def id_of(self, text: str) -> int | None:
        """The id of a token; None where there is none of this text."""
        for one in self.added_tokens or ():
            if one.content == text:
                return one.id
        vocab = self.model.vocab
        if isinstance(vocab, dict):
            return vocab.get(text)
        for number, raw in enumerate(vocab):
            entry = msgspec.json.decode(raw)
            if isinstance(entry, list) and entry and entry[0] == text:
                return number
        return None


def _ids(step: Any) -> list[int]:
    """Of tokens that post-processors add, wherever they name them."""
    if isinstance(step, list):
        return [number for one in step for number in _ids(one)]
    if not isinstance(step, dict):
        return []
    named = step.get("special_tokens")
    own = [one.get("ids", ()) for one in named.values()] if isinstance(named, dict) else []
    return [number for ids in own for number in ids] + _ids(step.get("processors"))


def read_tokenizer(folder: Path) -> TokenizerFile:
    """A folder's tokenizer.json. Raises ModelError."""
    file = folder / "tokenizer.json"
    try:
        return msgspec.json.decode(file.read_bytes(), type=TokenizerFile)
    except OSError as error:
        raise ModelError(f"{file}: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} is not a tokenizer: {error}") from None


def end_token_ids(folder: Path, configured: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    """The ids that end an answer: all that any of a folder's files names, as vLLM has them.

    `configured`: those of config.json. Raises ModelError.
    """
    generation = folder / "generation_config.json"
    ids = read_json(generation).get("eos_token_id") if generation.exists() else None
    listed = ids if isinstance(ids, list) else [] if ids is None else [ids]
    if not all(isinstance(one, int) for one in listed):
        raise ModelError(f"{folder}: eos_token_id must be a token or a list of them, got {ids!r}")
    found = [*listed, *configured]
    if text := _eos_token(folder):
        number = read_tokenizer(folder).id_of(text)
        found += [] if number is None else [number]
    return tuple(dict.fromkeys(one for one in found if 0 <= one < vocab_size))


def _eos_token(folder: Path) -> str:
    """The end token's text as the tokenizer's configuration names it; empty where none does."""
    for name in (_CONFIG, _OLDER):
        if (folder / name).exists():
            value = read_json(folder / name).get("eos_token")
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                return text
    return ""
