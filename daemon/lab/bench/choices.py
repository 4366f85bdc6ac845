"""A request with several choices: each is an answer with a row of its own."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import msgspec
import numpy as np

from daemon.client.sse import Event, Usage
from daemon.lab.bench.answer import ClientAnswer
from daemon.lab.report.records import Outcome
from daemon.lab.workload.workload import Workload


class EventSink(Protocol):
    """A receiver of one request's events; times are of one monotonic clock."""

    sent_s: float
    ended_s: float

    def take(self, event: Event, now_s: float) -> None:
        """Note an event."""

    def close(self) -> None:
        """The stream has ended."""

    def fail(self, error: str, outcome: Outcome = Outcome.FAILED) -> None:
        """The request ended without a whole answer."""


class Choices:
    """Distributes one stream's events to the answers of its choices, of `equal` length or not."""

    def __init__(self, answers: Sequence[ClientAnswer], equal: bool) -> None:
        self._answers = answers
        self._equal = equal

    @property
    def sent_s(self) -> float:
        """The time at which the request left."""
        return self._answers[0].sent_s

    @sent_s.setter
    def sent_s(self, now_s: float) -> None:
        for answer in self._answers:
            answer.sent_s = now_s

    @property
    def ended_s(self) -> float:
        """The time at which its stream ended."""
        return self._answers[0].ended_s

    @ended_s.setter
    def ended_s(self, now_s: float) -> None:
        for answer in self._answers:
            answer.ended_s = now_s

    def take(self, event: Event, now_s: float) -> None:
        """Pass each choice to its answer; a fault and the counts go to all answers."""
        for choice in event.choices or ():
            if 0 <= choice.index < len(self._answers):
                self._answers[choice.index].take(Event(choices=[choice]), now_s)
        if event.fault:
            self.fail(f"in mid-stream: {event.fault}")
        if event.usage is not None:
            for answer, num_tokens in zip(self._answers, self._shares(event.usage), strict=True):
                own = msgspec.structs.replace(event.usage, completion_tokens=num_tokens)
                answer.take(Event(usage=own), now_s)

    def close(self) -> None:
        """The stream has ended for all."""
        for answer in self._answers:
            answer.close()

    def fail(self, error: str, outcome: Outcome = Outcome.FAILED) -> None:
        """Fail every answer that is not whole yet."""
        for answer in self._answers:
            answer.fail(error, outcome)

    def _shares(self, usage: Usage) -> list[int]:
        """The server's count, which is for all answers together, divided among them: evenly if they
        have the same length, else by their events.
        """
        events = [len(answer.token_s) for answer in self._answers]
        if self._equal or not sum(events):
            return [usage.completion_tokens // len(events)] * len(events)
        return [round(usage.completion_tokens * count / sum(events)) for count in events]


def sink_of(answers: Sequence[ClientAnswer], equal: bool) -> EventSink:
    """The receiver of a request's stream, for its answers, which were asked to be of `equal`
    length.
    """
    return answers[0] if len(answers) == 1 else Choices(answers, equal)


def each_answer(workload: Workload, n: int) -> Workload:
    """A workload with a row for each of the `n` answers to its requests, in order."""
    return replace(
        workload,
        arrival_s=np.repeat(workload.arrival_s, n),
        prompt_tokens=np.repeat(workload.prompt_tokens, n),
        output_tokens=np.repeat(workload.output_tokens, n),
        slo_class=np.repeat(workload.slo_class, n),
        prefixes=[prefix for prefix in workload.prefixes for _ in range(n)],
    )
