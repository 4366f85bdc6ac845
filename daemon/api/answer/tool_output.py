"""Outputs of answers that may hold calls: OpenAI's deltas, or one message."""

import secrets

from daemon.api.answer.choice import AnswerChoice
from daemon.api.answer.outputs import Collector, Streamer
from daemon.api.answer.shapes import AnswerShape, Json
from daemon.api.answer.sink import Sink
from daemon.api.tools.choice import Toolbox
from daemon.api.tools.reader import CallReader, Piece


def _call(name: str, arguments: str) -> Json:
    """A call of a message."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


def _reason(choice: AnswerChoice, reader: CallReader) -> str:
    """The finish reason: `tool_calls` if there are calls and the answer was not cut short."""
    called = reader.num_calls and choice.finish_reason == "stop"
    return "tool_calls" if called else choice.finish_reason


class CallStreamer(Streamer):
    """Writes an event for each piece of text, each call, and each piece of its arguments."""

    def __init__(self, shape: AnswerShape, sink: Sink, toolbox: Toolbox) -> None:
        super().__init__(shape, sink)
        self._toolbox = toolbox
        self._readers: dict[int, CallReader] = {}
        self._num_calls: dict[int, int] = {}  # shown so far of each choice

    def text(self, choice: AnswerChoice, text: str) -> None:
        """Write the pieces that are certain now."""
        self._show(choice, self._reader(choice).push(text))

    def finish(self, choice: AnswerChoice) -> None:
        """Write the rest, then the event that carries the reason."""
        reader = self._reader(choice)
        self._show(choice, reader.finish())
        self.end(choice, _reason(choice, reader))

    def _reader(self, choice: AnswerChoice) -> CallReader:
        reader = self._readers.get(choice.index)
        if reader is None:
            reader = self._readers[choice.index] = self._toolbox.reader()
        return reader

    def _show(self, choice: AnswerChoice, pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece.kind == "text":
                super().text(choice, piece.text)
            elif piece.kind == "call":
                number = self._num_calls.get(choice.index, 0)
                self._num_calls[choice.index] = number + 1
                self.delta(choice, {"tool_calls": [{"index": number, **_call(piece.text, "")}]})
            elif piece.kind == "arguments":
                number = self._num_calls[choice.index] - 1
                more = {"index": number, "function": {"arguments": piece.text}}
                self.delta(choice, {"tool_calls": [more]})


class CallCollector(Collector):
    """Keeps text and calls until every choice has ended."""

    def __init__(self, shape: AnswerShape, with_logprobs: bool, toolbox: Toolbox) -> None:
        super().__init__(shape, with_logprobs)
        self._toolbox = toolbox
        self._said: dict[int, list[str]] = {}

    def text(self, choice: AnswerChoice, text: str) -> None:
        """Keep the text; it is read once it is complete."""
        self._said.setdefault(choice.index, []).append(text)

    def finish(self, choice: AnswerChoice) -> None:
        """Make the choice's part of the answer."""
        reader = self._toolbox.reader()
        pieces = reader.push("".join(self._said.pop(choice.index, []))) + reader.finish()
        calls: list[Json] = []
        for piece in pieces:
            if piece.kind == "text":
                super().text(choice, piece.text)
            elif piece.kind == "call":
                calls.append(_call(piece.text, ""))
            elif piece.kind == "arguments":
                calls[-1]["function"]["arguments"] += piece.text
        made = self.end(choice, _reason(choice, reader))
        if calls:
            message = made["message"]
            message["content"] = message["content"] or None
            message["tool_calls"] = calls
