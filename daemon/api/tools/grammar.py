"""Grammars (llguidance's Lark) of answers that call tools, in the form that a model writes.

Each function's schema stands in a `%json` of its own, so that its `$ref`s keep their root.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from daemon.api.request.response_format import WHITESPACE
from daemon.api.request.tool_schema import Function
from daemon.api.text.markers import (
    ANSWER_END,
    CALL_END,
    CHANNEL,
    CONSTRAIN,
    MARKERS,
    MESSAGE,
    MESSAGE_END,
    MESSAGE_START,
    PYTHON,
    MarkerTokens,
)
from daemon.api.tools.format import Format

MAX_CALLS = 16
"""The most calls of one forced answer, or of a block of calls in a free one, whose blocks nothing
bounds: a small model would go on calling until it runs out of tokens."""

# As Python's json writes it, which is what models have seen; and no white space without end.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_MARKER = re.compile("(" + "|".join(re.escape(marker) for marker in MARKERS) + ")")
_TEXT = r"TEXT: /(.|\n)+/"
_PLAIN = r"PLAIN: /[^{\s](.|\n)*/"  # no call begins like this


def forced(functions: Sequence[Function], form: Format, tokens: MarkerTokens, several: bool) -> str:
    """The grammar of one or more calls and nothing else; every call fits its schema."""
    calls = _calls(form, tokens, several)
    return "\n".join([f"start: {calls}", *_call_rules(functions, form, strict=True)])


def held(functions: Sequence[Function], form: Format, tokens: MarkerTokens, several: bool) -> str:
    """The grammar of free text and calls; calls of `strict` functions fit their schema.

    Where `several` is false, a call ends the answer.
    """
    rules = [_TEXT, *_call_rules(functions, form, strict=False)]
    calls = _calls(form, tokens, several)
    others = [f"<[{token}]>" for token in tokens.others]  # no TEXT holds an added token
    free = " | ".join(["TEXT", *others])
    if form.bare:
        plain = " | ".join(["PLAIN", *others])
        python = f"<[{tokens.ids[PYTHON]}]>? " if PYTHON in tokens.ids else ""
        return "\n".join([f"start: (({plain}) ({free})*)? | {python}{calls}", _PLAIN, *rules])
    marker = _MARKER.findall(form.opening)[0]
    block = f"block: begin {calls.removeprefix(_literal(marker, tokens)).strip()}"
    if marker in tokens.ids:
        begin = f"begin: <[{tokens.ids[marker]}]>"
        start = f"({free} | block)*" if several else f"({free})* block?"
    else:  # the marker's first appearance ends `begin`, whatever stands before it
        begin = f"begin[lazy]: /(.|\\n)*/ {json.dumps(marker)}"
        parts = [f"TEXT? {other}" for other in others]
        if several:
            start = f"({' | '.join(['block', *parts])})* TEXT?"
        else:
            start = f"({' | '.join(parts)})* (block | TEXT)?" if parts else "(block | TEXT)?"
    return "\n".join([f"start: {start}", block, begin, *rules])


def either(
    functions: Sequence[Function],
    form: Format,
    tokens: MarkerTokens,
    several: bool,
    answer: dict[str, Any],
) -> str:
    """The grammar of calls as in `held`, or JSON of the schema `answer`; not for a `bare` format.

    There both begin with a brace, and llguidance would allow only calls.
    """
    rules = [f"answer: %json {json.dumps(answer)}", *_call_rules(functions, form, strict=False)]
    return "\n".join([f"start: {_calls(form, tokens, several)} | answer", *rules])


def channelled(functions: Sequence[Function], tokens: MarkerTokens) -> str:
    """The grammar of an answer in gpt-oss's channels, which ends with its first call; calls of
    `strict` functions fit their schema. Empty where the tokenizer has no such channels.

    A call's message says its function before its channel, or behind it.
    """
    ids = {text: f"<[{number}]>" for text, number in tokens.channels.items()}
    if not {CHANNEL, MESSAGE, MESSAGE_START, MESSAGE_END} <= ids.keys():
        return ""
    free = " | ".join(["TEXT", *(f"<[{token}]>" for token in tokens.others)])
    ends = [ids[text] for text in (ANSWER_END, CALL_END, MESSAGE_END) if text in ids]
    kinds = ['" json"', *([f'" "? {ids[CONSTRAIN]} "json"'] if CONSTRAIN in ids else [])]
    rules = [
        f'start: (plain {ids[MESSAGE_END]} {ids[MESSAGE_START]} "assistant")* (plain | call) over?',
        f"over: {' | '.join(ends)}",
        f"plain: {ids[CHANNEL]} NAME {ids[MESSAGE]} ({free})*",
        "NAME: /analysis|commentary|final/",
        f"kind: {' | '.join(kinds)}",
        _TEXT,
        "call: " + " | ".join(f"call_{number}" for number in range(len(functions))),
    ]
    for number, function in enumerate(functions):
        to = f" to=functions.{function.name}"
        behind = f"{ids[CHANNEL]} {json.dumps('commentary' + to)} kind?"
        before = f'{json.dumps(to)} {ids[CHANNEL]} "commentary" kind?'
        schema = _arguments(function) if function.strict else {"type": "object"}
        layout = {"whitespace_pattern": WHITESPACE, "lenient": not function.strict}
        rules += [
            f"call_{number}: ({before} | {behind}) {ids[MESSAGE]} arguments_{number}",
            f"arguments_{number}: %json {json.dumps({**schema, 'x-guidance': layout})}",
        ]
    return "\n".join(rules)


def _calls(form: Format, tokens: MarkerTokens, several: bool) -> str:
    opening, closing = _literal(form.opening, tokens), _literal(form.closing, tokens)
    further = f"({_literal(form.between, tokens)} call){{0,{MAX_CALLS - 1}}}" if several else ""
    return " ".join(part for part in (opening, "call", further, closing) if part)


def _call_rules(functions: Sequence[Function], form: Format, strict: bool) -> list[str]:
    """Rules of `call`; with `strict` all schemas are followed, else those of strict functions."""
    names = " | ".join(f"call_{number}" for number in range(len(functions)))
    rules = [f"call: {names}"]
    for number, function in enumerate(functions):
        head = json.dumps(form.head(function.name))
        keep = strict or bool(function.strict)
        schema = _arguments(function) if keep else {"type": "object"}
        layout = {"x-guidance": {**_LAYOUT, "lenient": not function.strict}}
        rules.append(f'call_{number}: {head} arguments_{number} "}}"')
        rules.append(f"arguments_{number}: %json {json.dumps({**schema, **layout})}")
    return rules


def _arguments(function: Function) -> dict[str, Any]:
    """The schema of a function's arguments, which are always an object."""
    if function.parameters is None:
        return _NO_ARGUMENTS
    return {**function.parameters, "type": "object"}


def _literal(text: str, tokens: MarkerTokens) -> str:
    """A text as grammar symbols: llguidance knows a marker that is a token only by its id."""
    parts = []
    for part in _MARKER.split(text):
        if part in tokens.ids:
            parts.append(f"<[{tokens.ids[part]}]>")
        elif part:
            parts.append(json.dumps(part))
    return " ".join(parts)
