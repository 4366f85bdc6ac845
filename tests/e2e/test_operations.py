"""Orders to a running daemon, with an answer under way that none of them may touch."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import aiohttp

from tests.e2e.live import LiveDaemon
from tests.e2e.test_hangs import until
from tests.e2e.test_lifecycle import pieces, text_of
from tests.e2e.tiny import tiny_folder
from tests.hangs import HANG_S

SECRET = "the launch code is swordfish"


def ctl(daemon: LiveDaemon, verb: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "daemon.cli.main", "ctl", "--socket", str(daemon.socket), verb]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)


async def ready_status(daemon: LiveDaemon) -> int:
    async with aiohttp.ClientSession(daemon.url) as http, http.get("/ready") as response:
        return response.status


async def test_reload_drain_and_resume_touch_no_answer_and_logs_are_json(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    file = tmp_path / "llmd.toml"
    fixed = "[daemon]\nlog_format = 'json'\n"
    file.write_text(fixed)
    address = str(tmp_path / "notify.sock")
    manager = Manager(address)
    manager.start()
    env = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "400000"}
    with LiveDaemon("--config", str(file), "--model", str(folder), env=env) as daemon:
        await asyncio.to_thread(until, lambda: "READY=1" in manager.told)
        loads = next(word for word in manager.told if word.startswith("STATUS=loading"))
        assert manager.told.index(loads) < manager.told.index("READY=1")
        assert daemon.snapshot().ready, "a first token is possible"
        model = daemon.model()["id"]
        asked = {"prompt": [5, 6, 7], "max_tokens": 1200}
        running = [asyncio.create_task(text_of(daemon.url, model, **asked)) for _ in range(3)]
        while daemon.snapshot().running < 3:
            await asyncio.sleep(0.01)

        file.write_text(f"{fixed}[scheduler]\npolicy = 'srtf'\nmax_running = 7\n")
        done = await asyncio.to_thread(ctl, daemon, "reload")
        assert done.returncode == 0, done.stderr
        assert "changed: scheduler.policy\n" in done.stdout
        assert "needs a restart: scheduler.max_running\n" in done.stdout
        assert daemon.snapshot().instances[0].policy == "srtf"

        file.write_text("[scheduler]\npolicy = 'lifo'\n")
        done = await asyncio.to_thread(ctl, daemon, "reload")
        assert done.returncode == 1
        assert "the configuration stays as it was: " in done.stderr
        daemon.process.send_signal(signal.SIGHUP)
        while daemon.text().count("the configuration stays as it was: ") < 2:
            await asyncio.sleep(0.01)
        assert daemon.snapshot().instances[0].policy == "srtf"

        done = await asyncio.to_thread(ctl, daemon, "drain")
        assert done.stdout.startswith("no new requests are taken; ")
        assert await ready_status(daemon) == 503
        assert len({await task for task in running}) == 1
        done = await asyncio.to_thread(ctl, daemon, "resume")
        assert done.returncode == 0 and await ready_status(daemon) == 200
        events = [one async for one in pieces(daemon.url, model, prompt=SECRET, max_tokens=3)]
        assert len(events) >= 3
        text = daemon.text()
    told = manager.end(address)
    events = [json.loads(line) for line in text.splitlines()]
    assert {one["process"] for one in events} >= {"daemon"}
    assert "swordfish" not in text
    reloads = [word for word in told if word in ("RELOADING=1", "READY=1", "STOPPING=1")]
    assert reloads == ["READY=1", *(["RELOADING=1", "READY=1"] * 3), "STOPPING=1"]
    assert "WATCHDOG=1" in told


class Manager(threading.Thread):
    """A service manager that only listens: its socket holds ten messages, so it reads at once."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.told: list[str] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sock.bind(address)

    def run(self) -> None:
        while words := self._sock.recv(4096):
            self.told += words.decode().splitlines()
        self._sock.close()

    def end(self, address: str) -> list[str]:
        """All that was told."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"", address)
        self.join(10)
        return self.told
