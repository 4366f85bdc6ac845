"""What a running daemon refuses: a rival at its socket, and requests once it is leaving."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp

from daemon.wire.faults import TEST_MODE, VARIABLE
from tests.e2e.live import LiveDaemon, free_port
from tests.e2e.tiny import tiny_folder
from tests.hangs import HANG_S


def rival(daemon: LiveDaemon, folder: Path) -> subprocess.CompletedProcess[str]:
    """A second daemon at the same control socket, run to its end."""
    command = [sys.executable, "-m", "daemon.cli.main", "serve", "--model", str(folder)]
    command += ["--port", str(free_port()), "--socket", str(daemon.socket)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)


async def test_a_rival_is_refused_and_a_leaving_daemon_takes_nothing(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "tiny")
    slow = {TEST_MODE: "1", VARIABLE: "worker.slow:1:5"}  # answers go on while it is told to stop
    with LiveDaemon("--model", str(folder), env=slow) as daemon:
        done = await asyncio.to_thread(rival, daemon, folder)
        assert done.returncode == 1
        holder = f"another daemon (process {daemon.process.pid}) holds {daemon.socket}.lock"
        assert holder in done.stderr
        assert "Traceback" not in done.stderr
        assert daemon.snapshot().ready  # the socket still leads to the first one

        body: dict[str, Any] = {"model": daemon.model()["id"], "prompt": [5, 6, 7]}
        body |= {"max_tokens": 900, "ignore_eos": True, "temperature": 0}
        async with aiohttp.ClientSession(daemon.url) as session:

            async def ask(**changes: Any) -> tuple[int, dict[str, Any]]:
                async with session.post("/v1/completions", json=body | changes) as got:
                    return got.status, await got.json()

            running = [asyncio.create_task(ask()) for _ in range(4)]
            while daemon.snapshot().running < len(running):
                await asyncio.sleep(0.01)
            daemon.process.send_signal(signal.SIGTERM)
            while not daemon.snapshot().draining:
                await asyncio.sleep(0.01)
            status, refusal = await ask(max_tokens=1)
            assert daemon.snapshot().running, "the answers ended before the refusal was seen"
            assert status == 503
            assert "error" in refusal
            answers = await asyncio.gather(*running)
            for status, answer in answers:
                assert status == 200
                assert answer["usage"]["completion_tokens"] == 900
            assert len({answer["choices"][0]["text"] for _, answer in answers}) == 1
