"""Outputs of a request's text: events at once, or one answer at the end."""

import msgspec

from daemon.api.answer.choice import AnswerChoice
from daemon.api.answer.shapes import AnswerShape, Json
from daemon.api.answer.sink import Sink
from daemon.api.text.logprobs import TokenLogprob

_to_json = msgspec.json.Encoder().encode


class Streamer:
    """Writes an event for each piece of text."""

    def __init__(self, shape: AnswerShape, sink: Sink) -> None:
        self._shape = shape
        self._sink = sink
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    def text(self, choice: AnswerChoice, text: str) -> None:
        """Write one event; everything but the text is encoded beforehand."""
        frame = self._frames.get(choice.index) or self._open(choice.index)
        if choice.logprobs:
            event = self._shape.delta(choice.index, text, self._logprobs(choice), None)
            self._sink.write(self._shape.piece(event))
        else:
            self._sink.write(b"%b%b%b" % (frame[0], _to_json(text), frame[1]))

    def thought(self, choice: AnswerChoice, text: str) -> None:
        """Write an event of thoughts."""
        self.delta(choice, {"reasoning_content": text})

    def finish(self, choice: AnswerChoice) -> None:
        """Write the event that carries the reason."""
        self.end(choice, choice.finish_reason)

    def delta(self, choice: AnswerChoice, delta: Json) -> None:
        """Write an event with another delta than text."""
        if choice.index not in self._frames:
            self._open(choice.index)
        event = self._shape.delta(choice.index, "", self._logprobs(choice), None)
        self._sink.write(self._shape.piece({**event, "delta": delta}))

    def end(self, choice: AnswerChoice, reason: str) -> None:
        """Write a choice's last event."""
        if choice.index not in self._frames:
            self._open(choice.index)
        event = self._shape.delta(choice.index, "", self._logprobs(choice), reason)
        self._sink.write(self._shape.piece(event | _detail(choice)))

    def _open(self, index: int) -> tuple[bytes, bytes]:
        opening = self._shape.opening(index)
        if opening:
            self._sink.write(opening)
        frame = self._frames[index] = self._shape.frame(index)
        return frame

    def _logprobs(self, choice: AnswerChoice) -> Json | None:
        """The log-probabilities that no event has shown yet."""
        if not choice.logprobs:
            return None
        entries, choice.logprobs = choice.logprobs, []
        return self._shape.logprobs(choice, entries)


class Collector:
    """Keeps the text until every choice has ended."""

    def __init__(self, shape: AnswerShape, with_logprobs: bool) -> None:
        self._shape = shape
        self._with_logprobs = with_logprobs
        self._texts: dict[int, list[str]] = {}
        self._thoughts: dict[int, list[str]] = {}
        self._choices: dict[int, Json] = {}

    def text(self, choice: AnswerChoice, text: str) -> None:
        """Keep the text."""
        self._texts.setdefault(choice.index, []).append(text)

    def thought(self, choice: AnswerChoice, text: str) -> None:
        """Keep thoughts."""
        self._thoughts.setdefault(choice.index, []).append(text)

    def finish(self, choice: AnswerChoice) -> None:
        """Make the choice's part of the answer."""
        self.end(choice, choice.finish_reason)

    def end(self, choice: AnswerChoice, reason: str) -> Json:
        """Make the choice's part of the answer, to which a subclass may add."""
        index = choice.index
        entries: list[TokenLogprob] = choice.logprobs
        logprobs = self._shape.logprobs(choice, entries) if self._with_logprobs else None
        text = self._shape.opening_text(index) + "".join(self._texts.pop(index, []))
        made = self._shape.choice(index, text, logprobs, reason) | _detail(choice)
        if index in self._thoughts:
            made["message"]["reasoning_content"] = "".join(self._thoughts.pop(index))
        self._choices[index] = made
        return made

    def body(self, counts: Json) -> bytes:
        """The whole answer."""
        return self._shape.whole([self._choices[i] for i in sorted(self._choices)], counts)


def _detail(choice: AnswerChoice) -> Json:
    """The fields of an ended choice beside OpenAI's."""
    return {"stop_reason": choice.stop_reason} if choice.stop_reason else {}
