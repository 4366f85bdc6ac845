"""Forks linked toy workers for `tests.chaos.quick`: `python -m tests.chaos.nursery SOCKET`."""

import contextlib
import faulthandler
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from daemon import logs
from daemon.wire.parent import die_with_parent
from tests.house.source import ROOT

MESSAGE_BYTES = 1 << 17
REAP_S = 0.2


@contextlib.contextmanager
def nursery(folder: Path) -> Iterator[Path]:
    """The socket of one, for as long as it is wanted."""
    path = folder / "nursery.sock"
    command = [sys.executable, "-m", "tests.chaos.nursery", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield path
        finally:
            process.kill()


def _live(joined: socket.socket) -> int:
    """A fork's life; its exit status."""
    from tests.chaos.struck import serve

    told, fds, _flags, _address = socket.recv_fds(joined, MESSAGE_BYTES, 4)
    joined.close()
    fd, links_fd, held, errors = fds
    os.dup2(errors, 2)
    os.close(errors)
    orders = json.loads(told)
    os.environ.clear()
    os.environ.update(orders["env"])
    logs.set_up("worker")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    status = serve(fd, links_fd, orders["spare"])
    os.write(held, bytes([status]))
    return status


def main() -> int:
    """Fork for whoever asks, until killed."""
    import tests.chaos.struck  # noqa: F401 - imported once, for all

    die_with_parent()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(sys.argv[1])
        server.listen(64)
        print("ready", flush=True)
        while True:
            if select.select([server], [], [], REAP_S)[0]:
                joined, _address = server.accept()
                with joined:
                    if os.fork() == 0:
                        server.close()
                        die_with_parent()
                        os._exit(_live(joined))
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


if __name__ == "__main__":
    os._exit(main())
