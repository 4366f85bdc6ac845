"""Forks workers and programs: `python -m tests.nursery.home SOCKET MODULE`.

The module is imported once, for all; its `serve(fd, links_fd, spare)` is the life of a worker
(`tests.nursery.worker`) and gives its exit status. A program is what `python()` is asked for.
"""

import contextlib
import faulthandler
import fcntl
import gc
import importlib
import json
import logging
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

from daemon.base import logs
from daemon.supervisor.spare import WORKER
from daemon.wire.faults import TEST_MODE
from daemon.wire.parent import die_with_parent
from tests.house.source import ROOT
from tests.nursery import programs
from tests.nursery.relay import STATUS
from tests.nursery.relay import __file__ as relay_file
from tests.nursery.worker import NURSERY

MESSAGE_BYTES = 1 << 17
MOST_FDS = 64


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


def python(folder: Path, env: dict[str, str]) -> Path:
    """A program that stands in for sys.executable, for as long as its nursery is wanted."""
    path = folder / "python"
    relay = f"{sys.executable} -S -E {Path(relay_file)} {env[NURSERY]}"
    path.write_text(f'#!/bin/sh\nLLMD_PYTHON={sys.executable} exec {relay} "$@"\n')
    path.chmod(0o755)
    return path


def _live(joined: socket.socket, module: Any) -> int:
    """A fork's life; its exit status."""
    told, fds, _flags, _address = socket.recv_fds(joined, MESSAGE_BYTES, MOST_FDS)
    orders = json.loads(told)
    if "words" in orders:
        joined = socket.socket(fileno=fcntl.fcntl(joined.detach(), fcntl.F_DUPFD_CLOEXEC, 512))
        threading.Thread(target=_die_with, args=(joined,), daemon=True).start()
        return programs.run(joined, orders, fds)
    fd, links_fd, errors = fds
    os.dup2(errors, 2)
    os.close(errors)
    os.environ.clear()
    os.environ.update(orders["env"])
    threading.Thread(target=_die_with, args=(joined,), daemon=True).start()
    logs.set_up("worker")
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    status: int = module.serve(fd, links_fd, orders["spare"])
    logging.shutdown()  # as a worker does before it leaves
    return status


def _die_with(joined: socket.socket) -> None:
    """The process that asked is known as the worker: its death is the fork's."""
    poll = select.poll()
    poll.register(joined, 0)
    while not poll.poll():
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def _reap(forks: dict[int, socket.socket]) -> None:
    """Tell of each fork that has ended how it did, to who asked for it."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            with forks.pop(pid) as joined, contextlib.suppress(OSError):
                joined.send(STATUS.pack(os.waitstatus_to_exitcode(status)))


def main() -> int:
    """Fork for every client, until an end is ordered."""
    module = importlib.import_module(sys.argv[2])
    gc.collect()
    gc.freeze()
    die_with_parent()
    ending = threading.Event()
    forks: dict[int, socket.socket] = {}
    wakes, wakened = socket.socketpair()
    wakened.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakened.fileno())  # a signal alone does not end a select
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(sys.argv[1])
        server.listen(64)
        signal.signal(signal.SIGTERM, lambda *_: ending.set())
        print("ready", flush=True)
        while not ending.is_set():
            heard = select.select([server, wakes], [], [])[0]
            if wakes in heard:
                wakes.recv(4096)
                _reap(forks)
            if server in heard:
                joined, _address = server.accept()
                if (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    for number in (signal.SIGTERM, signal.SIGCHLD):
                        signal.signal(number, signal.SIG_DFL)
                    for other in (server, wakes, wakened, *forks.values()):
                        other.close()
                    die_with_parent()
                    os._exit(_live(joined, module))
                forks[pid] = joined
    return 0


if __name__ == "__main__":
    os._exit(main())
