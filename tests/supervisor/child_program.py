"""A child for the tests: `python -m tests.supervisor.child_program --fd N MODE [DESCRIPTOR]`."""

import argparse
import os
import signal
import socket
import sys
import time


def main() -> int:
    """Say "up" on the socket, then live as MODE says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("mode", choices=["stubborn", "polite", "exits", "writes", "loads"])
    parser.add_argument("descriptor", type=int, nargs="?", default=-1)
    arguments = parser.parse_args()
    if arguments.mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if arguments.mode == "polite":
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(7))
    if arguments.mode == "loads":
        from daemon.engine.protocol import Loading
        from daemon.wire.blocking import BlockingChannel
        from daemon.wire.columns import encoder

        channel = BlockingChannel(socket.socket(fileno=arguments.fd))
        for step in range(5):
            time.sleep(0.15)
            channel.send(encoder().encode(Loading("weights", step / 10)))
        time.sleep(60)
    with socket.socket(fileno=arguments.fd) as sock:
        sock.sendall(b"up")
        if arguments.mode == "exits":
            return 3
        if arguments.mode == "writes":
            os.write(arguments.descriptor, f"{os.getsid(0) == os.getpid()}".encode())
            return 0
        time.sleep(60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
