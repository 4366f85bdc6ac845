"""A process that holds one end of handoffs, for checks, measurements and tests.

`Peer` starts it and speaks to it: commands and answers over one socket, the ends of links to join
over another. `python -m benchmarks.gpu.handoff_peer --control FD --door FD` is the process.
"""

import argparse
import os
import socket
import subprocess
import sys
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np
import torch

from daemon.engine.kv.pool import PagedKV
from daemon.engine.transfer.connect import EndPools, connect_receiver, connect_sender
from daemon.engine.transfer.layout import TransferError
from daemon.engine.transfer.messages import Broken, Done, Lost, News
from daemon.engine.transfer.receiver import Receiver
from daemon.engine.transfer.ring import NUM_SLOTS
from daemon.engine.transfer.sender import Sender
from daemon.wire.blocking import BlockingChannel
from daemon.wire.columns import Column, decoder, encoder

PATIENCE_S = 90.0
"""For an answer: a GPU's context and the first kernel take seconds."""


class PoolSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A KV pool of random bytes that both processes can make."""

    num_blocks: int = 24
    num_layers: int = 3
    block_size: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    dtype: str = "float32"
    kv_dtype: str = ""
    device: str = "cpu"
    seed: int = 0  # below 0: any bytes, drawn on the device, which is quicker

    @classmethod
    def like(cls, cache: PagedKV, num_blocks: int) -> Self:
        """A pool of such blocks as another has, of any bytes."""
        layers, _, block_size, kv_heads, head_dim = cache.blocks.shape[1:]
        names = [str(dtype).removeprefix("torch.") for dtype in (cache.dtype, cache.kv_dtype)]
        device = str(cache.raw.device)
        return cls(num_blocks, layers, block_size, kv_heads, head_dim, *names, device, seed=-1)

    def make(self) -> PagedKV:
        """The pool."""
        cache = self._empty(self.num_blocks, self.device)
        if self.seed < 0:
            cache.raw.random_()
        else:
            cache.raw.copy_(self.contents())
        return cache

    def contents(self) -> torch.Tensor:
        """The bytes that the pool begins with, on the host."""
        shape = self.num_blocks, self._empty(1, "cpu").block_bytes
        chance = np.random.default_rng(self.seed)
        return torch.from_numpy(chance.integers(0, 256, shape, np.uint8))

    def _empty(self, num_blocks: int, device: str) -> PagedKV:
        dtypes = [getattr(torch, name) if name else None for name in (self.dtype, self.kv_dtype)]
        shape = (self.num_layers, self.block_size, self.num_kv_heads, self.head_dim)
        return PagedKV(num_blocks, *shape, dtypes[0], torch.device(device), dtypes[1])


class Join(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Make a pool, and take the link that comes through the door; answered by `Joined`."""

    pool: PoolSizes
    sends: bool
    direct: bool = True
    num_slots: int = NUM_SLOTS
    slot_bytes: int = 0
    checked: bool = True


class Joined(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The link stands, or why not."""

    error: str = ""


class Send(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Begin a transfer, whole or layer by layer; answered by `Joined`."""

    transfer: int
    blocks: Column
    targets: Column
    fills: Column
    layered: bool = False


class AfterLayer(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The sender's hook; answered by `Joined`."""

    layer: int


class Next(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ask for what the end told next: `Done`, `Broken` or `Lost`."""


class Read(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Ask for the pool: `Contents`."""


class Contents(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A pool's bytes and fills."""

    raw: Column  # uint8 [block * bytes]
    fills: Column  # int32 [block]


class Leave(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Close the end; answered by `Left`."""


class Left(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What is open after closing: file descriptors, and maps of a ring."""

    num_fds: int
    num_maps: int


Command = Join | Send | AfterLayer | Next | Read | Leave
Answer = Joined | Done | Broken | Lost | Contents | Left


class Ended:
    """One end in this process, and what it told."""

    def __init__(self, join: Join, sock: socket.socket, cache: PagedKV | None = None) -> None:
        """Over a pool, new unless given. Raises TransferError where the ends do not meet."""
        self.cache = join.pool.make() if cache is None else cache
        self.told: SimpleQueue[News] = SimpleQueue()
        self.end: Sender | Receiver
        if join.sends:
            sizes = join.num_slots, join.slot_bytes
            self.end = connect_sender(
                sock, EndPools(self.cache), join.direct, *sizes, checked=join.checked
            )
        else:
            self.end = connect_receiver(sock, EndPools(self.cache))
        self.end.start(self.told.put)

    @property
    def sender(self) -> Sender:
        """The end, which sends."""
        assert isinstance(self.end, Sender)
        return self.end

    def next(self) -> News:
        """What was told next; waits for it."""
        return self.told.get(timeout=PATIENCE_S)


class Peer:
    """The other process."""

    def __init__(self) -> None:
        control, theirs = socket.socketpair()
        self._door, their_door = socket.socketpair()
        fds = [theirs.fileno(), their_door.fileno()]
        command = [sys.executable, "-m", __name__, "--control", str(fds[0]), "--door", str(fds[1])]
        self.process = subprocess.Popen(command, pass_fds=fds)
        theirs.close()
        their_door.close()
        self._channel = BlockingChannel(control)
        self._encoder, self._decoder = encoder(), decoder(Answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._channel.close()
        self._door.close()

    def order(self, command: Command) -> None:
        """Send a command and do not wait for its answer."""
        self._channel.send(self._encoder.encode(command))

    def answer(self) -> Any:
        """The next answer."""
        assert self._channel.wait(PATIENCE_S), "the other process does not answer"
        payload = self._channel.receive()
        assert payload is not None, "the other process is gone"
        return self._decoder.decode(payload)

    def ask(self, command: Command) -> Any:
        """Send a command; its answer."""
        self.order(command)
        return self.answer()

    def join(self, theirs: Join, ours: Join, cache: PagedKV | None = None) -> Ended:
        """A link between a pool there and one here (`cache`, or a new one).

        Raises TransferError from either end.
        """
        here, there = socket.socketpair()
        self.order(theirs)
        socket.send_fds(self._door, [b"L"], [there.fileno()])
        there.close()
        try:
            ended = Ended(ours, here, cache)
        except TransferError as error:
            joined = self.answer()
            raise TransferError(f"{error}; there: {joined.error}") from error
        joined = self.answer()
        if joined.error:
            raise TransferError(joined.error)
        return ended

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self.process.kill()
        self.process.wait()


def serve(control: socket.socket, door: socket.socket) -> None:
    """Answer commands until the other process hangs up."""
    channel, encode, decode = BlockingChannel(control), encoder().encode, decoder(Command).decode
    ended: Ended | None = None
    with torch.inference_mode():
        while (payload := channel.receive()) is not None:
            command = decode(payload)
            if isinstance(command, Join):
                answer: Any = Joined()
                _, (fd,), _, _ = socket.recv_fds(door, 1, 1)
                try:
                    ended = Ended(command, socket.socket(fileno=fd))
                except TransferError as error:
                    answer = Joined(str(error))
            else:
                assert ended is not None, "Join comes first"
                answer = _obey(ended, command)
            channel.send(encode(answer))


def _obey(ended: Ended, command: Command) -> Answer:
    if isinstance(command, Send):
        begin = ended.sender.begin_layers if command.layered else ended.sender.send
        begin(command.transfer, command.blocks, command.targets, command.fills)
    elif isinstance(command, AfterLayer):
        ended.sender.after_layer(command.layer)
    elif isinstance(command, Next):
        return ended.next()
    elif isinstance(command, Read):
        return Contents(ended.cache.raw.cpu().numpy().ravel(), ended.cache.fills)
    elif isinstance(command, Leave):
        ended.end.close()
        return Left(*open_things())
    return Joined()


def open_things() -> tuple[int, int]:
    """File descriptors of this process, and rings that it has mapped."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return len(os.listdir("/proc/self/fd")), sum("llmd-handoff" in line for line in maps)


def main() -> None:
    """Be the other process."""
    parser = argparse.ArgumentParser(prog="handoff_peer", description=__doc__)
    parser.add_argument("--control", type=int, required=True)
    parser.add_argument("--door", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    serve(socket.socket(fileno=arguments.control), socket.socket(fileno=arguments.door))


if __name__ == "__main__":
    main()
    # Nothing is left to do; a GPU's context is taken apart by the kernel.
    sys.stdout.flush()
    os._exit(0)
