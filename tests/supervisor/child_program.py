"""A child for the tests: `python -m tests.supervisor.child_program --fd N MODE [DESCRIPTOR]`."""

import argparse
import os
import signal
import socket
import sys
import threading
import time

MODES = [
    "stubborn",
    "polite",
    "exits",
    "writes",
    "loads",
    "works",
    "copies",
    "spins",
    "shares",
    "locks",
]


def compute(mode: str) -> None:
    """Compute for ever: alone, in turns with another thread, or while that one holds the lock."""
    if mode == "shares":
        threading.Thread(target=compute, args=("spins",), daemon=True).start()
    if mode == "locks":
        threading.Thread(target=lambda: sum(range(1 << 60)), daemon=True).start()
    while True:
        pass


def work(fd: int, copies: bool) -> None:
    """As a worker with nothing to import or load does, up to its first plan; or also for plans that
    only copy.
    """
    import numpy as np

    from daemon.protocol.worker import Copied, Load, Loading, Plan, Ready, Reply, ToWorker
    from daemon.wire.blocking import BlockingChannel
    from daemon.wire.columns import decoder, encoder
    from daemon.wire.pulse import Alive, Ping

    channel, encode = BlockingChannel(socket.socket(fileno=fd)), encoder().encode
    channel.send(encode(Loading("spare", 0.0)))
    while (payload := channel.receive()) is not None:
        match decoder(ToWorker).decode(payload):
            case Ping():
                channel.send(encode(Alive()))
            case Load():
                channel.send(encode(Ready(4, 1, 1, 0.01)))
            case Plan(batch=batch) if copies:
                none = np.zeros(0, np.int32)
                channel.send(encode(Reply(batch.step, none, none.astype(np.uint8), 0.0, 0.0)))
                channel.send(encode(Copied(batch.step, len(batch.out_blocks), 0.0, 0, 0.0)))


def main() -> int:
    """Say "up" on the socket, then live as MODE says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--links-fd", type=int, default=-1)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("descriptor", type=int, nargs="?", default=-1)
    arguments = parser.parse_args()
    if arguments.mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if arguments.mode == "polite":
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(7))
    if arguments.mode == "loads":
        from daemon.protocol.worker import Loading
        from daemon.wire.blocking import BlockingChannel
        from daemon.wire.columns import encoder

        channel = BlockingChannel(socket.socket(fileno=arguments.fd))
        for step in range(12):
            time.sleep(0.15)
            channel.send(encoder().encode(Loading("weights", step / 12)))
        time.sleep(60)
    if arguments.mode in ("works", "copies"):
        work(arguments.fd, arguments.mode == "copies")
        return 0
    with socket.socket(fileno=arguments.fd) as sock:
        sock.sendall(b"up")
        if arguments.mode in ("spins", "shares", "locks"):
            compute(arguments.mode)
        if arguments.mode == "exits":
            return 3
        if arguments.mode == "writes":
            os.write(arguments.descriptor, f"{os.getsid(0) == os.getpid()}".encode())
            return 0
        time.sleep(60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
