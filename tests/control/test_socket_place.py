"""One daemon for each control socket, and who may ask it."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.control.client import ControlError, fetch_snapshot
from daemon.control.place import SocketPlace, place_fault
from daemon.control.server import ControlServer, Peer, may_ask, peer_of
from tests.tui import scenario

NOBODY = 65534

RIVAL = """
import sys, time
from pathlib import Path
from daemon.control.place import SocketPlace
try:
    sock = SocketPlace(Path(sys.argv[1])).take()
except FileExistsError as error:
    print("refused", error, flush=True)
else:
    sock.listen()
    print("taken", flush=True)
    time.sleep(100)
"""


def rivals(path: Path, count: int) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-c", RIVAL, str(path)]
    return [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def end(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("count", [4, pytest.param(50, marks=pytest.mark.soak)])
def test_of_many_simultaneous_starts_exactly_one_lives(path: Path, count: int) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))  # a stale socket, which all of them want to remove
    processes = rivals(path, count)
    try:
        words = [said(process) for process in processes]
        (winner,) = [p for p, word in zip(processes, words, strict=True) if word == "taken\n"]
        assert sum(word.startswith("refused another daemon") for word in words) == count - 1
        with socket.socket(socket.AF_UNIX) as viewer:
            viewer.connect(str(path))
            assert peer_of(viewer).pid == winner.pid
    finally:
        end(processes)


def test_a_killed_daemons_place_is_free_at_once(path: Path) -> None:
    (first,) = rivals(path, 1)
    try:
        assert said(first) == "taken\n"
        os.kill(first.pid, signal.SIGKILL)
        first.wait(10)
        (second,) = rivals(path, 1)
        try:
            assert said(second) == "taken\n"
        finally:
            end([second])
    finally:
        end([first])


def test_the_holder_is_named_and_keeps_its_socket(path: Path) -> None:
    place, rival = SocketPlace(path), SocketPlace(path)
    with place.take() as sock:
        sock.listen()
        with pytest.raises(FileExistsError, match=rf"\(process {os.getpid()}\) holds .*\.lock"):
            rival.take()
        rival.give_back()
        assert path.exists()
        place.give_back()
        place.give_back()
        assert not path.exists()


def test_a_mistyped_folder_is_told_and_not_made(path: Path) -> None:
    mistyped = path.parent / "no" / "such" / "llmd.sock"
    with pytest.raises(FileNotFoundError, match=r"no such folder .* --socket"):
        SocketPlace(mistyped).take()
    assert not mistyped.parent.parent.exists()
    assert "no such folder" in place_fault(mistyped)
    assert place_fault(mistyped, makes_folder=True) == ""
    own = SocketPlace(mistyped, makes_folder=True)
    with own.take():
        assert mistyped.exists()
        own.give_back()


def test_a_live_socket_without_its_lock_is_not_taken(path: Path) -> None:
    """A cleaner of old files may delete the lock of a daemon that runs for weeks."""
    place = SocketPlace(path)
    with place.take() as sock:
        sock.listen()
        path.with_name("llmd.sock.lock").unlink()
        with pytest.raises(FileExistsError, match="another daemon answers"):
            SocketPlace(path).take()
        place.give_back()


def test_a_lock_that_is_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path.with_name("llmd.sock.lock").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        SocketPlace(path).take()
    assert victim.read_text() == "mine"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a folder of somebody else's")
def test_somebody_elses_folder_where_all_may_write_is_refused() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        trap = Path(folder, "llmd-0")
        trap.mkdir()
        os.chown(trap, NOBODY, NOBODY)
        with pytest.raises(PermissionError, match=f"belongs to user {NOBODY}"):
            SocketPlace(trap / "llmd.sock").take()


@pytest.mark.parametrize(
    ("peer", "allowed"),
    [
        (Peer(1, 1000, frozenset({1000})), True),
        (Peer(1, 0, frozenset({0})), True),
        (Peer(1, 1001, frozenset({1001, 500})), True),
        (Peer(1, 1001, frozenset({1001})), False),
        (Peer(1, NOBODY, frozenset({NOBODY})), False),
    ],
)
def test_the_user_the_group_and_root_may_ask(peer: Peer, allowed: bool) -> None:
    assert may_ask(peer, uid=1000, gid=500) is allowed


def test_the_kernel_tells_groups_too() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        peer = peer_of(ours)
    assert (peer.pid, peer.uid) == (os.getpid(), os.getuid())
    assert peer.gids >= {os.getgid(), *os.getgroups()}


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A path in a folder that everybody may enter."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder, "llmd.sock")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can ask as somebody else")
@pytest.mark.parametrize(("gid", "answered"), [(NOBODY, False), (None, True)])
async def test_a_stranger_gets_nothing_though_the_mode_lets_it_in(
    open_path: Path, gid: int | None, answered: bool
) -> None:
    """The second one is in the socket's group, as a supplementary one."""
    server = ControlServer(open_path, lambda: scenario.snapshot(1))
    await server.start()
    open_path.chmod(0o666)
    groups = [open_path.stat().st_gid] if gid is None else []
    answer = await asyncio.to_thread(_answer_to_nobody, open_path, groups)
    own = await asyncio.to_thread(fetch_snapshot, open_path)
    await server.close()
    assert own.pid == 4242
    assert (answer == "4242") is answered
    assert ("its group and root may ask" in answer) is not answered


def _answer_to_nobody(path: Path, groups: list[int]) -> str:
    """What a process without rights is told; it shares our memory, since it could start no Python
    of another user's.
    """
    theirs, ours = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups(groups)
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(ours, str(fetch_snapshot(path, 10.0).pid).encode())
        except ControlError as error:
            os.write(ours, str(error).encode())
        finally:
            os._exit(0)
    os.close(ours)
    with open(theirs) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text
