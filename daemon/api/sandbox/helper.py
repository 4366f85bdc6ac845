"""The client of a helper process that runs `daemon.api.sandbox.forking`."""

import asyncio
import itertools
import logging
import socket
from functools import partial
from signal import SIGKILL

from daemon.api.replies.errors import unavailable
from daemon.api.sandbox.fair_slots import FairSlots
from daemon.api.sandbox.forking import HEAD, NUMBER, QuestionOutcome
from daemon.supervisor.child import Child, start_child
from daemon.wire.channel import Channel

log = logging.getLogger(__name__)

START_S = 30.0
SILENT_S = 60.0
"""A process that is silent for longer hangs, since it watches its forks. On a busy machine the
longest allowed question takes a good part of this.
"""
REST_S = 0.15
"""Time that a failed question keeps its slot, so that a client that sends only such questions
leaves most processor time to others."""


class NothingHere(Exception):  # noqa: N818 - not an error of the request
    """The process cannot serve with these arguments; the message says why."""


class Unanswered(Exception):  # noqa: N818 - it is the question's fault
    """The question ended its fork."""

    def __init__(self, outcome: QuestionOutcome) -> None:
        super().__init__(outcome.name)
        self.outcome = outcome


class Helper:
    """The process `python -m MODULE ARGUMENTS`, started when first needed and whenever it is gone.

    It answers `at_once` questions in parallel, in round-robin order of their owners.
    """

    def __init__(self, module: str, at_once: int, most_waiting: int) -> None:
        """At most `most_waiting` questions of one owner wait for a slot."""
        self._module = module
        self._slots = FairSlots(at_once, most_waiting)
        self._starting = asyncio.Lock()
        self._asking: set[asyncio.Task[tuple[QuestionOutcome, bytes]]] = set()
        self._process: _Process | None = None
        self._missing: tuple[tuple[str, ...], str] = ((), "")  # arguments, and why they fail

    @property
    def pid(self) -> int:
        """The process's id; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    async def ask(self, arguments: tuple[str, ...], question: bytes, owner: str) -> bytes:
        """The answer of a process with these arguments.

        Raises Unanswered, NothingHere, and ApiError 503 where too many of the owner's questions
        wait or no process can be had.
        """
        await self._slots.acquire(owner)
        asking = asyncio.create_task(self._ask(arguments, question))
        self._asking.add(asking)
        # A fork goes on when its caller leaves, and keeps its slot.
        asking.add_done_callback(partial(self._answered, owner))
        outcome, answer = await asyncio.shield(asking)
        if outcome != QuestionOutcome.ANSWERED:
            log.info("a question of %d bytes was given up: %s", len(question), outcome.name)
            raise Unanswered(outcome)
        return answer

    async def _ask(
        self, arguments: tuple[str, ...], question: bytes
    ) -> tuple[QuestionOutcome, bytes]:
        # A question ends only forks; if the process itself ended, ask once more.
        for again in (True, False):
            process = await self.ready(arguments)
            try:
                async with asyncio.timeout(SILENT_S):
                    return await process.ask(question)
            except (TimeoutError, ConnectionError) as error:
                log.warning("%s does not answer, and is started anew", self._module)
                await self._end(process)
                if isinstance(error, TimeoutError) or not again:
                    break
        raise unavailable("a part of the server is being restarted")

    async def close(self) -> None:
        """Cancel all questions, and end the process."""
        for asking in self._asking:
            asking.cancel()
        if self._process is not None:
            await self._end(self._process)

    def _answered(self, owner: str, asking: "asyncio.Task[tuple[QuestionOutcome, bytes]]") -> None:
        self._asking.discard(asking)
        given_up = (
            not asking.cancelled()
            and asking.exception() is None
            and asking.result()[0] != QuestionOutcome.ANSWERED
        )
        rest_s = REST_S if given_up else 0.0
        asking.get_loop().call_later(rest_s, self._slots.release, owner)

    async def ready(self, arguments: tuple[str, ...]) -> "_Process":
        """The process, started if there is none with these arguments. Raises as `ask`."""
        async with self._starting:
            process = self._process
            if process is not None and (process.arguments != arguments or process.gone):
                await self._end(process)
            if self._missing[0] == arguments and self._missing[1]:
                raise NothingHere(self._missing[1])
            if self._process is None:
                self._process = await self._start(arguments)
            return self._process

    async def _start(self, arguments: tuple[str, ...]) -> "_Process":
        process = _Process(arguments, *await start_child(self._module, arguments))
        try:
            async with asyncio.timeout(START_S):
                missing = await process.hello()
        except (TimeoutError, ConnectionError):
            await process.end()
            raise unavailable("a part of the server does not start") from None
        except BaseException:
            await process.end()
            raise
        if missing:
            await process.end()
            self._missing = arguments, missing
            raise NothingHere(missing)
        return process

    async def _end(self, process: "_Process") -> None:
        if self._process is process:
            self._process = None
        await process.end()


class _Process:
    """The running process and its open questions."""

    def __init__(self, arguments: tuple[str, ...], child: Child, sock: socket.socket) -> None:
        self.arguments = arguments
        self._child = child
        self._hello: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[tuple[QuestionOutcome, bytes]]] = {}
        self._channel = Channel(sock, self._frame, self._closed)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._child.pid

    @property
    def gone(self) -> bool:
        """Whether it ended by itself."""
        return self._channel.closed

    async def hello(self) -> str:
        """Why it cannot serve; empty: it is ready. Raises ConnectionError."""
        return await self._hello

    async def ask(self, question: bytes) -> tuple[QuestionOutcome, bytes]:
        """Ask a question: its outcome and answer. Raises ConnectionError if the process ends."""
        number = next(self._numbers)
        answer: asyncio.Future[tuple[QuestionOutcome, bytes]] = (
            asyncio.get_running_loop().create_future()
        )
        self._asked[number] = answer
        self._channel.send(NUMBER.pack(number) + question)
        try:
            return await answer
        finally:
            del self._asked[number]

    async def end(self) -> None:
        """Kill it: it has no state to lose."""
        self._channel.close()
        self._closed("ended")
        await self._child.end(0.0, SIGKILL)

    def _frame(self, payload: bytes) -> None:
        if not self._hello.done():
            self._hello.set_result(payload.decode())
            return
        number, outcome = HEAD.unpack_from(payload)
        answer = self._asked.get(number)
        if answer is not None and not answer.done():
            answer.set_result((QuestionOutcome(outcome), payload[HEAD.size :]))

    def _closed(self, error: str) -> None:
        if not self._hello.done():
            self._hello.set_exception(ConnectionError(error))
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionError(error))
