"""Processes of a whole daemon that are stopped or compute for ever: found, replaced, none left."""

import asyncio
import json
import os
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import aiohttp
import pytest

from daemon.wire.faults import TEST_MODE, VARIABLE
from tests.e2e.live import REAL, LiveDaemon
from tests.e2e.test_lifecycle import counted, text_of
from tests.e2e.tiny import tiny_folder
from tests.hangs import HANG_S

# Sampled: what a greedy answer repeats is drafted, and the answer is over before anything hangs.
ASKED = {"prompt": [9, 8, 7, 6] * 10, "max_tokens": 1200, "temperature": 1.5, "seed": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


EVERY_KIND = Counter(
    {
        "daemon.api": 1,
        "daemon.api.sandbox.grammar_process": 1,
        "daemon.api.sandbox.template_process": 1,
        "daemon.engine.worker.main": 2,  # one of them is the spare
        "daemon.predictor.process": 1,
    }
)


def until(condition: Callable[[], object], timeout_s: float = HANG_S) -> None:
    """Wait for it. Raises AssertionError."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def family(pid: int) -> list[int]:
    """A process and all that it started, and they, and so on."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def modules(pids: list[int]) -> Counter[str]:
    """What `python -m` runs in each of these processes."""
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in pids]
    return Counter(words[words.index(b"-m") + 1].decode() for words in commands if b"-m" in words)


def runs(pid: int) -> bool:
    """Whether a process of this id is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_stopped_api_process_is_replaced_and_its_answers_end(folder: Path) -> None:
    slow = {TEST_MODE: "1", VARIABLE: "worker.slow:1:3"}  # the answer goes on while it is stopped
    with LiveDaemon("--model", str(folder), env=slow) as daemon:
        model = daemon.model()["id"]
        expected = await text_of(daemon.url, model, **ASKED)
        cut = asyncio.create_task(text_of(daemon.url, model, **ASKED))
        while not daemon.snapshot().running:
            await asyncio.sleep(0.01)
        os.kill(stopped := daemon.children()["daemon.api"], signal.SIGSTOP)
        await asyncio.to_thread(until, lambda: daemon.snapshot().api.deaths == 1)
        with pytest.raises((aiohttp.ClientError, AssertionError, IndexError)):
            await cut
        daemon.wait_ready()
        assert not runs(stopped) and "hangs; where it is:" in daemon.text()
        await asyncio.to_thread(until, lambda: daemon.snapshot().ready)
        seen = daemon.idle_snapshot()
        assert (seen.api.up, seen.status) == (True, "ready")
        assert seen.counters.aborted + seen.counters.finished == 2
        assert not seen.instances[0].kv_used
        assert await text_of(daemon.url, model, **ASKED) == expected
        await counted(daemon.url, 2400)
        async with aiohttp.ClientSession(daemon.url) as session, session.get("/metrics") as got:
            assert 'llmd:api_deaths_total{model_name="tiny"} 1.0' in await got.text()


@pytest.mark.soak  # a core is busy for seconds; tests/supervisor/test_progress.py says as much
async def test_an_event_loop_that_computes_for_ever_is_found(folder: Path) -> None:
    faulty = {TEST_MODE: "1", VARIABLE: "api.hang:1:0"}
    with LiveDaemon("--model", str(folder), env=faulty) as daemon:
        model = daemon.model()["id"]
        with pytest.raises((aiohttp.ClientError, AssertionError, IndexError)):
            await text_of(daemon.url, model, **ASKED)
        daemon.wait_ready()
        assert daemon.snapshot().api.deaths == 1
        assert "daemon/api/link/link.py" in daemon.text(), "where it computed for ever"


@pytest.mark.soak
async def test_a_stopped_daemon_that_goes_on_kills_nobody(folder: Path) -> None:
    """The limits run out while it stands still, with an answer under way and without one."""
    with LiveDaemon("--model", str(folder), env=REAL) as daemon:
        model = daemon.model()["id"]
        expected = await text_of(daemon.url, model, **ASKED)
        before = daemon.children()
        for stopped in ([daemon.process.pid], family(daemon.process.pid)):
            answer = asyncio.create_task(text_of(daemon.url, model, **ASKED))
            while not daemon.snapshot().running:
                await asyncio.sleep(0.01)
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(6.0)  # a step may take 5 s, an answer of the API process 2 s
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            assert await answer == expected
        assert daemon.children() == before
        seen = daemon.idle_snapshot()
        assert (seen.api.deaths, seen.counters.worker_deaths) == (0, 0)


async def test_a_disk_that_stalls_holds_up_no_answer_and_no_end(folder: Path) -> None:
    faulty = {TEST_MODE: "1", VARIABLE: "journal.stall:1:600000"}
    with LiveDaemon("--model", str(folder), env=faulty) as daemon:
        model = daemon.model()["id"]
        assert await text_of(daemon.url, model, prompt=[5, 6, 7], max_tokens=100)
        daemon.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(daemon.process.wait, 20) == 0
        assert "the journal misses its end: its disk did not answer" in daemon.text()


@pytest.fixture
def whole(folder: Path) -> Iterator[LiveDaemon]:
    """A daemon with a process of every kind."""
    flags = ["--set", "daemon.spare=true", "--predictor", "features"]
    daemon = LiveDaemon("--model", str(folder), *flags, env=REAL)
    try:
        daemon.wait_ready()
        asked = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        asked["response_format"] = {"type": "json_object"}
        address = f"{daemon.url}/v1/chat/completions"
        body = json.dumps({"model": daemon.model()["id"], **asked}).encode()
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=60).close()
        until(lambda: modules(family(daemon.process.pid)) >= EVERY_KIND)
        yield daemon
    finally:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.wait()


def test_nobody_outlives_a_killed_daemon_whatever_he_does(whole: LiveDaemon) -> None:
    everybody = family(whole.process.pid)
    for pid in everybody[1:]:
        os.kill(pid, signal.SIGSTOP)
    whole.process.kill()
    until(lambda: not any(map(runs, everybody)))


@pytest.mark.soak
def test_nobody_outlives_a_daemon_that_ends_though_all_are_stopped(whole: LiveDaemon) -> None:
    everybody = family(whole.process.pid)
    for pid in everybody[1:]:
        os.kill(pid, signal.SIGSTOP)
    whole.process.send_signal(signal.SIGTERM)
    assert whole.process.wait(40) == 0
    until(lambda: not any(map(runs, everybody)))


@pytest.mark.soak
def test_nobody_outlives_a_killed_api_process(whole: LiveDaemon) -> None:
    api = whole.children()["daemon.api"]
    gone = family(api)
    for pid in gone:
        os.kill(pid, signal.SIGSTOP)
    os.kill(api, signal.SIGKILL)
    until(lambda: not any(map(runs, gone)))
    whole.wait_ready()
