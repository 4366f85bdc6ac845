"""A model folder's tokenizer and chat template."""

import copy
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from jinja2 import TemplateSyntaxError
from tokenizers import Tokenizer

from daemon.api.chat_template import ChatTemplate
from daemon.api.errors import ApiError, invalid, shown
from daemon.api.token_bytes import TokenBytes
from daemon.api.tools.format import SMOLLM, Format, marker_tokens
from daemon.api.tools.history import Messages
from daemon.memory.hashing import chain_hashes
from daemon.wire.columns import Int32, int32

log = logging.getLogger(__name__)

EXCERPT_CHARS = 8000
PIECE_LETTERS = 16
"""A text of more letters for each token that fits is looked at in pieces of as many first. Words
have four letters to a token; only runs of one letter have so many.
"""


class Prompt(msgspec.Struct, frozen=True):
    """A prompt as the runtime wants it."""

    tokens: Int32  # [prompt length >= 1]
    hashes: bytes  # of its full blocks
    text: str = ""  # for `echo`
    words: str = ""  # what a predictor of the answer's length reads: no template, not all of it


def excerpt(text: str) -> str:
    """A text's beginning and end, at most `EXCERPT_CHARS` in all: there instructions stand."""
    if len(text) <= EXCERPT_CHARS:
        return text
    half = EXCERPT_CHARS // 2
    return f"{text[:half]}\n{text[-half:]}"


def too_long(num_tokens: str, max_tokens: int, max_len: int, param: str = "messages") -> ApiError:
    """The 400 of a prompt that does not fit."""
    return invalid(
        f"this model's maximum context length is {max_len} tokens, but the prompt has "
        f"{num_tokens} and max_tokens is {shown(max_tokens)}",
        param,
        "context_length_exceeded",
    )


class Text:
    """Everything between text and tokens. Its methods may run in any thread."""

    def __init__(self, folder: Path) -> None:
        """Read the folder's files. Raises OSError, ValueError."""
        try:
            self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:
            raise ValueError(f"{folder / 'tokenizer.json'}: {error}") from error
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.token_bytes = TokenBytes(self.tokenizer)
        self.markers = marker_tokens(self.tokenizer)
        self._template = _chat_template(folder)
        vocabulary = self.tokenizer.get_vocab(with_added_tokens=True)
        self.salt = b""
        self._longest_token_bytes = max(len(token.encode()) for token in vocabulary)

    @property
    def calls(self) -> Format:
        """How the model writes calls of tools."""
        return SMOLLM if self._template is None else self._template.calls

    def chat(
        self,
        messages: Messages,
        max_len: int,
        begin_answer: bool = True,
        special: bool = False,
        tools: Messages | None = None,
    ) -> list[int]:
        """The tokens of a conversation, up to the assistant's answer or to the last message.

        A template writes its special tokens itself; `special` adds the tokenizer's own to them.
        """
        if self._template is None:
            raise invalid("this model has no usable chat template; use /v1/completions", "messages")
        prompt = self._template.render(messages, begin_answer, tools)
        return self._encode(prompt, special, max_len, "messages")

    def complete(self, prompt: str, max_len: int, special: bool = True) -> list[int]:
        """The tokens of a plain text, with the tokenizer's own special tokens around it."""
        return self._encode(prompt, special, max_len, "prompt")

    def salted(self, salt: bytes) -> "Text":
        """The same, but its prompts' blocks are found again under this salt alone."""
        other = copy.copy(self)
        other.salt = salt
        return other

    def prompt(
        self, tokens: Sequence[int], block_size: int, text: str = "", words: str = ""
    ) -> Prompt:
        """The prompt with its block hashes."""
        hashes = chain_hashes(tokens, block_size, self.salt)
        return Prompt(int32(tokens), hashes, text, excerpt(words))

    def decode(self, tokens: Sequence[int], with_special: bool = False) -> str:
        """The text of tokens; special ones have none unless they are asked for."""
        ids = np.asarray(tokens, np.int64).tolist()
        text: str = self.tokenizer.decode(ids, skip_special_tokens=not with_special)
        return text

    def names(self, tokens: Sequence[int]) -> list[str]:
        """The tokens as the vocabulary writes them; empty for an id that no token has."""
        return [self.tokenizer.id_to_token(token) or "" for token in tokens]

    def _encode(self, text: str, special: bool, max_len: int, param: str) -> list[int]:
        num_bytes = len(text.encode())
        # No tokenizer can do better: refuse before minutes are spent on it.
        if num_bytes > max_len * self._longest_token_bytes:
            raise too_long(f"{num_bytes} bytes of text", 0, max_len, param)
        if len(text) > max_len * PIECE_LETTERS:
            self._count_piecewise(text, max_len, param)
        return self._tokens(text, special)

    def _count_piecewise(self, text: str, max_len: int, param: str) -> None:
        """Look at a long text piece by piece. Raises ApiError 400 as soon as it cannot fit."""
        num_letters, num_tokens = max_len * PIECE_LETTERS, 0
        for begin in range(0, len(text), num_letters):
            num_tokens += len(self._tokens(text[begin : begin + num_letters], False))
            if num_tokens > 2 * max_len:  # words that were cut count twice; they are not half
                raise too_long(f"more than {num_tokens}", 0, max_len, param)

    def _tokens(self, text: str, special: bool) -> list[int]:
        # `encode` keeps the interpreter's lock all the while; the batch call lets it go.
        (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=special)
        ids: list[int] = encoding.ids
        return ids


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])


def _chat_template(folder: Path) -> ChatTemplate | None:
    config = {
        **_read_json(folder / "special_tokens_map.json"),
        **_read_json(folder / "tokenizer_config.json"),
    }
    source = _template_source(folder, config)
    if not source:
        return None
    try:
        return ChatTemplate(source, _special_tokens(config))
    except TemplateSyntaxError as error:
        log.warning("the chat template of %s is not usable: %s", folder, error)
        return None


def _template_source(folder: Path, config: dict[str, Any]) -> str:
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    source = config.get("chat_template")
    if not source:
        source = _read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(source, list):  # several, by name
        named = {entry["name"]: entry["template"] for entry in source}
        source = named.get("default")
    return source if isinstance(source, str) else ""


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {}
    for name, value in config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                tokens[name] = text
    return tokens
