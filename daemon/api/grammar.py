"""Grammars are tried out before a worker sees them: in a process that may be killed."""

import asyncio
import logging
import socket
from collections import OrderedDict
from hashlib import blake2b
from signal import SIGKILL, SIGPROF

from daemon.api.errors import ApiError, invalid, unavailable
from daemon.api.model import Model
from daemon.request import SamplingParams
from daemon.supervisor.child import Child, start_child
from daemon.wire.channel import Channel

log = logging.getLogger(__name__)

DEADLINE_S = 1.0
"""Of the process's own computing: a machine that is busy makes no grammar wrong."""
HANGS_S = 15.0
START_S = 30.0
DIES_S = 1.0
MAX_BYTES = 128 * 1024
MOST_WAITING = 32
MOST_VERDICTS = 1024


class Grammars:
    """Knows of the newest grammars whether they can be used; asks the process about new ones.

    The process starts with the first grammar. The kernel ends it when one takes too long, or it
    dies of one; either way the next starts another. It looks at one grammar at a time, and what
    comes when too many wait is refused: however hostile the grammars, they take no more than that
    process. If somebody kills it, the grammar is tried once more.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()
        self._asked: dict[bytes, asyncio.Task[str]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._trial: _Trial | None = None

    async def check(self, sampling: SamplingParams, param: str) -> None:
        """Raise ApiError 400 if the grammar, which the field `param` asks for, cannot be used.

        And 503 if too many wait, or 501 if there is no way to follow one here.
        """
        grammar = sampling.grammar
        if not grammar:
            return
        if sampling.ignore_eos:
            what = f"`ignore_eos` cannot be combined with `{param}`, which says when to end"
            raise invalid(what, "ignore_eos", "unsupported_parameter")
        text = grammar.encode()
        if len(text) > MAX_BYTES:
            said = f"it makes a grammar of {len(text)} bytes, and may make {MAX_BYTES}"
        else:
            said = await self._verdict(text)
        if said:
            raise invalid(f"`{param}` cannot be used: {said}", param, "invalid_grammar")

    async def close(self) -> None:
        """End the process."""
        for task in self._asked.values():
            task.cancel()
        await self._end()

    async def _verdict(self, grammar: bytes) -> str:
        key = blake2b(grammar, digest_size=16).digest()
        known = self._verdicts.get(key)
        if known is not None:
            self._verdicts.move_to_end(key)
            return known
        task = self._asked.get(key)
        if task is None:
            if len(self._asked) >= MOST_WAITING:
                raise unavailable("too many grammars wait to be compiled", "grammars_waiting")
            task = asyncio.create_task(self._ask(key, grammar))
            self._asked[key] = task
            task.add_done_callback(lambda done: self._answered(key, done))
        # Others may wait for the same: one who leaves takes nothing from them.
        return await asyncio.shield(task)

    def _answered(self, key: bytes, task: "asyncio.Task[str]") -> None:
        self._asked.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever waited has seen it; nobody may be left to

    async def _ask(self, key: bytes, grammar: bytes) -> str:
        async with self._one_at_a_time:
            said, status = await self._try_out(grammar)
            if status == -SIGKILL:  # nothing that a grammar does
                said, status = await self._try_out(grammar)
            if status:
                log.info("a grammar of %d bytes was refused: %s", len(grammar), said)
                return said
            self._verdicts[key] = said
            if len(self._verdicts) > MOST_VERDICTS:
                self._verdicts.popitem(last=False)
            return said

    async def _try_out(self, grammar: bytes) -> tuple[str, int]:
        """What is wrong with a grammar, and the status of a process that has died of it, else 0.

        Raises ApiError 501, 503.
        """
        trial = await self._ready_trial()
        try:
            async with asyncio.timeout(HANGS_S):
                return await trial.ask(grammar), 0
        except TimeoutError:
            log.warning("the process that compiles grammars gave no answer in %.0f s", HANGS_S)
            await self._end()
            raise unavailable("grammars cannot be compiled now", "not_ready") from None
        except ConnectionError:
            status = await self._end() or 1  # whatever it says: it went without an answer
        if status == -SIGPROF:
            return f"it takes longer than {DEADLINE_S:.0f} s to compile", status
        return "it is too large or too deep to compile", status

    async def _ready_trial(self) -> "_Trial":
        """The process for what is served now. Raises ApiError 501, 503."""
        serving = self._model.serving
        assert serving is not None, "a request was admitted"
        served = (serving.root, serving.vocab_size)
        if self._trial is not None and (self._trial.served != served or self._trial.gone):
            await self._end()
        if self._trial is None:
            arguments = ["--folder", serving.root, "--vocab-size", str(serving.vocab_size)]
            arguments += ["--cpu-s", str(DEADLINE_S)]
            child, sock = await start_child("daemon.api.grammar_process", arguments)
            self._trial = _Trial(served, child, sock)
            try:
                async with asyncio.timeout(START_S):
                    missing = await self._trial.answer()
            except (TimeoutError, ConnectionError):
                await self._end()
                raise unavailable("grammars cannot be compiled now", "not_ready") from None
            if missing:
                await self._end()
                raise ApiError(501, missing, code="not_supported")
        return self._trial

    async def _end(self) -> int:
        """End the process, if there is one; the status that it ended with."""
        trial, self._trial = self._trial, None
        return await trial.end() if trial is not None else 0


class _Trial:
    """The running process; one question at a time."""

    def __init__(self, served: tuple[str, int], child: Child, sock: socket.socket) -> None:
        self.served = served
        self._child = child
        self._answers: asyncio.Queue[str | None] = asyncio.Queue()
        self._channel = Channel(
            sock,
            lambda payload: self._answers.put_nowait(payload.decode()),
            lambda _error: self._answers.put_nowait(None),
        )

    @property
    def gone(self) -> bool:
        """Whether it ended though nobody asked it anything."""
        return self._channel.closed

    async def ask(self, grammar: bytes) -> str:
        """What is wrong with a grammar. Raises ConnectionError if the process dies of it."""
        self._channel.send(grammar)
        return await self.answer()

    async def answer(self) -> str:
        """What it says next. Raises ConnectionError if it is gone."""
        said = await self._answers.get()
        if said is None:
            raise ConnectionError
        return said

    async def end(self) -> int:
        """Kill it: there is nothing that it could lose. The status that it ended with."""
        # One that has hung up is about to tell by its status why.
        grace_s = DIES_S if self._channel.closed else 0.0
        self._channel.close()
        return await self._child.end(grace_s, None if grace_s else SIGKILL)
