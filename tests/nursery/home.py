"""Forks workers for `tests.nursery.worker`: `python -m tests.nursery.home SOCKET MODULE`.

The module is imported once, for all; its `serve(fd, links_fd, spare)` is a fork's life, and gives
its exit status.
"""

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daemon import logs
from daemon.supervisor.spare import WORKER
from daemon.wire.faults import TEST_MODE
from daemon.wire.parent import die_with_parent
from tests.house.source import ROOT
from tests.nursery.worker import NURSERY

MESSAGE_BYTES = 1 << 17
REAP_S = 0.2


@contextlib.contextmanager
def nursery(folder: Path, module: str) -> Iterator[dict[str, str]]:
    """The environment of a daemon whose workers are forks of one, for as long as it is wanted."""
    path = folder / "nursery.sock"
    command = [sys.executable, "-m", "tests.nursery.home", str(path), module]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield {TEST_MODE: "1", WORKER: "tests.nursery.worker", NURSERY: str(path)}
        finally:
            process.terminate()  # a killed one would leave forks whose time nobody counts


def _live(joined: socket.socket, module: Any) -> int:
    """A fork's life; its exit status."""
    told, fds, _flags, _address = socket.recv_fds(joined, MESSAGE_BYTES, 4)
    joined.close()
    fd, links_fd, held, errors = fds
    os.dup2(errors, 2)
    os.close(errors)
    orders = json.loads(told)
    os.environ.clear()
    os.environ.update(orders["env"])
    threading.Thread(target=_die_with, args=(held,), daemon=True).start()
    logs.set_up("worker")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    status: int = module.serve(fd, links_fd, orders["spare"])
    os.write(held, bytes([status]))
    return status


def _die_with(held: int) -> None:
    """Who reads this pipe is the process that is known as the worker: its death is the fork's."""
    poll = select.poll()
    poll.register(held, 0)
    while not poll.poll():
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    """Fork for whoever asks, until told to end."""
    module = importlib.import_module(sys.argv[2])
    gc.collect()
    gc.freeze()
    die_with_parent()
    ending = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(sys.argv[1])
        server.listen(64)
        signal.signal(signal.SIGTERM, lambda *_: ending.set())
        print("ready", flush=True)
        while not ending.is_set():
            if select.select([server], [], [], REAP_S)[0]:
                joined, _address = server.accept()
                with joined:
                    if os.fork() == 0:
                        signal.signal(signal.SIGTERM, signal.SIG_DFL)
                        server.close()
                        die_with_parent()
                        os._exit(_live(joined, module))
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
    return 0


if __name__ == "__main__":
    os._exit(main())
