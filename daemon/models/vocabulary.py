"""A folder's tokenizer: the ids of its tokens, and which tokens end an answer.

All readers get it from here: tokenizer.json with the tokens that other files add. A model
answers with ids below its vocabulary's size. A tokenizer may have tokens beyond: they have
no row in the embedding, and no prompt may contain them.
"""

from pathlib import Path
from typing import Any

import msgspec

from daemon.models.added_tokens import AddedToken, all_added, end_texts
from daemon.models.shape import ModelError, read_json


class _Template(msgspec.Struct):
    special_tokens: dict[str, Any] = {}


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[msgspec.Raw] = {}


class TokenizerFile(msgspec.Struct):
    """A tokenizer.json's fields that say which ids there are, with tokens that other files add."""

    model: _Model
    added_tokens: list[AddedToken] | None = None
    post_processor: Any = None

    @property
    def highest(self) -> int:
        """The highest id of its vocabulary, added tokens aside; -1: there is none."""
        vocab = self.model.vocab
        return max(vocab.values(), default=-1) if isinstance(vocab, dict) else len(vocab) - 1

    def beyond(self, vocab_size: int) -> list[AddedToken]:
        """Added tokens for which a model of `vocab_size` has no row."""
        return [token for token in self.added_tokens or () if token.id >= vocab_size]

    def around(self) -> set[int]:
        """The ids that are put around every prompt."""
        return set(_ids(self.post_processor))

    def id_of(self, text: str) -> int | None:
        """The id of a token; None where there is none of this text."""
        for token in self.added_tokens or ():
            if token.content == text:
                return token.id
        return self.vocabulary().get(text)

    def vocabulary(self) -> dict[str, int]:
        """The ids of its tokens, added ones aside."""
        vocab = self.model.vocab
        if isinstance(vocab, dict):
            return vocab
        entries = [msgspec.json.decode(raw) for raw in vocab]  # a text and a score
        return {
            entry[0]: number
            for number, entry in enumerate(entries)
            if isinstance(entry, list) and entry and isinstance(entry[0], str)
        }


def _ids(step: Any) -> list[int]:
    """Ids of tokens that post-processors add, wherever they name them."""
    if isinstance(step, list):
        return [number for item in step for number in _ids(item)]
    if not isinstance(step, dict):
        return []
    named = step.get("special_tokens")
    own = [token.get("ids", ()) for token in named.values()] if isinstance(named, dict) else []
    return [number for ids in own for number in ids] + _ids(step.get("processors"))


def read_tokenizer(folder: Path) -> TokenizerFile:
    """A folder's tokenizer. Raises ModelError."""
    return _read(folder)[1]


def tokenizer_json(folder: Path) -> bytes:
    """A tokenizer.json that has all added tokens of a folder. Raises ModelError."""
    data, file, is_changed = _read(folder)
    if not is_changed:
        return data
    whole = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    whole["added_tokens"] = msgspec.Raw(msgspec.json.encode(file.added_tokens))
    return msgspec.json.encode(whole)


def _read(folder: Path) -> tuple[bytes, TokenizerFile, bool]:
    """The bytes of tokenizer.json, what is read of it and of what other files add, and whether they
    add or change anything.
    """
    path = folder / "tokenizer.json"
    try:
        data = path.read_bytes()
        file = msgspec.json.decode(data, type=TokenizerFile)
        own = file.added_tokens or []
        file.added_tokens = all_added(folder, own, file.vocabulary())
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except ModelError:
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not a tokenizer: {error}") from None
    return data, file, file.added_tokens != own


def end_token_ids(folder: Path, configured: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    """The ids that end an answer: all that any of a folder's files names, as vLLM has them.

    `configured`: those of config.json. Raises ModelError.
    """
    generation = folder / "generation_config.json"
    ids = read_json(generation).get("eos_token_id") if generation.exists() else None
    listed = ids if isinstance(ids, list) else [] if ids is None else [ids]
    if not all(isinstance(number, int) for number in listed):
        raise ModelError(f"{folder}: eos_token_id must be a token or a list of them, got {ids!r}")
    found = [*listed, *configured]
    if texts := end_texts(folder):
        tokenizer = read_tokenizer(folder)
        found += [number for text in texts if (number := tokenizer.id_of(text)) is not None]
    return tuple(dict.fromkeys(number for number in found if 0 <= number < vocab_size))
