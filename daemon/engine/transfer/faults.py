"""Links that go wrong on purpose: the sites `worker.link_*` of `daemon.wire.faults`."""

import time
from enum import IntEnum

import torch

from daemon.engine.transfer.layout import TransferError
from daemon.engine.transfer.messages import TransferSocket
from daemon.wire.faults import Faults


class Stage(IntEnum):
    """How far a link has come."""

    MEET = 0  # the ends are about to meet
    OPEN = 1  # the receiver is about to hear of a transfer
    FILL = 2  # it is about to hear of blocks
    LAND = 3  # it has all blocks, and is about to say so


class LinkFaults:
    """Faults to inject into the links of a worker; none by default."""

    def __init__(self, faults: Faults | None = None) -> None:
        self._faults = faults or Faults()
        self._num_sent = 0  # parts of blocks

    def meet(self) -> None:
        """Strike before the ends meet. Raises TransferError where they shall not."""
        if self._breaks(Stage.MEET):
            raise TransferError("the link is broken: injected")

    def reach(self, stage: Stage, link: TransferSocket) -> None:
        """Strike where a link reaches a stage."""
        if self._faults and self._breaks(stage):
            link.hang_up()

    def leave(self, slot: torch.Tensor, count: int) -> None:
        """Strike parts of `count` blocks in a slot uint8 [count * bytes], summed but not sent."""
        if self._faults.strikes("worker.link_slow"):
            time.sleep(self._faults["worker.link_slow"].seed / 1e3)
        flip = self._faults.get("worker.link_flip")
        if flip is None:
            return
        rows, every = slot.numpy().reshape(count, -1), max(1, flip.seed)
        for row in rows:
            self._num_sent += 1
            if self._num_sent % every == 0 and flip.strikes():
                place = self._num_sent % len(row)
                row[place] = 255 - row[place]

    def _breaks(self, stage: Stage) -> bool:
        fault = self._faults.get("worker.link_break")
        return fault is not None and fault.seed == stage and fault.strikes()
