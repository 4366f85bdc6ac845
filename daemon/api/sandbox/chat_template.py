"""Chat templates, as transformers renders them, in a sandbox."""

import datetime as dt
import json
import re
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

from daemon.api.replies.errors import ApiError, invalid
from daemon.api.sandbox.conversation import CHANNELS, TAGS, TURNS
from daemon.api.text.markers import CHANNEL, THOUGHT_CLOSING, TURN_THOUGHT_ENDS
from daemon.api.tools.format import SMOLLM, Format, format_of
from daemon.api.tools.history import (
    Messages,
    in_words,
    one_call_each,
    with_results,
    with_thinking,
)
from daemon.models.added_tokens import named_tokens

_THOUGHTS = ((CHANNEL, CHANNELS), (TURN_THOUGHT_ENDS, TURNS), (THOUGHT_CLOSING, TAGS))
"""Marks in a template's text, and how its model writes thoughts."""
_THINKING = re.compile(r"\bthinking\b")
"""The name of a message's thoughts in templates of gpt-oss."""
_ROLE_TOOL = re.compile(r"role\W+(==|in)[^%}]*['\"]tool['\"]")
"""A template's question for messages that are results of calls."""
_DEFAULT, _FURTHER = "default", "additional_chat_templates"
_NO_TEMPLATES = "its chat_template is neither a text nor a list of texts with names"
_REFUSES = "the model's chat template refuses these `messages`: "
_LONGEST_MESSAGE = 300
_MARK = "=the-last-message-ends-here= "
"""Its last space shows whether a template trims messages."""
_PROBE: Messages = [{"role": "user", "content": "hello"}]
_WORDS = "owl 7731"
_SYSTEM, _USER, _ASSISTANT = (
    {"role": role, "content": "x"} for role in ("system", "user", "assistant")
)
_CALL: dict[str, Any] = {
    "type": "function",
    "id": "call12345",
    "function": {"name": "f", "arguments": {}},
}
_TRIED: dict[str, list[tuple[Messages, Messages]]] = {
    "user": [([], []), ([_SYSTEM], []), ([_USER, _ASSISTANT], []), ([], [_ASSISTANT, _USER])],
    "system": [([], [_USER]), ([], [_USER, _ASSISTANT, _USER])],
    "assistant": [([_USER], [_USER]), ([_SYSTEM, _USER], [_USER]), ([_USER], [])],
    "tool": [([_USER, {**_ASSISTANT, "content": "", "tool_calls": [_CALL]}], [])],
}
"""Messages around one of a role, to try whether the template shows its content."""
_PROBE_TOOLS: Messages = [
    {
        "type": "function",
        "function": {"name": "f", "description": "", "parameters": {"type": "object"}},
    }
]


class _Named(msgspec.Struct, frozen=True):
    """A template of a list."""

    name: str
    template: str


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return dt.datetime.now().astimezone().strftime(form)


def _to_json(value: Any, **options: Any) -> str:
    options.setdefault("ensure_ascii", False)
    return json.dumps(value, **options)


class Generation(Extension):
    """`{% generation %}`, which marks the assistant's words for training and is ignored here."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The block's content."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled chat template. Raises ApiError 400 for messages that it refuses.

    `calls` is the format in which a model with this template writes calls. Where the template knows
    no tools, or only in a format that no reader here knows, tools, calls and results become plain
    text. `thoughts`: how its model writes them (see `Rendered`). `shows_words`: whether a user's
    text appears in the prompt. `refuses`: why it refuses all that was tried. Some templates iterate
    over the parts of a message and leave out plain text; for which roles is found by trying.
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
        self.thoughts = next((form for mark, form in _THOUGHTS if mark in source), "")
        is_named = "reasoning_content" not in source and _THINKING.search(source) is not None
        self._names_thinking = self.thoughts == CHANNELS and is_named
        self._wants_results = "tool_responses" in source and not _ROLE_TOOL.search(source)
        self._in_parts: frozenset[str] = frozenset()
        self._refused = ""  # why a conversation was refused last
        self.shows_words = self._finds_parts()
        self.refuses = "" if self._takes_users else self._refused
        form = format_of(source)
        self._knows_tools = form is not None and self._shows_tools()
        self.calls: Format = form if form is not None and self._knows_tools else SMOLLM

    def render(
        self,
        messages: Messages,
        begin_answer: bool = True,
        tools: Messages | None = None,
        values: Mapping[str, Any] | None = None,
        *,
        continue_last: bool = False,
    ) -> str:
        """The prompt's text; with `begin_answer` ready for the assistant's answer. `values` are of
        the template's own variables. With `continue_last` it ends in the last message.
        """
        if continue_last:
            marked = self.render(_with_mark(messages), False, tools, values)
            return _before_mark(marked)
        if not self._knows_developer:
            messages = [_as_system(message) for message in messages]
        if not self._knows_tools:
            messages, tools = in_words(messages, tools or []), None
        if self.calls.single:
            messages = one_call_each(messages)
        if self._wants_results:
            messages = with_results(messages)
        if self._names_thinking:
            messages = with_thinking(messages)
        return self._render(messages, begin_answer, tools or None, values)

    def _finds_parts(self) -> bool:
        """Find the roles whose messages must come in parts; return whether a user's text shows."""
        as_text = {role: self._shows(role) for role in _TRIED}
        hidden = frozenset(role for role, shows in as_text.items() if not shows)
        self._in_parts = hidden
        in_parts = {role: self._shows(role) for role in hidden}
        # A role that shows in neither form, or is refused, gets the user's form.
        like_user = bool(in_parts.get("user"))
        self._in_parts = frozenset(role for role in hidden if in_parts[role] or like_user)
        self._takes_users = (as_text["user"], in_parts.get("user")) != (None, None)
        return as_text["user"] is not False or in_parts["user"] is not False

    def _shows(self, role: str) -> bool | None:
        """Whether a role's text appears in some prompt; None: all are refused."""
        message: dict[str, Any] = {"role": role, "content": _WORDS}
        message |= {"tool_call_id": _CALL["id"], "name": "f"} if role == "tool" else {}
        tools, found = _PROBE_TOOLS if role == "tool" else None, None
        for before, behind in _TRIED[role]:
            try:
                found = _WORDS in self._render([*before, message, *behind], True, tools)
            except ApiError as error:
                if role == "user":
                    self._refused = error.message.removeprefix(_REFUSES)
            if found:
                break
        return found

    def _shows_tools(self) -> bool:
        try:
            without = self._render(_PROBE, True, None)
            return self._render(_PROBE, True, _PROBE_TOOLS) != without
        except ApiError:
            return False

    def _parted(self, message: dict[str, Any]) -> dict[str, Any]:
        """A message with its content as the template reads it."""
        if message["role"] not in self._in_parts or not isinstance(message["content"], str):
            return message
        return {**message, "content": _as_parts(message["content"])}

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
                    "messages": [self._parted(message) for message in messages],
                    "add_generation_prompt": begin_answer,
                    "tools": tools,
                    "documents": None,
                }
            )
        except MemoryError:
            raise  # there may be too little for an error message, too
        except Exception as error:  # noqa: BLE001 - a template is a program of the model's maker
            why = " ".join(str(error).split())[:_LONGEST_MESSAGE] or type(error).__name__
            raise invalid(_REFUSES + why, "messages") from None


def _as_parts(content: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}] if content else []


def _with_mark(messages: Messages) -> Messages:
    """The messages, with a mark at the end of the last one's text."""
    *before, last = messages
    return [*before, {**last, "content": last["content"] + _MARK}]


def _before_mark(text: str) -> str:
    """The text of marked messages, up to the mark."""
    at = text.rfind(_MARK.strip())
    if at < 0:
        what = "the model's chat template does not show the last of these `messages`"
        raise invalid(f"{what}, so that `continue_final_message` cannot go on with it", "messages")
    # A template that trims messages would have trimmed this one, too.
    return text[:at] if text.startswith(_MARK, at) else text[:at].rstrip()


def _as_system(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "role": "system"} if message["role"] == "developer" else message


def read_template(folder: Path) -> ChatTemplate | None:
    """The chat template of a model's folder, compiled; None where it has none.

    Raises OSError, ValueError, and any exception of its compilation: it is a program.
    """
    source = _template_source(folder, _read_json(folder / "tokenizer_config.json"))
    return ChatTemplate(source, named_tokens(folder)) if source else None


def unused_templates(folder: Path) -> list[str]:
    """The names of further chat templates in a folder, which are not used.

    Raises OSError, ValueError.
    """
    config = _read_json(folder / "tokenizer_config.json")
    named = {*_named_templates(config.get("chat_template")), *_named_templates(_older(folder))}
    files = {path.stem for path in (folder / _FURTHER).glob("*.jinja")}
    return sorted((named | files) - {_DEFAULT})


def _template_source(folder: Path, config: dict[str, Any]) -> str:
    """The template named default, or the only one. Raises ValueError if several have no default."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    source = config.get("chat_template") or _older(folder)
    if source and not isinstance(source, str | list):
        raise ValueError(f"{_NO_TEMPLATES}: {str(source)[:60]}")
    if isinstance(source, list):
        named = _named_templates(source)
        if named and _DEFAULT not in named:
            raise ValueError(f"none of its templates is named {_DEFAULT}: {', '.join(named)}")
        source = named.get(_DEFAULT)
    return source if isinstance(source, str) else ""


def _older(folder: Path) -> Any:
    return _read_json(folder / "chat_template.json").get("chat_template")


def _named_templates(source: Any) -> dict[str, str]:
    """The templates of a list, by name. Raises ValueError for one that is none."""
    if not isinstance(source, list):
        return {}
    try:
        return {entry.name: entry.template for entry in msgspec.convert(source, list[_Named])}
    except msgspec.ValidationError:
        raise ValueError(f"{_NO_TEMPLATES}: {str(source)[:60]}") from None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
