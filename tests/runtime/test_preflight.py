"""What stands in the way, seen beside a daemon that already serves."""

import asyncio
import os
import socket
from pathlib import Path

import msgspec
import pytest

from daemon.config.load import load
from daemon.config.schema import Config, InstanceSpec
from daemon.control.place import SocketPlace
from daemon.control.server import ControlServer
from daemon.runtime.preflight import Obstacle, obstacles
from daemon.wire.faults import TEST_MODE, VARIABLE
from tests.tui import scenario


def config(tmp_path: Path, port: int) -> Config:
    flags = {"control.socket": str(tmp_path / "llmd.sock"), "server.port": port}
    flags |= {"daemon.cache": str(tmp_path), "journal.folder": str(tmp_path / "journal")}
    return load(None, {**flags, "predict.kind": "none"}).config


def test_nothing_is_in_the_way_of_a_fresh_place_and_nothing_is_made(tmp_path: Path) -> None:
    assert list(obstacles(config(tmp_path, 0))) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["scheduler", "instance"])
def test_more_slots_than_a_step_has_tokens_are_told(tmp_path: Path, place: str) -> None:
    made = config(tmp_path, 0)
    limits = {"max_running": 65, "max_batch_tokens": 64, "prefill_chunk": 64}
    if place == "scheduler":
        scheduler = msgspec.structs.replace(made.scheduler, **limits)
        made = msgspec.structs.replace(made, scheduler=scheduler)
    else:
        few, many = InstanceSpec("cpu", max_running=64), InstanceSpec("cpu")
        many = msgspec.structs.replace(many, **limits)
        made = msgspec.structs.replace(made, instance=(few, many))
    (told,) = obstacles(made)
    assert not told.fatal and "65 run" in told.text and "64 tokens" in told.text
    assert told.key == ("scheduler" if place == "scheduler" else "instance[1]") + ".max_running"


def test_a_placement_of_before_is_told_with_what_is_used_in_its_place(tmp_path: Path) -> None:
    flags = {"scheduler.placement": "predictive", "server.port": 0}
    flags |= {"control.socket": str(tmp_path / "llmd.sock"), "journal.folder": str(tmp_path)}
    (note,) = obstacles(load(None, {**flags, "daemon.cache": str(tmp_path)}).config)
    assert not note.fatal and note.key == "scheduler.placement"
    assert "predictive was removed: least_loaded" in note.text


@pytest.mark.parametrize("own", [True, False])
async def test_the_place_of_a_daemon_that_runs_can_be_taken_but_no_other_s_port(
    tmp_path: Path, own: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        url = f"http://127.0.0.1:{port if own else 1}"
        snapshot = msgspec.structs.replace(scenario.snapshot(1), url=url, pid=77)
        control = ControlServer(tmp_path / "llmd.sock", lambda: snapshot)
        await control.start()
        try:
            found = await asyncio.to_thread(lambda: list(obstacles(config(tmp_path, port))))
        finally:
            await control.close()
    text = "a daemon (process 77) serves there now: this one would take its place"
    taken = (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; --port N listens on another"
    )
    taken += " port, --port 0 on a free one"
    expected = [Obstacle("control.socket", text, fatal=False)]
    assert found == expected + ([] if own else [Obstacle("server.port", taken)])


async def test_of_its_own_daemon_s_address_the_port_alone_comes_free(tmp_path: Path) -> None:
    """A restart would fail at a host that is not this machine's, whoever listens there now."""
    url = "http://127.0.0.1:7654"
    snapshot = msgspec.structs.replace(scenario.snapshot(1), url=url, pid=77)
    control = ControlServer(tmp_path / "llmd.sock", lambda: snapshot)
    elsewhere = config(tmp_path, 7654)
    server = msgspec.structs.replace(elsewhere.server, host="192.0.2.1")
    elsewhere = msgspec.structs.replace(elsewhere, server=server)
    await control.start()
    try:
        found = await asyncio.to_thread(lambda: list(obstacles(elsewhere)))
    finally:
        await control.close()
    assert [(one.key, one.fatal) for one in found] == [
        ("control.socket", False),
        ("server.port", True),
    ]


def test_a_daemon_whose_socket_was_deleted_is_in_the_way(tmp_path: Path) -> None:
    place = SocketPlace(tmp_path / "llmd.sock")
    with place.take():
        (tmp_path / "llmd.sock").unlink()
        (found,) = obstacles(config(tmp_path, 0))
    place.give_back()
    assert found.fatal and f"another daemon (process {os.getpid()}) holds" in found.text
    assert list(obstacles(config(tmp_path, 0))) == []


def test_what_breaks_on_purpose_is_refused_here_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TEST_MODE, raising=False)
    monkeypatch.setenv(VARIABLE, "worker.hang:1:0")
    (found,) = obstacles(config(tmp_path, 0))
    assert found.fatal and "is set, but" in found.text
