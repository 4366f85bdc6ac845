"""A real daemon of this checkout, and `llmd bench`'s view of a workload on it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.servers import free_port
from daemon.lab.bench.bench import BenchSpec, Measured, measure
from daemon.lab.workload.workload import WorkloadSpec

READY_S = 120.0


@dataclass(frozen=True, slots=True)
class Started:
    """A daemon that was started; it may not be ready yet, or no longer live."""

    url: str
    log: Path
    process: "subprocess.Popen[bytes]"

    @property
    def alive(self) -> bool:
        """Whether its first process still runs."""
        return self.process.poll() is None


@contextmanager
def daemon(flags: Sequence[str], folder: Path) -> Iterator[str]:
    """A daemon's URL; see `started`."""
    with started(flags, folder) as one:
        yield one.url


@contextmanager
def started(
    flags: Sequence[str], folder: Path, module: str = "daemon.cli.main"
) -> Iterator[Started]:
    """`llmd serve` with its socket, journal, log and memory of answers in `folder`; on the CPU
    unless the flags, or a file that they name, have instances. `module` is run as llmd.
    """
    port = free_port()
    command = [sys.executable, "-m", module, "serve", "--port", str(port)]
    command += ["--socket", str(folder / "llmd.sock"), *flags]
    if "--instance" not in flags and "--config" not in flags:
        command += ["--instance", "cpu"]
    for setting in (f'journal.folder="{folder}"', "journal.max_bytes=1000000000"):
        command += ["--set", setting]
    state = {**os.environ, "STATE_DIRECTORY": str(folder)}  # what it learns is not the user's
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=state)
        try:
            yield Started(f"http://127.0.0.1:{port}", folder / "log", process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def bench(url: str, spec: WorkloadSpec, max_len: int, api_key: str = "") -> Measured:
    """Clients' view of a workload; waits for the daemon first."""
    deadline_s = time.monotonic() + READY_S
    while subprocess.run(
        ["curl", "-sf", "-o", "/dev/null", f"{url}/ready"], check=False
    ).returncode:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{url} does not answer")
        time.sleep(0.2)
    return asyncio.run(measure(BenchSpec(url=url, max_len=max_len, api_key=api_key), spec))
