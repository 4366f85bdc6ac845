"""The thread that waits for the steps that have begun, and sends their answers."""

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Protocol

from daemon.protocol.worker import Reply


class _Step(Protocol):
    """A step on its way."""

    def finish(self) -> Reply:
        """Wait until it is done; its reply."""


Send = Callable[[Reply], None]


class AnswersHere:
    """Takes steps in the order in which they began; for devices whose steps are done by then."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def take(self, step: _Step) -> None:
        """Answer it when it is done."""
        self._send(step.finish())

    @property
    def idle(self) -> bool:
        """Whether every answer is sent."""
        return True

    def close(self) -> None:
        """Return once every answer is sent."""


class AnswersBeside(AnswersHere):
    """A thread that waits, so that the next step can begin meanwhile.

    `failed` is called on that thread with the error that ended it.
    """

    def __init__(self, send: Send, failed: Callable[[Exception], None]) -> None:
        super().__init__(send)
        self._failed = failed
        self._steps: SimpleQueue[_Step | None] = SimpleQueue()
        self._num_taken = self._num_sent = 0
        self._thread = Thread(target=self._live, name="answers", daemon=True)
        self._thread.start()

    def take(self, step: _Step) -> None:
        """See `AnswersHere`."""
        self._num_taken += 1
        self._steps.put(step)

    @property
    def idle(self) -> bool:
        """See `AnswersHere`."""
        return self._num_sent == self._num_taken

    def close(self) -> None:
        """See `AnswersHere`."""
        self._steps.put(None)
        self._thread.join()

    def _live(self) -> None:
        try:
            while (step := self._steps.get()) is not None:
                self._send(step.finish())
                self._num_sent += 1
        except Exception as error:  # noqa: BLE001 - this thread reports its own errors
            self._failed(error)
