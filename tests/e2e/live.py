"""A daemon of the test's own: started by its command line, ended by SIGTERM, which must exit 0."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from daemon.config.cuda import VISIBLE
from daemon.control.client import fetch_snapshot
from daemon.protocol.control import Snapshot
from daemon.supervisor.spare import WORKER
from daemon.wire.faults import TEST_MODE
from tests.hangs import HANG_S

READY_S = 300.0

quick: dict[str, str] = {}
"""The nursery (`tests.nursery`) that starts workers at once, if the suite has one."""
TOY = {TEST_MODE: "1", WORKER: "tests.chaos.worker"}
"""For daemons of which no test asks how their workers compute."""
REAL = {WORKER: ""}
"""For daemons whose workers' processes are looked at: each imports what it needs itself."""


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class LiveDaemon:
    """`llmd serve` with its own port, control socket, journal, log and memory of answers. It sees
    no GPU, so that it serves on the CPU wherever it runs.
    """

    def __init__(
        self, *flags: str, env: dict[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="llmd-e2e-")
        self.folder = folder or Path(self._folder.name)  # one that is given stays
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.socket = self.folder / "llmd.sock"
        self.log = self.folder / "log"
        command = [sys.executable, "-m", "daemon.cli.main", "serve"]
        command += ["--port", str(self.port), "--socket", str(self.socket)]
        command += ["--set", f'journal.folder="{self.folder / "journal"}"']
        command += ["--set", "daemon.spare=false"]  # it takes a core that tests want
        if "--dtype" not in flags:  # texts are compared: who runs beside whom may round nothing
            command += ["--dtype", "float32"]
        command += flags
        # What it learns is not the user's.
        own = {VISIBLE: "", "STATE_DIRECTORY": str(self.folder), **quick, **(env or {})}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env={**os.environ, **own},
            )

    def __enter__(self) -> Self:
        try:
            self.wait_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(HANG_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the daemon did not end:\n{self.text()}") from error
        finally:
            self._folder.cleanup() if error is None else None
        if error is None:
            assert status == 0

    def wait_ready(self) -> None:
        """Until a first token is possible. Raises AssertionError with the log."""
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            assert self.process.poll() is None, f"the daemon ended:\n{self.text()}"
            try:
                with urllib.request.urlopen(f"{self.url}/ready", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
        raise AssertionError(f"the daemon was not ready in {READY_S} s:\n{self.text()}")

    def wait_all_ready(self) -> None:
        """Until every instance serves, not the first alone. Raises AssertionError with the log."""
        deadline_s = time.monotonic() + READY_S
        while any(instance.state != "ready" for instance in self.snapshot().instances):
            assert time.monotonic() < deadline_s, self.text()
            time.sleep(0.05)

    def text(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    def snapshot(self) -> Snapshot:
        """The snapshot that a viewer gets now."""
        return fetch_snapshot(self.socket, 10.0)

    def idle_snapshot(self) -> Snapshot:
        """The snapshot once nothing runs or waits. Raises AssertionError after 10 s."""
        deadline_s = time.monotonic() + HANG_S
        while time.monotonic() < deadline_s:
            seen = self.snapshot()
            if not seen.running and not seen.waiting and not seen.instances[0].steps_in_flight:
                return seen
            time.sleep(0.05)
        raise AssertionError(f"still busy: {seen}")

    def model(self) -> dict[str, Any]:
        """The entry of /v1/models."""
        with urllib.request.urlopen(f"{self.url}/v1/models", timeout=10) as answer:
            entry: dict[str, Any] = json.load(answer)["data"][0]
        return entry

    def children(self) -> dict[str, int]:
        """Process ids of the daemon's children by module, such as daemon.api."""
        found = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for pid in (task / "children").read_text().split():
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"-m" in words:
                    found[words[words.index(b"-m") + 1].decode()] = int(pid)
        return found

    def descriptors(self) -> dict[str, list[str]]:
        """The open descriptors of each process of the daemon, by module."""
        held = {}
        for name, pid in {"daemon": self.process.pid, **self.children()}.items():
            folder = Path(f"/proc/{pid}/fd")
            held[name] = [os.readlink(one) for one in folder.iterdir() if one.is_symlink()]
        return held
