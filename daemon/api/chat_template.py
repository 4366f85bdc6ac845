"""Chat templates, as transformers renders them, in a sandbox."""

import datetime as dt
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from daemon.api.errors import ApiError, invalid
from daemon.api.tools.format import SMOLLM, Format, format_of
from daemon.api.tools.history import Messages, in_words, one_call_each

_LONGEST_MESSAGE = 300
_PROBE: Messages = [{"role": "user", "content": "hello"}]
_PROBE_TOOLS: Messages = [
    {
        "type": "function",
        "function": {"name": "f", "description": "", "parameters": {"type": "object"}},
    }
]


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return dt.datetime.now().astimezone().strftime(form)


def _to_json(value: Any, **options: Any) -> str:
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, **options)


class Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's content."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template. Raises ApiError 400 for messages that it refuses.

    `calls` is how a model with this template writes calls. Where the template knows no tools, or
    only in a form that no reader here knows, tools, calls and results are put in words.
    """

    def __init__(self, source: str, special_tokens: dict[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[Generation, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._template: jinja2.Template = environment.from_string(source)
        self._special_tokens = special_tokens
        self._knows_developer = "developer" in source
        form = format_of(source)
        self._knows_tools = form is not None and self._shows_tools()
        self.calls: Format = form if form is not None and self._knows_tools else SMOLLM

    def render(
        self,
        messages: Messages,
        begin_answer: bool = True,
        tools: Messages | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text; with `begin_answer` ready for what the assistant says. `values` are of
        variables that are the template's own.
        """
        if not self._knows_developer:
            messages = [_as_system(message) for message in messages]
        if not self._knows_tools:
            return self._render(in_words(messages, tools or []), begin_answer, None, values)
        if self.calls.single:
            messages = one_call_each(messages)
        return self._render(messages, begin_answer, tools or None, values)

    def _shows_tools(self) -> bool:
        try:
            without = self._render(_PROBE, True, None)
            return self._render(_PROBE, True, _PROBE_TOOLS) != without
        except ApiError:
            return False

    def _render(
        self,
        messages: Messages,
        begin_answer: bool,
        tools: Messages | None,
        values: Mapping[str, Any] | None = None,
    ) -> str:
        try:
            return self._template.render(
                {
                    **self._special_tokens,
                    **(values or {}),
                    "messages": messages,
                    "add_generation_prompt": begin_answer,
                    "tools": tools,
                    "documents": None,
                }
            )
        except MemoryError:
            raise  # there may be none for a sentence either
        except Exception as error:  # noqa: BLE001 - a template is a program of the model's maker
            said = " ".join(str(error).split())[:_LONGEST_MESSAGE] or type(error).__name__
            what = f"the model's chat template refuses these `messages`: {said}"
            raise invalid(what, "messages") from None


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def read_template(folder: Path) -> ChatTemplate | None:
    """The chat template of a model's folder, compiled; None where it has none.

    Raises OSError, ValueError, and whatever compiling it comes to: it is a program.
    """
    config = {
        **_read_json(folder / "special_tokens_map.json"),
        **_read_json(folder / "tokenizer_config.json"),
    }
    source = _template_source(folder, config)
    return ChatTemplate(source, _special_tokens(config)) if source else None


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


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
