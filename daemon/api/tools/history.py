"""Conversations with calls, in the form of chat templates."""

from collections.abc import Sequence
from typing import Any

import msgspec

from daemon.api.replies.errors import invalid
from daemon.api.request.json_schema import too_deep
from daemon.api.request.schema import Message
from daemon.api.request.tool_schema import Tool, ToolCall
from daemon.api.tools.format import SMOLLM, to_json

Messages = list[dict[str, Any]]

INSTRUCTIONS = """\
You can call functions. These are the functions, each with the JSON schema of its arguments:
<tools>{tools}</tools>
To call functions, answer with a list of calls and nothing else, in this form:
{example}
Where no function helps, answer in words."""
"""Instructions for a model whose chat template knows no tools."""

EXAMPLE = SMOLLM.write([("function_name", {"argument_name": "value"})])


def check_messages(messages: Sequence[Message]) -> None:
    """Check that calls are assistants', and results name their call. Raises ApiError 400."""
    for index, message in enumerate(messages):
        if message.tool_calls and message.role != "assistant":
            where = f"messages[{index}].tool_calls"
            raise invalid(f"`{where}` belongs to the role 'assistant' only", where)
        if message.role == "tool" and not message.tool_call_id:
            where = f"messages[{index}].tool_call_id"
            raise invalid(f"`{where}` is missing: a tool's message needs its call", where)


def calls_of(calls: Sequence[ToolCall]) -> Messages:
    """`tool_calls` for a template: arguments are an object where they parse, else text."""
    return [
        {
            "id": call.id,
            "type": call.type,
            "function": {
                "name": call.function.name,
                "arguments": _arguments(call.function.arguments),
            },
        }
        for call in calls
    ]


def described(tools: Sequence[Tool]) -> Messages:
    """`tools` for a template: each with a schema, `strict` left out."""
    found = []
    for tool in tools:
        function: dict[str, Any] = {"name": tool.function.name}
        if tool.function.description is not None:
            function["description"] = tool.function.description
        function["parameters"] = tool.function.parameters or {"type": "object", "properties": {}}
        found.append({"type": tool.type, "function": function})
    return found


def in_words(messages: Messages, tools: Messages) -> Messages:
    """The same conversation for a template that knows no tools.

    The tools stand in the system message, calls are the assistant's words, results the user's.
    """
    converted: Messages = []
    results = False
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if results:  # some templates refuse two messages of one role in a row
                converted[-1]["content"] += f"\n{text}"
            else:
                converted.append({"role": "user", "content": text})
        elif "tool_calls" in message:
            functions = [call["function"] for call in message["tool_calls"]]
            calls = SMOLLM.write([(called["name"], called["arguments"]) for called in functions])
            converted.append({"role": "assistant", "content": message["content"] + calls})
        else:
            converted.append(message)
        results = message["role"] == "tool"
    return _with_instructions(converted, tools) if tools else converted


def one_call_each(messages: Messages) -> Messages:
    """Split a message with several calls into one for each, followed by its result."""
    converted: Messages = []
    results: dict[str, int] = {}  # where the result of a call goes
    for message in messages:
        if len(message.get("tool_calls", ())) > 1:
            for number, call in enumerate(message["tool_calls"]):
                first = {"content": ""} if number else message  # its words and thoughts
                fields = {"role": message["role"], **first, "tool_calls": [call]}
                converted.append(fields)
                results[call["id"]] = len(converted)
        elif message["role"] == "tool" and message.get("tool_call_id") in results:
            at = results.pop(message["tool_call_id"])
            converted.insert(at, message)
            results = {name: place + (place >= at) for name, place in results.items()}
        else:
            converted.append(message)
    return converted


def with_results(messages: Messages) -> Messages:
    """Results within the message of their calls (`tool_responses`), as templates of Gemma 4 have
    them, with the words that follow: all that one turn of the model holds.
    """
    converted: Messages = []
    names: dict[str, str] = {}  # of functions, by the calls before
    for message in messages:
        last = converted[-1] if converted else {}
        if message.get("tool_calls"):
            calls = [(call["id"], call["function"]["name"]) for call in message["tool_calls"]]
            names |= dict(calls)
            if message["content"]:  # a template puts words behind the results
                converted.append({"role": message["role"], "content": message["content"]})
            converted.append({**message, "content": ""})
        elif message["role"] == "tool" and last.get("tool_calls"):
            name = names.get(message.get("tool_call_id", ""), message.get("name", "unknown"))
            result = {"name": name, "response": _object(message["content"])}
            last["tool_responses"] = [*last.get("tool_responses", ()), result]
        elif message["role"] == "assistant" and last.get("tool_responses") and not last["content"]:
            last["content"] = message["content"]
        else:
            converted.append(message)
    return converted


def with_thinking(messages: Messages) -> Messages:
    """Thoughts under the name `thinking`, as templates of gpt-oss have them. Those refuse a call
    with both thoughts and words, so that the words join the thoughts there.
    """
    converted: Messages = []
    for message in messages:
        if thought := message.get("reasoning_content"):
            fields = {name: value for name, value in message.items() if name != "reasoning_content"}
            if message.get("tool_calls") and message["content"]:
                fields |= {"thinking": f"{thought}\n{message['content']}", "content": ""}
            else:
                fields["thinking"] = thought
            converted.append(fields)
        else:
            converted.append(message)
    return converted


def _object(text: str) -> Any:
    """A result as an object where it is one, else as its text."""
    found = _arguments(text)
    return found if text.strip().startswith("{") else text


def _with_instructions(messages: Messages, tools: Messages) -> Messages:
    text = INSTRUCTIONS.format(tools=to_json(tools), example=EXAMPLE)
    first = messages[0]
    if first["role"] in ("system", "developer"):
        return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _arguments(text: str | None) -> Any:
    if text is None or text.strip() in {"", "null"}:
        return {}
    try:
        found = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return text
    return text if too_deep(found) else found
