"""The formats in which models write calls, and the format of a chat template."""

import json
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from daemon.api.text.markers import CHANNEL, CLOSING, OPENING, TURN_CALL


class Format(msgspec.Struct, frozen=True):
    """A format of calls: `opening`, the calls with `between` them, `closing`."""

    opening: str
    between: str
    closing: str
    arguments: str = "arguments"  # their key
    bare: bool = False  # an answer that begins with a brace is a call, without a marker
    single: bool = False  # the template shows one call a message
    within: Literal["", "channels", "turns"] = ""  # where a model writes calls of another form

    def head(self, name: str) -> str:
        """A call's text before its arguments; after them comes a brace."""
        return f'{{"name": {json.dumps(name)}, "{self.arguments}": '

    def write(self, calls: Iterable[tuple[str, Any]]) -> str:
        """Calls (name, arguments) as the model would write them."""
        written = [f"{self.head(name)}{to_json(arguments)}}}" for name, arguments in calls]
        return f"{self.opening}{self.between.join(written)}{self.closing}"


QWEN = Format(f"{OPENING}\n", f"\n{CLOSING}\n{OPENING}\n", f"\n{CLOSING}")
"""Qwen 2.5 and 3, Hermes, SmolLM3: each call between markers of its own."""

SMOLLM = Format(f"{OPENING}[", ", ", f"]{CLOSING}")
"""SmolLM2: one list of calls. It is also described to models whose template knows no tools."""

LLAMA = Format("", "; ", "", arguments="parameters", bare=True, single=True)
"""Llama 3.1 and later: the call is the answer."""

CHANNELS = Format(SMOLLM.opening, SMOLLM.between, SMOLLM.closing, single=True, within="channels")
"""gpt-oss: a call is a message to a function, in a channel; in a grammar it is as SmolLM2's."""

TURNS = Format(SMOLLM.opening, SMOLLM.between, SMOLLM.closing, within="turns")
"""Gemma 4: calls stand in its turn, and are no JSON; in a grammar they are as SmolLM2's."""

TABLE: tuple[tuple[tuple[str, ...], Format | None], ...] = (
    ((CHANNEL, "functions."), CHANNELS),
    ((TURN_CALL, "call:"), TURNS),
    (("<function=",), None),  # Qwen3-Coder's XML, which the parser does not read
    ((f"{OPENING}[",), SMOLLM),
    ((OPENING,), QWEN),
    (("ipython", '"parameters"'), LLAMA),
)
"""Phrases that are all in a template's text, and the format of its model."""


def format_of(template: str) -> Format | None:
    """The format of a template's text; None where the parser cannot read it."""
    for phrases, form in TABLE:
        if all(phrase in template for phrase in phrases):
            return form
    return None


def to_json(value: Any) -> str:
    """JSON as models see it in training: Python's spaces, letters as they are."""
    return json.dumps(value, ensure_ascii=False)
