"""A real llmd-powerd over made-up cards, and plain connections to it."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.hangs import HANG_S
from tests.house.source import ROOT
from tests.powerd.fake_cards import FakeCards, environment, uuid_of

START_S = END_S = HANG_S
POLL_S = 0.005


class Talk:
    """A connection that asks and waits for the answer."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(END_S)
        self.sock.connect(os.fspath(path))
        self._lines = self.sock.makefile("rb")

    def ask(self, **question: object) -> dict[str, Any]:
        return self.send(json.dumps(question).encode() + b"\n")

    def send(self, data: bytes) -> dict[str, Any]:
        self.sock.sendall(data)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next answer; ConnectionError where none comes any more."""
        line = self._lines.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError("closed by llmd-powerd")
        told: dict[str, Any] = json.loads(line)
        assert told["ok"] or told["error"], "an error is told in words"
        return told

    def is_closed_after(self, data: bytes) -> str:
        """Send something that ends the connection; the last answer before the end, if one came."""
        said = ""
        with contextlib.suppress(ConnectionError):  # it may be closed while we still send
            said = self.send(data)["error"]
            while True:
                self.answer()
        self.close()
        return said

    def lease(self, number: int, watts: float | None) -> dict[str, Any]:
        return self.ask(verb="lease", device=uuid_of(number), watts=watts)

    def read(self, number: int) -> dict[str, Any]:
        return self.ask(verb="read", device=uuid_of(number))

    def close(self) -> None:
        self._lines.close()
        self.sock.close()


class Powerd:
    """The process, its socket and its state file; started when it is entered."""

    def __init__(self, folder: Path, cards: FakeCards, *flags: str) -> None:
        self.cards = cards
        self.folder = folder
        self.path = folder / "powerd.sock"
        self.state = folder / "limits.json"
        self._log_path = folder / "log"
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None
        self._talks: list[Talk] = []

    def start(self, *arguments: str) -> None:
        """Run it until it listens."""
        self.run(*arguments)
        self.until(self._listens)

    def run(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "daemon.powerd.main"]
        command += ["--socket", str(self.path), "--state", str(self.state), *arguments]
        with self._log_path.open("ab") as file:
            self._process = subprocess.Popen(
                command, stderr=file, env=environment(self.cards, *self._flags), cwd=ROOT
            )

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Signal it and wait; its exit status."""
        self.signal(number)
        return self.wait()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        """Its exit status, once it has ended by itself."""
        assert self._process is not None
        status = self._process.wait(END_S)
        self._process = None
        return status

    def talk(self) -> Talk:
        """A connection, which ends when it is closed, at the latest with the test."""
        self._talks.append(Talk(self.path))
        return self._talks[-1]

    def rest(self) -> None:
        """End what a test has left: connections, failures, limits, the log; live again."""
        for talk in self._talks:
            talk.close()
        self._talks.clear()
        self.cards.heal()
        if self._process is None or self._process.poll() is not None:
            self.start()
        self.until(lambda: not self.state.exists() or not self.saved())
        self._log_path.write_text("")

    @contextlib.contextmanager
    def without_descriptors(self) -> Iterator[None]:
        """It can open nothing meanwhile; what is open stays."""
        before = resource.prlimit(self._pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self._pid, resource.RLIMIT_NOFILE, (0, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self._pid, resource.RLIMIT_NOFILE, before)

    def cpu_s(self) -> float:
        """The processor time that it has used."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def _pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return self._log_path.read_text()

    def saved(self) -> dict[str, int]:
        """The content of its state file."""
        limits: dict[str, int] = json.loads(self.state.read_text())["limits_mw"]
        return limits

    def until(self, happened: Any) -> None:
        """Wait for something; fails where the process ends or takes too long."""
        limit_s = time.monotonic() + START_S
        while not happened():
            assert self._process is not None and self._process.poll() is None, self.log()
            assert time.monotonic() < limit_s, self.log()
            time.sleep(POLL_S)

    def _listens(self) -> bool:
        try:
            self.talk().close()
        except OSError:
            return False
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_S)
