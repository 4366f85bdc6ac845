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
    pre_tokenizer: Any = None
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
        _check_settings(folder, file)
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except ModelError:
        raise
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not a tokenizer: {error}") from None
    return data, file, file.added_tokens != own


def _check_settings(folder: Path, file: TokenizerFile) -> None:
    """Raise ModelError where tokenizer_config.json wants a text cut otherwise than tokenizer.json
    does: only some classes of transformers follow it.
    """
    path = folder / "tokenizer_config.json"
    said = read_json(path) if path.exists() else {}
    if said.get("split_special_tokens"):
        raise ModelError(
            f"{folder}: split_special_tokens is true in its {path.name}: a chat template's own "
            "tokens would be cut into letters"
        )
    spaced, found = said.get("add_prefix_space"), _prefix_spaces(file.pre_tokenizer)
    if isinstance(spaced, bool) and found and spaced not in found:
        wanted, other = str(spaced).lower(), str(not spaced).lower()
        raise ModelError(
            f"{folder}: add_prefix_space is {wanted} in its {path.name}, and {other} in its "
            "tokenizer.json"
        )


def _prefix_spaces(step: Any) -> set[bool]:
    """Whether pre-tokenizers of bytes put a space before a text, wherever they stand."""
    if not isinstance(step, dict):
        return set()
    own = {bool(step.get("add_prefix_space", True))} if step.get("type") == "ByteLevel" else set()
    return own.union(*map(_prefix_spaces, step.get("pretokenizers") or ()))


def end_token_ids(folder: Path, configured: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
    """The ids that end an answer: all that any of a folder's files names, as vLLM has them.

    `configured`: those of config.json. Raises ModelError.
    """
    generation = folder / "generation_config.json"
    ids = read_json(generation).get("eos_token_id") if generation.exists() else None
    listed = ids if isinstance(ids, list) else [] if ids is None else [ids]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in listed):
        raise ModelError(f"{folder}: eos_token_id must be a token or a list of them, got {ids!r}")
    found = [*listed, *configured]
    if texts := end_texts(folder):
        tokenizer = read_tokenizer(folder)
        found += [number for text in texts if (number := tokenizer.id_of(text)) is not None]
    return tuple(dict.fromkeys(number for number in found if 0 <= number < vocab_size))
