"""Families of tokenizers: a vocabulary as a GGUF file says it, and as transformers has it.

What is compared with is transformers' own class of the family where it has one, else llama.cpp's
patterns, cut by the package `regex` and merged piece by piece.
"""

import inspect
import json
import string
from collections.abc import Callable, Collection
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import regex
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import GPT2Tokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
from transformers.models.cohere.tokenization_cohere import CohereTokenizer
from transformers.models.gpt_neox.tokenization_gpt_neox import GPTNeoXTokenizer
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

from daemon.models.gguf_header import GgufHeader
from tests.models.hard_strings import hard_strings

SPECIAL = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<｜User｜>"]
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
USER = ["<think>", "    "]
VOCAB_SIZE = 1500
SPACE = "\u2581"
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class Vocabulary(NamedTuple):
    """A trained one."""

    ids: dict[str, int]
    merges: list[tuple[str, str]]


class Encoded(NamedTuple):
    """The tokens of a text, as a tokenizer made them."""

    ids: list[int]
    tokens: list[str]


@cache
def vocabulary() -> Vocabulary:
    """A vocabulary of bytes' letters, with merges of hard strings; added tokens first."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(
        [*hard_strings(3000), *["the owl sees the mouse, and the mouse sees 1234 owls. "] * 9],
        trainers.BpeTrainer(
            vocab_size=VOCAB_SIZE,
            special_tokens=[*SPECIAL, *USER],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    said = json.loads(made.to_str())["model"]
    return Vocabulary(said["vocab"], [(one, two) for one, two in said["merges"]])


def gguf_fields(pre: str) -> GgufHeader:
    """The vocabulary as a GGUF file of a pre-tokenizer says it; no field says whether BOS comes."""
    ids, merges = vocabulary()
    kinds = {**dict.fromkeys(SPECIAL, 3), "<unk>": 2, **dict.fromkeys(USER, 4)}
    tokens = sorted(ids, key=lambda text: ids[text])
    said = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [kinds.get(text, 1) for text in tokens],
        "merges": [" ".join(pair) for pair in merges],
        "bos_token_id": ids["<s>"],
        "eos_token_id": ids["</s>"],
        "unknown_token_id": ids["<unk>"],
    }
    own = {f"tokenizer.ggml.{name}": value for name, value in said.items()}
    return GgufHeader({"general.architecture": "llama", **own}, ())


def _with_added(tokenizer: Tokenizer, begins: bool) -> Tokenizer:
    """The added tokens of the vocabulary, and BOS before a text."""
    tokenizer.add_special_tokens([AddedToken(one, normalized=False) for one in SPECIAL])
    tokenizer.add_tokens([AddedToken(one, normalized=False) for one in USER])
    if begins:
        bos = [("<s>", vocabulary().ids["<s>"])]
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=bos
        )
    return tokenizer


def of_class(kind: Any, **options: Any) -> Callable[[], Tokenizer]:
    """transformers' class of a family with the vocabulary."""

    def own() -> Tokenizer:
        ids, merges = vocabulary()
        made = kind(vocab=ids, merges=merges, **NAMES, **options)
        return _with_added(made.backend_tokenizer, begins=False)

    return own


def by_converter(pattern: str, whole_words: bool, begins: bool) -> Callable[[], Tokenizer]:
    """As transformers converts files of tiktoken's kind."""

    def own() -> Tokenizer:
        ids, merges = vocabulary()
        made = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=whole_words))
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        made.decoder = decoders.ByteLevel()
        return _with_added(made, begins)

    return own


class ByPatterns:
    """llama.cpp's way: patterns cut what those before have left; bytes of a piece are merged."""

    def __init__(self, *patterns: str) -> None:
        ids, merges = vocabulary()
        self._patterns = [regex.compile(one) for one in patterns]
        added = sorted([*SPECIAL, *USER], key=len, reverse=True)
        self._added = regex.compile("|".join(regex.escape(one) for one in added))
        self._ids = ids
        self._merged = Tokenizer(models.BPE(vocab=ids, merges=merges))
        self._merged.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=False, use_regex=False
        )
        self._merged.decoder = decoders.ByteLevel()
        _with_added(self._merged, begins=False)

    def encode_batch(self, texts: list[str], add_special_tokens: bool) -> list[Encoded]:
        return [self._encoded(text) for text in texts]

    def decode(self, ids: list[int]) -> str:
        text: str = self._merged.decode(ids)
        return text

    def _encoded(self, text: str) -> Encoded:
        found, at = list[str](), 0
        for match in self._added.finditer(text):
            found += [*self._words(text[at : match.start()]), match[0]]
            at = match.end()
        found += self._words(text[at:])
        return Encoded([self._ids[one] for one in found], found)

    def _words(self, text: str) -> list[str]:
        pieces = [text] if text else []
        for pattern in self._patterns:
            pieces = [one for piece in pieces for one in _isolated(pattern, piece)]
        return [token for piece in pieces for token in self._merged.encode(piece).tokens]


def _isolated(pattern: Any, text: str) -> list[str]:
    """The matches of a pattern in a text, and the parts between them."""
    found, at = list[str](), 0
    for match in pattern.finditer(text):
        found += [text[at : match.start()], match[0]]
        at = match.end()
    return [one for one in (*found, text[at:]) if one]


_TIKTOKEN: str = inspect.signature(TikTokenConverter).parameters["pattern"].default
_SENTENCES = r" ?[^(\s|.,!?…。，、।۔،)]+"
FAMILIES: dict[str, Callable[[], Any]] = {
    "gpt-2": of_class(GPT2Tokenizer),
    "olmo": of_class(GPTNeoXTokenizer),
    "qwen2": of_class(Qwen2Tokenizer),
    "qwen35": of_class(Qwen3_5Tokenizer),
    "megrez": by_converter(PRETOKENIZE_REGEX, False, False),
    "command-r": of_class(CohereTokenizer),
    "smollm": lambda: ByPatterns(r"\p{N}", GPT_2),
    "llama-bpe": by_converter(_TIKTOKEN, True, True),
    "dbrx": by_converter(_TIKTOKEN, False, False),
    "glm4": by_converter(_TIKTOKEN, True, False),
    "tekken": by_converter(GGUF_PRE_TOKENIZER_SPLITS["tekken"], True, True),
    "gpt-4o": by_converter(GGUF_PRE_TOKENIZER_SPLITS["gpt-4o"], False, False),
    "bloom": lambda: ByPatterns(_SENTENCES),
    "viking": lambda: ByPatterns(_SENTENCES, r"\p{N}"),
    "falcon": lambda: ByPatterns(r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, "[0-9][0-9][0-9]"),
    "hunyuan-dense": lambda: ByPatterns(
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        "[" + regex.escape(string.punctuation) + "][A-Za-z]+"
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "seed-coder": lambda: ByPatterns(
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
        r"|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "deepseek-coder": lambda: ByPatterns(
        r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"
    ),
}
"""By the names of pre-tokenizers, of each family one: how it takes text."""


@cache
def sentence_pieces() -> tuple[list[str], list[float], list[int]]:
    """Tokens, scores and kinds of a small SentencePiece vocabulary: bytes, letters, pieces."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    texts = [one for one in hard_strings(1500) if one.isascii()]
    trained.train_from_iterator(
        [*texts, *["the owl sees the mouse, and the mouse sees 1234 owls. "] * 9],
        trainers.BpeTrainer(vocab_size=700, show_progress=False),
    )
    ids = trained.get_vocab()
    pieces = sorted((one for one in ids if one not in SPECIAL), key=lambda one: ids[one])
    letters = [one for one in pieces if len(one) == 1]
    longer = [one for one in pieces if len(one) > 1]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    scores = [0.0] * len(tokens)
    kinds = [2, 3, 3] + [6] * 256
    tokens += [*longer, *letters, "<|im_end|>", "<think>"]
    scores += [-float(rank) for rank in range(len(longer))] + [-1e5] * len(letters) + [0.0, 0.0]
    kinds += [1] * (len(longer) + len(letters)) + [3, 4]
    return tokens, scores, kinds


@cache
def letter_merges() -> tuple[list[str], list[int], list[str]]:
    """Tokens, kinds and merges of a small vocabulary of letters, as Gemma 4 has one."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    trained.normalizer = normalizers.Replace(" ", SPACE)
    trained.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+|[^\n]+"), "isolated")
    texts = [one for one in hard_strings(1500) if one.isascii()]
    first = ["<pad>", "</s>", "<s>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trained.train_from_iterator(
        [*texts, *["the owl sees\n\n\n the mouse,\n\nand the mouse sees 1234 owls. "] * 9],
        trainers.BpeTrainer(vocab_size=900, special_tokens=first, show_progress=False),
    )
    said = json.loads(trained.to_str())["model"]
    tokens = sorted(said["vocab"], key=lambda text: said["vocab"][text])
    kinds = [3, 3, 3, 2] + [6] * 256 + [1] * (len(tokens) - len(first))
    return [*tokens, "<turn|>"], [*kinds, 3], [" ".join(pair) for pair in said["merges"]]


class ByRanks:
    """llama.cpp's way with Gemma 4: letters of a line are joined by the ranks of merges; a text of
    line ends alone stays whole where it is a token.
    """

    def __init__(self) -> None:
        tokens, kinds, merges = letter_merges()
        self._ids = {text: number for number, text in enumerate(tokens)}
        self._ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.added = [text for text, kind in zip(tokens, kinds, strict=True) if kind in (2, 3)]
        added = sorted(self.added, key=len, reverse=True)
        self._added = regex.compile("|".join(regex.escape(one) for one in added))

    def tokens(self, text: str) -> list[str]:
        found, at = ["<s>"], 0
        for match in self._added.finditer(text):
            found += [*self._lines(text[at : match.start()]), match[0]]
            at = match.end()
        return found + self._lines(text[at:])

    def _lines(self, text: str) -> list[str]:
        lines = regex.findall(r"[^\n]+|\n+", text.replace(" ", SPACE))
        return [token for line in lines for token in self._joined(line)]

    def _joined(self, line: str) -> list[str]:
        if not line.strip("\n") and line in self._ids:
            return [line]
        parts = list(line)
        while known := [
            (self._ranks[pair], at)
            for at, pair in enumerate(pairwise(parts))
            if pair in self._ranks
        ]:
            at = min(known)[1]
            parts[at : at + 2] = ["".join(parts[at : at + 2])]
        return [token for part in parts for token in in_bytes(part, self._ids)]


def in_bytes(part: str, known: Collection[str]) -> list[str]:
    """A piece of text, or its bytes' tokens where it is none."""
    return [part] if part in known else [f"<0x{byte:02X}>" for byte in part.encode()]


class ByScores:
    """llama.cpp's way with SentencePiece: neighbours whose token scores best are joined first."""

    def __init__(self, spaced: bool, begins: bool) -> None:
        tokens, scores, kinds = sentence_pieces()
        self._ids = {text: number for number, text in enumerate(tokens)}
        self._scores = dict(zip(tokens, scores, strict=True))
        added = [text for text, kind in zip(tokens, kinds, strict=True) if kind in (2, 3, 4)]
        self.added = sorted(added, key=len, reverse=True)
        self._added = regex.compile("|".join(regex.escape(one) for one in self.added))
        self._spaced, self._begins = spaced, begins

    def tokens(self, text: str) -> list[str]:
        found, at = ["<s>"] * self._begins, 0
        for match in self._added.finditer(text):
            found += [*self._joined(text[at : match.start()]), match[0]]
            at = match.end()
        return found + self._joined(text[at:])

    def _joined(self, text: str) -> list[str]:
        if not text:
            return []
        parts = list(f"{' ' * self._spaced}{text}".replace(" ", SPACE))
        while True:
            pairs = [one + two for one, two in pairwise(parts)]
            known = [(-self._scores[one], at) for at, one in enumerate(pairs) if one in self._ids]
            if not known:
                break
            at = min(known)[1]
            parts[at : at + 2] = [pairs[at]]
        return [token for part in parts for token in in_bytes(part, self._ids)]
