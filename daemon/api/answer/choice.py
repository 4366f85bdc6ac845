"""One token stream of a request, as the client sees it: tokens in, text out."""

from typing import Protocol

import msgspec

from daemon.api.answer.repetition import LOOK_EVERY, RepetitionDetector
from daemon.api.answer.stops import StopMatcher
from daemon.api.text.detokenizer import Detokenizer
from daemon.api.text.logprobs import TokenLogprob
from daemon.state.request import FinishReason

_STOP = int(FinishReason.STOP)
REPETITION = "repetition"
"""The `stop_reason` of an answer that was ended because it repeated itself."""


class Output(Protocol):
    """The receiver of the text of a request's choices."""

    def text(self, choice: "AnswerChoice", text: str) -> None:
        """Take more text of a choice."""

    def finish(self, choice: "AnswerChoice") -> None:
        """End a choice, for `choice.finish_reason`."""


class Ends(Protocol):
    """The receiver of a choice's events."""

    def stop_found(self, choice: "AnswerChoice") -> None:
        """The answer ended by its text or tokens while the sequence still runs."""

    def ended(self, choice: "AnswerChoice") -> None:
        """The choice is complete."""


class Clock(msgspec.Struct):
    """The times of an answer's events, in monotonic seconds; 0: not yet."""

    arrived_s: float  # its request's headers were there
    sent_s: float  # to the runtime
    num_prompt_tokens: int
    first_s: float = 0.0  # first and newest token
    last_s: float = 0.0


class AnswerChoice:
    """One answer of a request. `take` is called for each token: the process's hottest function."""

    def __init__(
        self,
        index: int,
        sequence: int,
        detokenizer: Detokenizer,
        stops: tuple[str, ...],
        min_tokens: int,
        output: Output,
        ends: Ends,
        clock: Clock,
        repetition: RepetitionDetector | None = None,
    ) -> None:
        """Without `repetition` the answer may repeat itself without end."""
        self.index = index
        self.sequence = sequence
        self.clock = clock
        self.num_tokens = 0
        self.finish_reason = ""  # "stop" | "length"; empty while it runs
        self.stop_reason = ""  # its detail: REPETITION
        self.cut = "abort"  # why an incomplete answer ends: "abort" | "error"; empty: refused
        self.logprobs: list[TokenLogprob] = []  # of tokens not yet shown
        self.num_letters = 0  # of the text of its tokens, whether it is shown or not
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops) if stops else None
        self._min_tokens = min_tokens
        self._unread: list[int] = []  # tokens that were not looked at for repetitions
        self._output = output
        self._ends = ends
        self._repetition = repetition

    def take(self, token: int, reason: int, logprob: TokenLogprob | None = None) -> None:
        """Take the next token; `reason` is a FinishReason, not NONE with the last one."""
        self.num_tokens += 1
        repeats = False
        # The token that ends an answer (end of text, a stop id) is counted and not shown.
        if reason != _STOP:
            if logprob is not None:
                self.logprobs.append(msgspec.structs.replace(logprob, offset=self.num_letters))
            if not reason and self._repetition is not None:
                self._unread.append(token)
                if len(self._unread) == LOOK_EVERY:
                    repeats = self._repetition.push(self._unread)
                    self._unread.clear()
            text = self._detokenizer.push(token)
            if text:
                self.num_letters += len(text)
                self._show(text, bool(reason))
        if self.finish_reason:
            return
        if reason:
            self.end(reason)
        elif repeats and self.num_tokens > self._min_tokens:
            self._ends.stop_found(self)
            # Without this it would end with the same reason, only later.
            self.end(FinishReason.LENGTH, REPETITION)

    def end(self, reason: int, stop_reason: str = "") -> None:
        """End the answer, for a FinishReason, without a further token."""
        text = self._detokenizer.flush()
        if text:
            self._show(text, True)
        if not self.finish_reason:
            self.stop_reason = stop_reason
            self._finish("length" if reason == FinishReason.LENGTH else "stop")

    def _show(self, text: str, last: bool) -> None:
        if self._stops is None or self.num_tokens <= self._min_tokens:
            self._output.text(self, text)
            return
        text, found = self._stops.push(text)
        if text:
            self._output.text(self, text)
        if found:
            if not last:
                self._ends.stop_found(self)
            self._finish("stop")

    def _finish(self, reason: str) -> None:
        self.finish_reason = reason
        held = self._stops.finish() if self._stops is not None else ""
        if held:
            self._output.text(self, held)
        self._output.finish(self)
        self._ends.ended(self)


class PromptOnly(AnswerChoice):
    """A choice whose answer is not wanted: it ends with the first token."""

    def take(self, token: int, reason: int, logprob: TokenLogprob | None = None) -> None:
        """Take the token that every prompt leads to, uncounted."""
        if not self.finish_reason:
            self._finish("length")
