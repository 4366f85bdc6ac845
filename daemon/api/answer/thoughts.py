"""A model's thoughts apart from its answer: between `<think>` and `</think>`, or in another form.

Readers of other forms are in `channels.py` and `turns.py`.
A chat template shows which form its model writes, and whether the prompt opens a thought at its
end. Between tags, only an answer's beginning may be a thought, and white space around the tags goes
to neither side. Each letter goes to its side as soon as it is certain.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from daemon.api.answer.choice import AnswerChoice, Output
from daemon.api.text.markers import THOUGHT_CLOSING, THOUGHT_OPENING, certain


class Thoughtful(Output, Protocol):
    """The receiver of a choice's thoughts, too."""

    def thought(self, choice: AnswerChoice, text: str) -> None:
        """Take more of a choice's thoughts."""


class ThoughtSplit(NamedTuple):
    """Text that is certain: of the thought, and of the answer behind it."""

    thought: str
    answer: str


class AnswerReader(Protocol):
    """The reader of one answer, which tells its thoughts from the rest."""

    def push(self, text: str) -> ThoughtSplit:
        """Take more text."""

    def finish(self) -> ThoughtSplit:
        """Take the end."""


class ThoughtReader:
    """The reader of one answer whose thought is between tags."""

    def __init__(self, is_open: bool) -> None:
        """`is_open`: the prompt has opened the thought."""
        self._state = "thought" if is_open else "opening"
        self._begins = True  # white space here belongs to no side
        self._buffer = ""  # not certain yet

    def push(self, text: str) -> ThoughtSplit:
        """Take more text."""
        if self._state == "answer" and not self._begins:
            return ThoughtSplit("", text)
        self._buffer += text
        thought = ""
        if self._state == "opening":
            self._open()
        if self._state == "thought":
            thought = self._think()
        return ThoughtSplit(thought, self._answer() if self._state == "answer" else "")

    def finish(self) -> ThoughtSplit:
        """Take the end: the rest goes to the side that was being written."""
        rest, self._buffer = self._buffer, ""
        if self._state == "thought":
            return ThoughtSplit(rest.rstrip(), "")
        return ThoughtSplit("", rest if self._state == "opening" else "")

    def _open(self) -> None:
        begun = self._buffer.lstrip()
        if begun.startswith(THOUGHT_OPENING):
            self._buffer = begun.removeprefix(THOUGHT_OPENING)
            self._state = "thought"
        elif not THOUGHT_OPENING.startswith(begun):
            self._state, self._begins = "answer", False

    def _think(self) -> str:
        buffer = self._buffer.lstrip() if self._begins else self._buffer
        self._begins = self._begins and not buffer
        thought, marker, rest = buffer.partition(THOUGHT_CLOSING)
        if marker:
            self._state, self._begins, self._buffer = "answer", True, rest
            return thought.rstrip()
        sure = len(buffer[: certain(buffer, (THOUGHT_CLOSING,))].rstrip())
        self._buffer = buffer[sure:]
        return buffer[:sure]

    def _answer(self) -> str:
        answer = self._buffer.lstrip() if self._begins else self._buffer
        self._begins = self._begins and not answer
        self._buffer = ""
        return answer


class Thinking:
    """An output whose choices' thoughts and answers are written apart."""

    def __init__(self, output: Thoughtful, make_reader: Callable[[], AnswerReader]) -> None:
        self._output = output
        self._make_reader = make_reader
        self._readers: dict[int, AnswerReader] = {}

    def text(self, choice: AnswerChoice, text: str) -> None:
        """Take more text of a choice."""
        self._pass_on(choice, self._reader(choice).push(text))

    def finish(self, choice: AnswerChoice) -> None:
        """End a choice."""
        self._pass_on(choice, self._reader(choice).finish())
        self._output.finish(choice)

    def _reader(self, choice: AnswerChoice) -> AnswerReader:
        reader = self._readers.get(choice.index)
        if reader is None:
            reader = self._readers[choice.index] = self._make_reader()
        return reader

    def _pass_on(self, choice: AnswerChoice, split: ThoughtSplit) -> None:
        if split.thought:
            self._output.thought(choice, split.thought)
        if split.answer:
            self._output.text(choice, split.answer)
