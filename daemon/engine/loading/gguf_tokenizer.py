"""The tokenizer that a GGUF file's fields describe, as a tokenizer.json.

Byte-level vocabularies ("gpt2") are made here: the pre-tokenizer's name decides how text is cut
into words, whether words that are tokens are merged at all, and whether a prompt begins with BOS,
as in llama.cpp. Those of SentencePiece ("llama") have merges as transformers finds them; that of
Gemma 4 has its own, of letters, and is made here. A field that is unknown here is refused by name.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from daemon.models.gguf_header import GgufHeader
from daemon.models.shape import ModelError

_BEGIN = "tokenizer.ggml."
_NORMAL, _UNKNOWN, _CONTROL, _USER = 1, 2, 3, 4
_USED = frozenset(
    {
        *("model", "pre", "tokens", "token_type", "scores", "merges", "add_space_prefix"),
        *("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "unknown_token_id"),
        *("padding_token_id", "add_bos_token", "add_eos_token"),
        *("fim_pad_token_id", "fim_rep_token_id", "fim_sep_token_id"),
    }
)
_SAYS_NOTHING: dict[str, tuple[Any, ...] | None] = {
    **dict.fromkeys(
        (f"{kind}_token_id" for kind in ("mask", "seperator", "separator", "cls", "prefix")), None
    ),
    **dict.fromkeys((f"{kind}_token_id" for kind in ("suffix", "middle", "fim_pre")), None),
    **dict.fromkeys((f"{kind}_token_id" for kind in ("fim_suf", "fim_mid")), None),
    "token_type_count": (0, 1),
    "add_sep_token": (False,),
    "remove_extra_whitespaces": None,  # of unigram vocabularies alone
    "precompiled_charsmap": None,
}
"""Fields without effect here, and with which values; None: any."""
_ASIDE = re.compile(r"tokenizer\.(chat_template(s|\..+)?|huggingface\.json)")
_ENDS = frozenset(
    {
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>"),
        *("<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>"),
        *("<end_of_utterance>", "<｜end▁of▁sentence｜>", "<turn|>"),
        *("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>"),
        *("<|file_sep|>",),
    }
)
"""Tokens at which llama.cpp ends an answer, whatever a file's fields say."""
_SPACE = "\u2581"
_HARMONY = {"<|return|>", "<|call|>", "<|end|>"}
_END_FIELDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

_GPT_2 = ""
_DIGIT = {"type": "Digits", "individual_digits": True}
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDING = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA_3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_ENDING}"
_QWEN_2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_ENDING}"
_QWEN_3_5 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}" + _ENDING.replace(
    r"\p{L}", r"\p{L}\p{M}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{0}}"
)
_SLASHES = _ENDING.replace(r"[\r\n]*", r"[\r\n/]*", 1)
_TEKKEN = _CASED.replace("{0}", "") + r"|\p{N}" + _SLASHES
_GPT_4O = _CASED.replace("{0}", f"{_CONTRACTIONS}?") + r"|\p{N}{1,3}" + _SLASHES
_SENTENCES = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_THREE_DIGITS = r"\p{N}{1,3}"
_DEEPSEEK_3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED_CODER = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)


_BACK = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
_LINES = {"pattern": {"Regex": r"\n+|[^\n]+"}, "behavior": "Isolated", "invert": False}
_OF_LETTERS: dict[str, Any] = {
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
    "pre_tokenizer": {"type": "Split", **_LINES},
    "decoder": {
        "type": "Sequence",
        "decoders": [_BACK, {"type": "ByteFallback"}, {"type": "Fuse"}],
    },
}
"""The steps around merges of letters (Gemma 4), which never join line ends and others."""


class PreTokenizer(NamedTuple):
    """How a family of byte-level vocabularies takes text."""

    steps: tuple[str | dict[str, Any], ...] = (_GPT_2,)  # patterns of words, or steps as they are
    whole_words: bool = False  # words that are tokens are not merged from letters
    begins: bool = False  # a prompt begins with BOS where no field says otherwise
    composes: bool = False  # letters and their marks become one letter, where there is one (NFC)


_LIKE_LLAMA_3 = PreTokenizer((_LLAMA_3,), whole_words=True, begins=True)
_LIKE_GPT_2 = PreTokenizer()
_BY_DIGITS = PreTokenizer((_DIGIT, _GPT_2))
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3"), _LIKE_LLAMA_3),
    **dict.fromkeys(("falcon-h1", "lfm2", "pixtral", "midm-2.0"), _LIKE_LLAMA_3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer((_LLAMA_3,))),
    "glm4": PreTokenizer((_LLAMA_3,), whole_words=True),
    **dict.fromkeys(
        ("qwen2", "deepseek-r1-qwen", "stablelm2", "f2llmv2"),
        PreTokenizer((_QWEN_2,), composes=True),
    ),
    "qwen35": PreTokenizer((_QWEN_3_5,), composes=True),
    **dict.fromkeys(("megrez", "kormo", "hunyuan"), PreTokenizer((_QWEN_2,))),
    "tekken": PreTokenizer((_TEKKEN,), whole_words=True, begins=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), PreTokenizer((_GPT_4O,))),
    **dict.fromkeys(("gpt-2", "phi-2", "jais", "trillion", "exaone4"), _LIKE_GPT_2),
    **dict.fromkeys(("gigachat", "a.x-4.0", "mellum"), _LIKE_GPT_2),
    **dict.fromkeys(("mpt", "olmo"), PreTokenizer(composes=True)),  # as GPT-NeoX
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), _BY_DIGITS),
    **dict.fromkeys(("exaone", "minerva-7b"), _BY_DIGITS),
    "command-r": PreTokenizer((_DIGIT, _GPT_2), composes=True),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), PreTokenizer((_SENTENCES,))),
    "viking": PreTokenizer((_SENTENCES, r"\p{N}")),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT_2, r"[0-9][0-9][0-9]")),
    **dict.fromkeys(
        ("deepseek-v3", "hunyuan-dense"),
        PreTokenizer((_THREE_DIGITS, "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK_3)),
    ),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "deepseek-coder": PreTokenizer(
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", _DIGIT)
    ),
}
"""By the names that llama.cpp has for them (`tokenizer.ggml.pre`)."""


class GgufVocabulary:
    """A file's tokens, and what its fields say of them. Raises ModelError."""

    def __init__(self, header: GgufHeader) -> None:
        self._fields, self._architecture = header.fields, header.architecture
        self.kind = self._field("model", "")
        self.tokens: list[str] = self._listed("tokens")
        self._kinds: list[int] = self._listed("token_type") or [_NORMAL] * len(self.tokens)
        self._check()
        self._ids = {text: number for number, text in enumerate(self.tokens)}
        self.pre = self._pre_tokenizer() if self.kind == "gpt2" else None

    def _field(self, name: str, default: Any = None) -> Any:
        return self._fields.get(_BEGIN + name, default)

    def _listed(self, name: str) -> list[Any]:
        value: list[Any] = self._field(name, [])
        return value

    def _check(self) -> None:
        if not self.tokens:
            raise ModelError(f"{_BEGIN}tokens is missing: the file has no vocabulary")
        for name, value in self._fields.items():
            if not name.startswith("tokenizer.") or _ASIDE.fullmatch(name):
                continue
            own = name.removeprefix(_BEGIN)
            nothing = own in _SAYS_NOTHING and _SAYS_NOTHING[own]
            if own not in _USED and (
                own not in _SAYS_NOTHING or (nothing and value not in nothing)
            ):
                raise ModelError(f"{name} is {str(value)[:60]}, which llmd does not know")
            if own.endswith("_token_id") and not 0 <= value < len(self.tokens):
                raise ModelError(f"{name} is {value}, and there are {len(self.tokens)} tokens")
        twice = [text for text, count in Counter(self.tokens).items() if count > 1 and text]
        if twice:
            raise ModelError(f"{_BEGIN}tokens has {twice[0]!r} twice")
        for name in ("token_type", "scores"):
            count = len(self._listed(name))
            if count not in (0, len(self.tokens)):
                raise ModelError(
                    f"{_BEGIN}{name} has {count} entries for {len(self.tokens)} tokens"
                )

    def _pre_tokenizer(self) -> PreTokenizer:
        name = self._field("pre")
        if name is None and self._architecture == "gpt2":
            return _LIKE_GPT_2
        if name not in PRE_TOKENIZERS:
            said = "is missing" if name is None else f"is {name!r}"
            raise ModelError(
                f"{_BEGIN}pre {said}: how text is cut into words is not known; llmd knows "
                f"{', '.join(sorted(PRE_TOKENIZERS))}"
            )
        return PRE_TOKENIZERS[name]

    @property
    def ends(self) -> list[int]:
        """Tokens that end an answer, the file's own first: as llama.cpp collects them."""
        named = [self._field(f"{name}_token_id") for name in _END_FIELDS]
        if named[0] is None and self.kind == "llama":
            named[0] = self._ids.get("</s>")
        known = {text for text in _ENDS if self._ids.get(text) is not None}
        if known >= _HARMONY:
            known.remove("<|end|>")  # there it ends a message, not the answer
        found = [*named, *sorted(self._ids[text] for text in known)]
        return list(dict.fromkeys(number for number in found if number is not None))

    def special(self, name: str) -> str | None:
        """The text of a token that a field names."""
        number = self._field(f"{name}_token_id")
        if number is None and self.kind == "llama":  # as llama.cpp has them where no field is
            number = {"bos": 1, "unknown": 0, "eos": 2}.get(name)
        return self.tokens[number] if number is not None and number < len(self.tokens) else None

    @property
    def begins(self) -> bool:
        """Whether a prompt begins with BOS."""
        begins = bool(self._field("add_bos_token", self.pre.begins if self.pre else True))
        return (begins or self.kind == "gemma4") and self.special("bos") is not None

    @property
    def closes(self) -> bool:
        """Whether a prompt ends with EOS."""
        return bool(self._field("add_eos_token", False)) and self.special("eos") is not None

    @property
    def spaced(self) -> bool:
        """Whether SentencePiece puts a space before a text."""
        default = not self._architecture.startswith("gemma")  # whose older files do not say
        return bool(self._field("add_space_prefix", default))

    def added(self) -> list[dict[str, Any]]:
        """Tokens that are found in a text as they stand, before it is cut into words."""
        begin = self.special("bos")
        known, strip = {*self.ends, *([self._ids[begin]] if begin else [])}, self._strips()
        found = []
        for number, (text, kind) in enumerate(zip(self.tokens, self._kinds, strict=True)):
            if text and (kind in (_UNKNOWN, _CONTROL, _USER) or number in known):
                found.append(
                    {
                        "id": number,
                        "content": text,
                        "single_word": False,
                        "lstrip": False,
                        "rstrip": strip and text not in ("<unk>", "<s>", "<|endoftext|>"),
                        "normalized": False,
                        "special": kind != _USER or number in known,
                    }
                )
        return found

    def _strips(self) -> bool:
        """Whether special tokens take the spaces behind them, as those of Phi-3 do."""
        name = str(self._fields.get("general.name", "")).lower()
        return "phi-3" in name or "phi3" in name

    def json(self) -> dict[str, Any]:
        """The tokenizer.json of a byte-level vocabulary, or of letters. Raises ModelError."""
        if self._field("merges") is None:
            raise ModelError(f"{_BEGIN}merges is missing: which letters become tokens is not known")
        merges = [merge.split(" ", 1) for merge in self._listed("merges")]
        for merge in merges:
            if len(merge) != 2:
                raise ModelError(f"{_BEGIN}merges has {merge[0]!r}, which is no pair of tokens")
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": self.added(),
            **(_OF_LETTERS if self.pre is None else _of_bytes(self.pre)),
            "post_processor": self.post_processor(),
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None if self.pre else self.special("unknown"),
                "continuing_subword_prefix": "",
                "end_of_word_suffix": "",
                "fuse_unk": self.pre is None,
                "byte_fallback": self.pre is None,
                "ignore_merges": self.pre is not None and self.pre.whole_words,
                "vocab": self._ids,
                "merges": merges,
            },
        }

    def check_lines(self, tokenizer: Any) -> None:
        """Raise ModelError where a token of line ends alone is not what its text becomes: llama.cpp
        takes such a text whole, and a tokenizer by its merges.
        """
        for text in self.tokens:
            if text and not text.strip("\n"):
                found = tokenizer.encode(text, add_special_tokens=False)
                if found != [self._ids[text]]:
                    raise ModelError(f"{_BEGIN}merges do not make the token {text!r}")

    def post_processor(self) -> dict[str, Any]:
        """BOS before a text and EOS behind it, where they belong."""
        parts = [self.special(name) for name in ("bos", "eos")]
        before = [parts[0]] if self.begins else []
        behind = [parts[1]] if self.closes else []

        def row(sequence: str, number: int) -> list[dict[str, Any]]:
            def one(text: str | None) -> dict[str, Any]:
                return {"SpecialToken": {"id": text, "type_id": number}}

            own = {"Sequence": {"id": sequence, "type_id": number}}
            return [*map(one, before), own, *map(one, behind)]

        used = [text for text in (*before, *behind) if text is not None]
        return {
            "type": "TemplateProcessing",
            "single": row("A", 0),
            "pair": [*row("A", 0), *row("B", 1)],
            "special_tokens": {
                text: {"id": text, "ids": [self._ids[text]], "tokens": [text]} for text in used
            },
        }


def _of_bytes(pre: PreTokenizer) -> dict[str, Any]:
    """The steps around merges of bytes' letters."""
    return {
        "normalizer": {"type": "NFC"} if pre.composes else None,
        "pre_tokenizer": _pre_tokenizer(pre),
        "decoder": _byte_level(True),
    }


def _pre_tokenizer(pre: PreTokenizer) -> dict[str, Any]:
    """The steps; the bytes' letters come once, and last unless words are GPT-2's."""
    steps: list[dict[str, Any]] = []
    for step in pre.steps:
        if isinstance(step, dict):
            steps.append(step)
        elif step == _GPT_2:
            steps.append(_byte_level(True))
        else:
            split = {"pattern": {"Regex": step}, "behavior": "Isolated", "invert": False}
            steps.append({"type": "Split", **split})
    if _GPT_2 not in pre.steps:
        steps.append(_byte_level(False))
    return {"type": "Sequence", "pretokenizers": steps}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def write_tokenizer(source: Path, target: Path, header: GgufHeader) -> GgufVocabulary:
    """Write tokenizer.json and tokenizer_config.json into a folder. Raises ModelError."""
    from transformers import PreTrainedTokenizerFast

    vocabulary = GgufVocabulary(header)
    if vocabulary.kind in ("gpt2", "gemma4"):
        made = vocabulary.json()
    elif vocabulary.kind == "llama":
        made = _of_sentences(source, vocabulary)
    else:
        kind = f"is {vocabulary.kind!r}" if vocabulary.kind else "is missing"
        raise ModelError(f"{_BEGIN}model {kind}, and llmd reads gemma4, gpt2 and llama")
    path = target / "tokenizer.json"
    path.write_text(json.dumps(made, ensure_ascii=False), encoding="utf-8")
    try:
        tokenizer: Any = PreTrainedTokenizerFast(tokenizer_file=str(path))
    except Exception as error:  # noqa: BLE001 - the library raises nothing narrower
        raise ModelError(f"its vocabulary makes no tokenizer: {error}") from None
    if vocabulary.kind == "gemma4":
        vocabulary.check_lines(tokenizer)
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    found_whole = {token["content"] for token in made["added_tokens"]}
    config: dict[str, Any] = {
        f"{name}_token": text
        for field, name in names.items()
        if (text := vocabulary.special(field)) in found_whole  # a word stays a word of any text
    }
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": header.fields.get("tokenizer.chat_template"),
    }
    said = {name: value for name, value in config.items() if value is not None}
    path = target / "tokenizer_config.json"
    path.write_text(json.dumps(said, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if template := config["chat_template"]:
        (target / "chat_template.jinja").write_text(template, encoding="utf-8")
    return vocabulary


def _of_sentences(source: Path, vocabulary: GgufVocabulary) -> dict[str, Any]:
    """A SentencePiece vocabulary: the merges that transformers finds by its scores, and spaces as
    the file wants them, which transformers takes no notice of.

    Each text between special tokens begins with a space, as in llama.cpp and in the tokenizers that
    these files are made of.
    """
    from transformers import AutoTokenizer

    there: Any = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    made: dict[str, Any] = json.loads(there.backend_tokenizer.to_str())
    made["added_tokens"] = vocabulary.added()
    made["post_processor"] = vocabulary.post_processor()
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    before = [{"type": "Prepend", "prepend": _SPACE}] if vocabulary.spaced else []
    made["normalizer"] = {"type": "Sequence", "normalizers": [*before, replace]}
    made["pre_tokenizer"] = None
    behind = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if vocabulary.spaced else []
    steps = [_BACK, {"type": "ByteFallback"}, {"type": "Fuse"}, *behind]
    made["decoder"] = {"type": "Sequence", "decoders": steps}
    return made
