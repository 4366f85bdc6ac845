"""Answers go out in the order of the steps, beside the thread that begins them."""

import threading
from queue import SimpleQueue

import numpy as np

from daemon.engine.worker.answers import AnswersBeside, AnswersHere
from daemon.protocol.worker import Reply
from daemon.wire.columns import int32
from tests.hangs import HANG_S


class Slow:
    """A step that is done when it is let go."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.go = threading.Event()

    def finish(self) -> Reply:
        self.go.wait()
        if self.number < 0:
            raise RuntimeError("the device is gone")
        return Reply(self.number, int32(), np.zeros(0, np.uint8), 0.0, 0.0)


def test_in_order_while_others_begin() -> None:
    sent: SimpleQueue[int] = SimpleQueue()
    answers = AnswersBeside(lambda reply: sent.put(reply.step), lambda _error: None)
    steps = [Slow(number) for number in range(3)]
    for step in steps:
        answers.take(step)
    assert not answers.idle and sent.empty()
    for step in reversed(steps):
        step.go.set()
    answers.close()
    assert answers.idle
    assert [sent.get() for _ in steps] == [0, 1, 2]


def test_what_fails_beside_is_told() -> None:
    errors: SimpleQueue[Exception] = SimpleQueue()
    answers = AnswersBeside(lambda _reply: None, errors.put)
    step = Slow(-1)
    step.go.set()
    answers.take(step)
    assert "the device is gone" in str(errors.get(timeout=HANG_S))
    answers.close()


def test_here_it_is_sent_at_once() -> None:
    sent: list[int] = []
    answers = AnswersHere(lambda reply: sent.append(reply.step))
    step = Slow(4)
    step.go.set()
    answers.take(step)
    assert sent == [4] and answers.idle
    answers.close()
