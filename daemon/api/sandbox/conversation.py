"""A conversation for a chat template, and the text rendered from it."""

from typing import Any

import msgspec

from daemon.api.request.schema import Message
from daemon.api.request.tool_schema import Tool
from daemon.api.text.markers import THOUGHT_OPENING
from daemon.api.tools.format import Format
from daemon.api.tools.history import calls_of


class TemplateConversation(msgspec.Struct, frozen=True):
    """The input of a chat template."""

    messages: list[Message]
    tools: list[Tool] = []
    begin_answer: bool = True
    values: dict[str, Any] = {}  # of the template's own variables
    continue_last: bool = False  # the text ends in the last message, which the answer goes on with


TAGS, CHANNELS, TURNS = "tags", "channels", "turns"
"""Thoughts between `<think>` and `</think>`; in a channel of their own, as of gpt-oss; in a part of
a turn, as of Gemma 4."""


class Rendered(msgspec.Struct, frozen=True):
    """The output of a chat template."""

    text: str
    calls: Format  # in which the model writes calls
    refusal: str = ""  # why there is no text
    thoughts: str = ""  # how its model writes thoughts: TAGS, CHANNELS, TURNS; empty: it has none

    @property
    def opens_thought(self) -> bool:
        """Whether the text ends within a thought, which the answer goes on with."""
        return self.thoughts == TAGS and self.text.rstrip().endswith(THOUGHT_OPENING)


def template_message(message: Message) -> dict[str, Any]:
    """A message in the form of chat templates."""
    content = message.content
    if content is None:
        content = ""
    elif not isinstance(content, str):
        content = "\n".join(part.text for part in content)
    fields: dict[str, Any] = {"role": str(message.role), "content": content}
    if message.name is not None:
        fields["name"] = message.name
    if message.tool_call_id is not None:
        fields["tool_call_id"] = message.tool_call_id
    thought = message.reasoning_content or message.reasoning
    if thought is not None:
        fields["reasoning_content"] = thought
    if message.tool_calls:
        fields["tool_calls"] = calls_of(message.tool_calls)
    return fields
