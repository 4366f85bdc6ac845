"""Predictions of answer lengths: requested late, never waited for, dropped when old.

The newest request goes first: older ones may already run, or be over. The predictor learns only
from requests that it saw. Which it sees depends on when they came and hardly on their length; with
the oldest first, a slow predictor would see only requests that outlast the queue.
"""

import asyncio
from collections.abc import Callable

import msgspec

from daemon.api.config import ApiConfig
from daemon.protocol.api import FromApi, PredictedLength, Predicting
from daemon.protocol.control import PredictorStatus
from daemon.protocol.predictor import Ask, Ended, Estimate
from daemon.supervisor.predictor import PredictorHooks, PredictorProcess

MOST_WAITING = 256
"""Asks that wait; one more drops the oldest."""
AT_ONCE = 2
"""Asks at the process: one being computed, one so that it never idles. Others can be dropped."""
REPORT_S = 0.5


class Predictions:
    """Asks the predictor process about requests, and sends its predictions to the runtime."""

    def __init__(self, config: ApiConfig, tell: Callable[[FromApi], None]) -> None:
        arguments = ["--config", msgspec.json.encode(config.predict).decode()]
        arguments += ["--store", config.predict_store]
        hooks = PredictorHooks(self._send_waiting, self._estimated, self._lost)
        self._process = PredictorProcess(arguments, hooks)
        self._kind = config.predict.kind
        self._tell = tell
        self._waiting: dict[int, Ask] = {}  # by request, the oldest first
        self._unanswered: set[int] = set()
        self._remembered: set[int] = set()  # requests whose end the process wants to know
        self._num_asks = self._num_dropped = self._num_answers = 0
        self._took_sum_s = 0.0
        self._reporting: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Keep the process running until `close`."""
        self._report()
        await self._process.run()

    async def close(self) -> None:
        """End the process; it saves what it has learned."""
        if self._reporting is not None:
            self._reporting.cancel()
        await self._process.close()

    @property
    def outcomes(self) -> dict[str, int]:
        """How many requests were answered, and how many dropped."""
        return {"answered": self._num_answers, "dropped": self._num_dropped}

    def ask(self, ask: Ask) -> None:
        """Ask about a request that the runtime already has."""
        self._num_asks += 1
        if len(self._waiting) >= MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
            self._num_dropped += 1
        self._waiting[ask.request] = ask
        self._send_waiting()

    def ended(self, request: int, num_output_tokens: int) -> None:
        """Note the end of a request; 0 tokens: broken off. One never asked about is ignored."""
        if self._waiting.pop(request, None) is not None:
            self._num_dropped += 1
            self._report_soon()
        elif request in self._remembered:
            self._remembered.remove(request)
            self._process.send(Ended(request, num_output_tokens))

    def _send_waiting(self) -> None:
        while self._waiting and self._process.up and len(self._unanswered) < AT_ONCE:
            request, ask = self._waiting.popitem()  # the newest
            self._process.send(ask)
            self._unanswered.add(request)
            self._remembered.add(request)
        self._report_soon()

    def _estimated(self, message: Estimate) -> None:
        self._unanswered.discard(message.request)
        if message.num_tokens:
            self._num_answers += 1
            self._took_sum_s += message.took_s
            self._tell(PredictedLength(message.request, message.num_tokens, message.high_tokens))
        else:
            self._num_dropped += 1
        self._send_waiting()

    def _lost(self) -> None:
        self._num_dropped += len(self._unanswered)
        self._unanswered.clear()
        self._remembered.clear()
        self._report_soon()

    def _report_soon(self) -> None:
        if self._reporting is None:
            self._reporting = asyncio.get_running_loop().call_later(REPORT_S, self._report)

    def _report(self) -> None:
        self._reporting = None
        status = PredictorStatus(
            kind=self._kind,
            up=self._process.up,
            asks=self._num_asks,
            dropped=self._num_dropped,
            answers=self._num_answers,
            took_sum_s=self._took_sum_s,
        )
        self._tell(Predicting(status))
