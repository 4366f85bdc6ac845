"""The toy worker with links, which looks for orders to kill wherever a transfer goes on.

`python -m tests.chaos.struck --fd N --links-fd N --device KIND [--spare]`; see
`tests.chaos.strikes`.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from daemon.engine.transfer.faults import LinkFaults
from daemon.engine.transfer.links import WorkerLinks
from daemon.protocol.worker import (
    CancelTransfer,
    FromWorker,
    Load,
    Plan,
    StartTransfer,
    TransferOver,
)
from daemon.wire.blocking import BlockingChannel
from daemon.wire.faults import Faults
from tests.chaos.engine import ToyEngine
from tests.chaos.linked_worker import LinkedToyWorker
from tests.chaos.strikes import FOLDER, HOLD_S, Order, Strikes
from tests.chaos.worker import main


class Gate(LinkFaults):
    """Link faults, and the moment before two ends meet."""

    def __init__(self, found: Faults, strikes: Strikes) -> None:
        super().__init__(found)
        self._strikes = strikes

    def meet(self) -> None:
        """See `LinkFaults`."""
        if (order := self._strikes.take("meet")) is not None:
            self._strikes.strike(order)
        super().meet()


class StruckLinks(WorkerLinks):
    """Links that tell of each order to send, whichever way it comes."""

    def __init__(
        self,
        sock: socket.socket,
        say: Callable[[FromWorker], None],
        found: Faults,
        gate: Gate,
        ordered: Callable[[StartTransfer], None],
    ) -> None:
        super().__init__(sock, say, found)
        self._faults = gate
        self._ordered = ordered

    def take(self, order: StartTransfer | CancelTransfer) -> None:
        """See `WorkerLinks`."""
        if isinstance(order, StartTransfer):
            self._ordered(order)
        super().take(order)


class StruckToyWorker(LinkedToyWorker):
    """A worker that kills itself or its peer by an order."""

    def __init__(self, channel: BlockingChannel, links_fd: int) -> None:
        super().__init__(channel, links_fd)
        self._strikes = Strikes(Path(os.environ[FOLDER]))
        self._sent: set[int] = set()  # transfers that leave here

    def _engine(self, load: Load) -> ToyEngine:
        engine = super()._engine(load)
        self._strikes.enlist()
        return engine

    def _compute(self, engine: ToyEngine, plan: Plan) -> None:
        if (order := self._strikes.take("step")) is not None:
            self._later(order)
        super()._compute(engine, plan)

    def _new_links(self, found: Faults) -> WorkerLinks:
        return StruckLinks(
            self._links_sock, self._tell, found, Gate(found, self._strikes), self._ordered
        )

    def _ordered(self, message: StartTransfer) -> None:
        """Blocks are to leave here; on the thread that took the order."""
        self._sent.add(message.transfer)
        kind = "layers" if message.layered else "host" if message.from_host else "send"
        if (order := self._strikes.take(kind)) is not None:
            self._later(order)

    def _later(self, order: Order) -> None:
        """Strike after the order's delay, beside the steps."""
        timer = threading.Timer(order.delay_s, self._strikes.strike, [order])
        timer.daemon = True
        timer.start()

    def _tell(self, message: FromWorker) -> None:
        """On threads of the links'."""
        if not isinstance(message, TransferOver) or not message.num_right:
            super()._tell(message)
            return
        leaves = message.transfer in self._sent
        order = self._strikes.take("source answers" if leaves else "target answers")
        if order is not None:
            time.sleep(HOLD_S)
            self._strikes.strike(order)
        super()._tell(message)
        if not leaves and (order := self._strikes.take("landed")) is not None:
            self._strikes.strike(order)


def serve(fd: int, links_fd: int, spare: bool) -> int:
    """Serve over these sockets; the process's exit status."""
    return StruckToyWorker(BlockingChannel(socket.socket(fileno=fd)), links_fd).serve(spare)


if __name__ == "__main__":
    os._exit(main(StruckToyWorker))
