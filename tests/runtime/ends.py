"""The API process's end of a link, and a whole runtime between it and a scripted worker."""

import asyncio
import socket
from collections import defaultdict
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

from daemon.config.load import Loaded
from daemon.config.schema import Config
from daemon.core.values.events import Configured
from daemon.memory.hashing import chain_hashes
from daemon.models.kv_parts import RankLink
from daemon.protocol import api as protocol
from daemon.protocol.api import SequenceEnded
from daemon.protocol.control import GpuStatus
from daemon.protocol.worker import Plan, Ready
from daemon.runtime.api_link import ApiLink
from daemon.runtime.gpus import GpuWatch
from daemon.runtime.life import Life
from daemon.runtime.model import ServedModel
from daemon.runtime.runtime import Runtime, ToWorkers
from daemon.runtime.serving import ServingStatus
from daemon.runtime.status import Parts
from daemon.runtime.token_store import TokenStore
from daemon.state.request import SamplingParams
from daemon.supervisor.api import ApiProcess
from daemon.wire.channel import Channel
from daemon.wire.columns import decoder, encoder, int32
from tests.core.driver import configured
from tests.hangs import HANG_S
from tests.runtime.scripted import ScriptedWorker
from tests.shapes import tiny_shape

SERVED = ServedModel("tiny", Path("/models/tiny"), tiny_shape(), 128, (), (), (), ())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.001)


def generate(
    request: int, prompt: list[int], max_tokens: int = 8, n: int = 1, **sampling: float
) -> protocol.Generate:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    hashes = chain_hashes(prompt, 4)
    return protocol.Generate(request, int32(prompt), max_tokens, n, 0, params, hashes)


def to_workers(plan: Callable[[int, Plan], None]) -> ToWorkers:
    """Messages to workers that never join the links made for them."""
    return ToWorkers(plan, *[_unheard] * 7, pairs=one_worker_each(8))


def one_worker_each(count: int) -> dict[tuple[int, int], list[RankLink]]:
    """The links of so many instances of one worker."""
    return {pair: [RankLink(0, 0)] for pair in permutations(range(count), 2)}


def _unheard(*_told: object) -> None:
    """They do not listen."""


def parts_of(loaded: Loaded, link: ApiLink) -> Parts:
    life = Life()
    return Parts(loaded, life, ApiProcess("", lambda _sock, _generation: link, life.hopeless), link)


class ApiEnd:
    """A stand-in for an API process: its messages in and out."""

    def __init__(self, sock: socket.socket) -> None:
        self.messages: list[protocol.ToApi] = []
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, int] = {}
        self.channel = Channel(sock, self._frame, lambda _error: None)
        self._encode, self._decode = encoder().encode, decoder(protocol.ToApi).decode

    def send(self, message: protocol.FromApi) -> None:
        self.channel.send(self._encode(message))

    def of(self, kind: type) -> list[protocol.ToApi]:
        return [message for message in self.messages if isinstance(message, kind)]

    def _frame(self, payload: bytes) -> None:
        message: protocol.ToApi = self._decode(payload)
        self.messages.append(message)
        if isinstance(message, protocol.Tokens):
            for sequence, token, reason in zip(
                message.sequences.tolist(),
                message.tokens.tolist(),
                message.reasons.tolist(),
                strict=True,
            ):
                assert sequence not in self.ends, "a token after the end"
                self.tokens[sequence].append(token)
                if reason:
                    self.ends[sequence] = reason
        elif isinstance(message, SequenceEnded):
            assert message.sequence not in self.ends, "ended twice"
            self.ends[message.sequence] = message.reason


class House:
    """A runtime, its API process and a worker that answers when the loop comes round."""

    def __init__(self, num_blocks: int = 64, **changes: object) -> None:
        self.config: Configured = configured(**changes)  # type: ignore[arg-type]
        self.num_blocks = num_blocks
        self.store = TokenStore(self.config.block_size)
        self.link = ApiLink(self.store, lambda event: self.runtime.dispatch(event), self._lives)
        self.runtime = Runtime(
            self.config, self.store, None, self.link, to_workers(self._send_plan)
        )
        self.plans: list[Plan] = []
        self.paused = False
        self.worker: ScriptedWorker | None = None
        self.generation = -1
        self.connect()

    def connect(self) -> None:
        """A new API process."""
        self.generation += 1
        ours, theirs = socket.socketpair()
        self.link.connect(ours, self.generation)
        self.api = ApiEnd(theirs)

    def ready(self) -> None:
        """A worker, the first or a successor, can compute."""
        config = self.config
        self.worker = ScriptedWorker(
            self.num_blocks, config.block_size, config.max_running, config.max_len
        )
        self.runtime.worker_ready(0, Ready(self.num_blocks, 1, 1, 0.001))

    def lose(self) -> None:
        """The worker dies with all its unanswered messages."""
        self.worker = None
        self.plans.clear()
        self.runtime.worker_lost(0, blamed=False)

    def answer(self) -> None:
        """Answer the oldest plan."""
        assert self.worker is not None
        self.runtime.reply(0, self.worker.answer(self.plans.pop(0)))

    async def ended(self, count: int) -> None:
        await until(lambda: len(self.api.ends) >= count)

    def resume(self) -> None:
        """Answer plans by itself again, those that wait included."""
        self.paused = False
        for _ in self.plans:
            asyncio.get_running_loop().call_soon(self._answer_if_told)

    def close(self) -> None:
        self.link.hang_up()
        self.api.channel.close()
        self.runtime.close()

    def check_nothing_left(self) -> None:
        assert self.runtime.core.idle
        assert not self.store._sequences and len(self.link._live) == 0
        ledger = self.runtime.core.instances[0].scheduler.kv.pool.check()
        assert ledger.held == 0 and ledger.fenced == 0

    def status(self, config: Config, *gpus: GpuStatus) -> ServingStatus:
        """The status of a daemon that serves here."""
        watch = GpuWatch(())
        watch.latest = gpus
        return ServingStatus(self.parts(config), "", SERVED, self.runtime, watch)

    def parts(self, config: Config) -> Parts:
        """A daemon's parts around this link; its API process is never started."""
        return parts_of(Loaded(config, {}), self.link)

    def _lives(self, settled: bool) -> None:
        """It has answered a ping."""

    def _send_plan(self, instance: int, plan: Plan) -> None:
        assert instance == 0
        assert not self.plans or self.plans[-1].batch.step < plan.batch.step
        self.plans.append(plan)
        if not self.paused:
            asyncio.get_running_loop().call_soon(self._answer_if_told)

    def _answer_if_told(self) -> None:
        if self.plans and not self.paused:
            self.answer()
