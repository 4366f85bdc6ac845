"""`llmd ctl status` against a real control socket."""

import asyncio
import json
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from daemon.cli.main import main
from daemon.control.protocol import Counters, InstanceStatus, SequenceStatus, Snapshot
from daemon.control.server import ControlServer


def snapshot() -> Snapshot:
    """Two instances, one of them loading, and one running sequence."""
    return Snapshot(
        version="1.2.3",
        pid=77,
        uptime_s=3725.0,
        time_s=9.0,
        status="loading weights 40 %",
        ready=False,
        draining=False,
        url="http://127.0.0.1:8000",
        model="small",
        root="/models/small",
        context_len=2048,
        max_len=2048,
        block_size=16,
        instances=(instance("gpu0", "ready", 1.0), instance("gpu1", "loading", 0.4)),
        sequences=(SequenceStatus(128, "decode", "gpu0", 1.5, 10, 12, 2, 64, 1, 0, 0),),
        running=1,
        waiting=2,
        counters=Counters(requests=5, finished=3, rejected=1),
    )


def instance(name: str, state: str, fraction: float) -> InstanceStatus:
    return InstanceStatus(
        name=name,
        role="mixed",
        device="cuda:0",
        state=state,
        policy="sarathi",
        running=1,
        waiting=2,
        kv_blocks=4,
        kv_free=3,
        kv_held=1,
        kv_cached=1,
        kv_fenced=0,
        kv_block_bytes=1024,
        block_map=np.array([3, 1, 0, 0], dtype=np.uint8),
        steps_in_flight=1,
        steps=10,
        step_s=0.0125,
        batch_rows=1,
        batch_tokens=1,
        load_stage="weights" if state == "loading" else "",
        load_fraction=fraction,
    )


@pytest.fixture
def socket_path() -> Iterator[Path]:
    """A served control socket, its loop in a thread of its own since the client blocks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "llmd.sock")
        serving, ended = threading.Event(), asyncio.Event()
        loop = asyncio.new_event_loop()

        async def serve() -> None:
            server = ControlServer(path, snapshot)
            await server.start()
            serving.set()
            await ended.wait()
            await server.close()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        assert serving.wait(10)
        yield path
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
        loop.close()


def test_json_has_what_scripts_rely_on(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "--socket", str(socket_path), "status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    first, second = status["instances"]
    names = ("name", "role", "device", "running", "waiting", "kv_blocks", "kv_free")
    assert [first[name] for name in names] == ["gpu0", "mixed", "cuda:0", 1, 2, 4, 3]
    assert second["state"] == "loading"
    assert first["block_map"] == [3, 1, 0, 0]
    assert status["sequences"][0]["num_output_tokens"] == 2
    assert status["counters"]["requests"] == 5


def test_text_shows_each_instance(socket_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", "--socket", str(socket_path), "status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "llmd 1.2.3  pid 77  up 1:02:05  loading weights 40 %"
    assert "gpu0" in lines[-2] and "3/4" in lines[-2] and "12.5 ms" in lines[-2]
    assert "gpu1" in lines[-1] and "weights 40%" in lines[-1]


def test_without_a_daemon_one_line_and_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "--socket", str(tmp_path / "none.sock"), "status"]) == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("llmd: no llmd daemon answers at ")
    assert streams.err.count("\n") == 1
