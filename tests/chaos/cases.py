"""Requests of every kind, from a seed."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from tests.api.folder import EOS, TEXT, build, tokenizer
from tests.e2e.prompts import LICENCE, QUESTIONS
from tests.shapes import tiny_config

MODEL = "toy"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
VOCABULARY = range(20, 300)
TEMPLATE = """\
{%- for tool in tools or [] %}{{ '<tool_call> ' + tool.function.name + ' ' }}{% endfor %}
{%- for message in messages %}{{ message.role + ' ' + message.content + '\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ 'assistant ' }}{% endif %}
"""
TOOL = {
    "name": "tell",
    "parameters": {
        "type": "object",
        "properties": {
            "kind": {"enum": ["fox", "dog", "owl"]},
            "sizes": {"type": "array", "items": {"enum": [1, 2, 3, 5, 8]}, "maxItems": 6},
        },
        "required": ["kind", "sizes"],
        "additionalProperties": False,
    },
}


class Case(NamedTuple):
    """One request; what differs between its streamed and its whole form is left out."""

    kind: str
    path: str
    body: dict[str, Any]


def toy_folder(folder: Path) -> Path:
    """A model of which nothing but its shape matters; its template tells of tools by name."""
    build(folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": TEMPLATE}))
    vocab_size = tokenizer().get_vocab_size()
    shape = tiny_config(
        hidden_size=32, max_position_embeddings=2048, vocab_size=vocab_size, eos_token_id=EOS
    )
    (folder / "config.json").write_text(json.dumps(shape))
    weights = {"model.embed_tokens.weight": np.zeros((vocab_size, 32), np.float32)}
    save_file(weights, folder / "model.safetensors")
    return folder


def greedy_cases(model: str, count: int) -> list[Case]:
    """Questions and stretches of the licence; the two best tokens are told, to see how near."""
    text = LICENCE.read_text()
    prompts = [*QUESTIONS, *(text[start : start + 300] for start in range(0, 3000, 500))]
    body = {"model": model, "temperature": 0, "ignore_eos": True, "logprobs": 2}
    return [
        Case("greedy", COMPLETIONS, {**body, "prompt": one, "max_tokens": count}) for one in prompts
    ]


class Asker:
    """Makes cases; equal seeds make equal ones."""

    def __init__(self, seed: int, most_tokens: int) -> None:
        self._chance = random.Random(seed)
        self._most_tokens = most_tokens
        self._shared = self._words(64)

    def cases(self, count: int) -> list[Case]:
        """A number of cases, of all kinds in turn."""
        kinds = list(KINDS.items())
        return [self._case(*kinds[number % len(kinds)]) for number in range(count)]

    def _case(self, kind: str, make: "Callable[[Asker], tuple[str, dict[str, Any]]]") -> Case:
        path, fields = make(self)
        body = {"model": MODEL, "temperature": 0, "max_tokens": self.length(), **fields}
        return Case(kind, path, body)

    def length(self) -> int:
        """The tokens of an answer."""
        return self._chance.randrange(self._most_tokens // 3, self._most_tokens)

    def prompt(self) -> list[int]:
        """Tokens of which the first may be many a prompt's."""
        shared = self._shared[: self._chance.choice([0, 0, 32, 64])]
        return [*shared, *self._words(self._chance.choice([1, 5, 15, 16, 17, 40, 90]))]

    def messages(self) -> list[dict[str, str]]:
        """A question in words that the tokenizer knows."""
        words = " ".join(TEXT).split()
        text = " ".join(self._chance.choice(words) for _ in range(self._chance.randrange(2, 25)))
        return [{"role": "user", "content": text}]

    def heat(self) -> dict[str, Any]:
        """Sampling with a seed."""
        return {
            "temperature": self._chance.choice([0.3, 1.0]),
            "seed": self._chance.getrandbits(60),
        }

    def _words(self, count: int) -> list[int]:
        return [self._chance.choice(VOCABULARY) for _ in range(count)]


def _plain(asker: Asker) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {"prompt": asker.prompt(), "ignore_eos": True}


def _sampled(asker: Asker) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {"prompt": asker.prompt(), **asker.heat()}


def _several(asker: Asker) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {"prompt": asker.prompt(), "n": 3, "min_tokens": 5, **asker.heat()}


def _scored(asker: Asker) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {"prompt": asker.prompt(), "logprobs": 3, "n": 2, **asker.heat()}


def _echoed(asker: Asker) -> tuple[str, dict[str, Any]]:
    fields = {"echo": True, "logprobs": 2, "ignore_eos": True}
    return COMPLETIONS, {"prompt": asker.prompt(), **fields}


def _penalised(asker: Asker) -> tuple[str, dict[str, Any]]:
    fields = {"frequency_penalty": 0.5, "repetition_penalty": 1.1, "ignore_eos": True}
    return COMPLETIONS, {"prompt": asker.prompt(), **fields, **asker.heat()}


def _stopping(asker: Asker) -> tuple[str, dict[str, Any]]:
    # One of these comes soon, wherever the answer goes.
    return COMPLETIONS, {"prompt": asker.prompt(), "stop": ["qu", "ov", "e ", "zy"], "n": 2}


def _regex(asker: Asker) -> tuple[str, dict[str, Any]]:
    form = {"type": "regex", "regex": "([a-z]{2,9} ){4,30}[A-Z]"}
    return COMPLETIONS, {"prompt": asker.prompt(), "response_format": form, **asker.heat()}


def _chat(asker: Asker) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": asker.messages(), "logprobs": True, "top_logprobs": 2}


def _chat_sampled(asker: Asker) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": asker.messages(), "n": 2, "ignore_eos": True, **asker.heat()}


def _schema(asker: Asker) -> tuple[str, dict[str, Any]]:
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": TOOL["parameters"]}}
    return CHAT, {"messages": asker.messages(), "response_format": form, **asker.heat()}


def _tools(asker: Asker) -> tuple[str, dict[str, Any]]:
    tools = [{"type": "function", "function": TOOL}]
    fields = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    return CHAT, {"messages": asker.messages(), **fields, **asker.heat()}


KINDS: dict[str, Callable[[Asker], tuple[str, dict[str, Any]]]] = {
    "greedy": _plain,
    "sampled": _sampled,
    "several": _several,
    "logprobs": _scored,
    "echo": _echoed,
    "penalties": _penalised,
    "stop strings": _stopping,
    "regex": _regex,
    "chat": _chat,
    "chat sampled": _chat_sampled,
    "json": _schema,
    "tools": _tools,
}
"""Every kind of answer that a client may want."""

SHORT_KINDS = ("greedy", "sampled", "several", "logprobs", "penalties", "stop strings")
"""Kinds that are quick to answer: no template and no grammar is theirs."""
