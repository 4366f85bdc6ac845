"""The record of one request: its tokens' times, the server's counts, its end."""

from array import array
from dataclasses import dataclass, field

from daemon.client.sse import Event
from daemon.lab.report.records import Outcome

CUT_SHORT = {"abort", "error"}
"""Finish reasons by which servers say that they cut an answer short."""


def _doubles() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class ClientAnswer:
    """One request's row. Times are of one monotonic clock, in seconds."""

    sent_s: float = float("nan")  # its headers left; NaN: no connection was made
    ended_s: float = float("nan")
    token_s: "array[float]" = field(default_factory=_doubles)  # of each event with tokens
    end_event_s: float = float("nan")  # the event with the finish reason, where it had no text
    prompt_tokens: int = 0  # as the server counts; 0: it did not say
    cached_tokens: int = 0  # of them, found in its prefix cache
    output_tokens: int = 0  # as the server counts; 0: it did not say
    finished: bool = False  # a finish reason came
    outcome: Outcome = Outcome.UNFINISHED
    error: str = ""

    def take(self, event: Event, now_s: float) -> None:
        """Note an event. After a fault, `outcome` is FAILED."""
        if event.has_tokens:
            self.token_s.append(now_s)
        elif event.finish_reason is not None:
            self.end_event_s = now_s
        if event.finish_reason is not None:
            self.finished = True
            if event.finish_reason in CUT_SHORT:
                self.fail(f"the server ended the answer: {event.finish_reason}")
        if event.usage is not None:
            details = event.usage.prompt_tokens_details
            self.prompt_tokens = event.usage.prompt_tokens
            self.cached_tokens = (details.cached_tokens or 0) if details else 0
            self.output_tokens = event.usage.completion_tokens
        if event.fault:
            self.fail(f"in mid-stream: {event.fault}")

    def close(self) -> None:
        """The stream has ended in HTTP's sense: the answer is whole or cut short."""
        if self.outcome is not Outcome.UNFINISHED:
            return
        if not self.finished:
            self.fail("the stream ended without a finish reason")
            return
        self.outcome = Outcome.FINISHED
        # The last token may have no text of its own (half a character, an end token): then it came
        # with the event that has the finish reason.
        silent = self.num_tokens > len(self.token_s) or not self.token_s
        if silent and self.end_event_s == self.end_event_s:
            self.token_s.append(self.end_event_s)

    def fail(self, error: str, outcome: Outcome = Outcome.FAILED) -> None:
        """The request ended without a whole answer; the first reason stands."""
        if self.outcome is Outcome.UNFINISHED:
            self.outcome, self.error = outcome, error

    @property
    def num_tokens(self) -> int:
        """Output tokens: the server's count, or else that of the events."""
        return self.output_tokens or len(self.token_s)
