"""The open loop: every request leaves at its time, whether or not earlier ones have ended."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter, process_time

from daemon.lab.bench.answer import ClientAnswer
from daemon.lab.bench.choices import sink_of
from daemon.lab.bench.client import Client
from daemon.lab.bench.endpoint import Form
from daemon.lab.report.records import Float64


@dataclass(slots=True)
class SentLoad:
    """The result of a run: the answers to the requests that left, in order of arrival."""

    start_s: float  # of the clock of the answers' times
    answers: list[ClientAnswer] = field(default_factory=list)  # each request's choices in a row
    ended: int = 0  # of them
    end_s: float = 0.0
    cpu_s: float = 0.0  # of this process
    interrupted: bool = False


class LoadGenerator:
    """Sends bodies of one form at their arrival times. `sent` may be watched while it runs."""

    def __init__(self, client: Client, form: Form) -> None:
        self._client = client
        self._form = form
        self._sending: asyncio.Task[None] | None = None
        self.sent = SentLoad(perf_counter())

    async def run(self, bodies: Sequence[bytes], arrival_s: Float64) -> SentLoad:
        """Send until every answer has ended, or `stop`."""
        cpu_s = process_time()
        self.sent = sent = SentLoad(perf_counter())
        self._sending = asyncio.create_task(self._send(bodies, arrival_s.tolist()))
        try:
            await asyncio.shield(self._sending)
        except asyncio.CancelledError:
            if not sent.interrupted:
                self._sending.cancel()
                raise
        sent.end_s = perf_counter()
        sent.cpu_s = process_time() - cpu_s
        return sent

    def stop(self) -> None:
        """End the run now: no more requests leave, and answers keep the tokens that came."""
        if self._sending is not None:
            self.sent.interrupted = True
            self._sending.cancel()

    async def _send(self, bodies: Sequence[bytes], arrival_s: Sequence[float]) -> None:
        sent = self.sent
        async with asyncio.TaskGroup() as group:
            for body, due_s in zip(bodies, arrival_s, strict=True):
                # Always awaited: where all come at once, requests leave while others are queued.
                await asyncio.sleep(max(0.0, sent.start_s + due_s - perf_counter()))
                answers = [ClientAnswer() for _ in range(self._form.n)]
                sent.answers += answers
                group.create_task(self._follow(body, answers))

    async def _follow(self, body: bytes, answers: list[ClientAnswer]) -> None:
        await _follow(self._client, self._form, body, answers)
        self.sent.ended += len(answers)


async def send_at_once(client: Client, form: Form, bodies: Sequence[bytes]) -> list[ClientAnswer]:
    """The answers to all bodies, sent together: a warm-up."""
    answers = [[ClientAnswer() for _ in range(form.n)] for _ in bodies]
    async with asyncio.TaskGroup() as group:
        for body, own in zip(bodies, answers, strict=True):
            group.create_task(_follow(client, form, body, own))
    return [answer for own in answers for answer in own]


async def _follow(client: Client, form: Form, body: bytes, answers: list[ClientAnswer]) -> None:
    """Stream one request. An error fails this one alone: raised in the task group it
    would end all.
    """
    sink = sink_of(answers, form.ignore_eos)
    try:
        await client.stream(form.path, body, sink)
    except Exception as error:  # noqa: BLE001 - any error fails one request; the run goes on
        sink.fail(f"{type(error).__name__}: {error}")
