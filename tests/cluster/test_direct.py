"""Direct connections: who is let in, what passes, and that nobody waits for ever."""

import contextlib
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from daemon.cluster import direct
from daemon.cluster.direct import DirectConnection, Door, connect, is_loopback

pytest.importorskip("cryptography")
MUCH = bytes(range(256)) * 40_000


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Door]:
    """What opens a door on loopback, as on an address that others can listen in on, too."""
    if request.param:
        monkeypatch.setattr(direct, "is_loopback", lambda _address: False)
    return lambda: Door("127.0.0.1")


def test_much_passes_both_ways_at_once(opened: Callable[[], Door]) -> None:
    door = opened()

    def there() -> bytes:
        met = door.accept()
        assert met is not None
        sending = threading.Thread(target=met.send, args=(MUCH,))
        sending.start()
        found = met.exactly(len(MUCH))
        sending.join()
        met.close()
        return found

    with ThreadPoolExecutor(1) as beside:
        there_found = beside.submit(there)
        here = connect(door.here)
        sending = threading.Thread(target=here.send, args=(MUCH,))
        sending.start()
        assert here.exactly(len(MUCH)) == MUCH
        sending.join()
        assert there_found.result() == MUCH
    assert here.receive() == b""


def test_who_has_another_token_is_not_let_in(opened: Callable[[], Door]) -> None:
    door = opened()
    with ThreadPoolExecutor(1) as beside:
        met = beside.submit(door.accept)
        with pytest.raises(OSError, match=r"lets nobody in|EOF|closed|reset"):
            connect(msgspec.structs.replace(door.here, token=bytes(direct.TOKEN_BYTES)))
        here = connect(door.here)
        found = met.result()
        assert isinstance(found, DirectConnection)
        found.send(b"welcome")
        assert here.exactly(7) == b"welcome"


def test_what_speaks_otherwise_is_not_let_in(
    opened: Callable[[], Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_GREET_S", 0.05)
    door = opened()
    address = door.here.address, door.here.port
    with socket.create_connection(address) as silent, socket.create_connection(address) as loud:
        loud.sendall(b"GET / HTTP/1.1\r\n\r\n" * 20)
        assert door.accept(deadline_s=0.3) is None
        assert silent.recv(1) == b""


def test_who_says_its_token_slowly_keeps_nobody_out(
    opened: Callable[[], Door], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_GREET_S", 0.2)
    door, said, stop = opened(), list[int](), threading.Event()
    long_record = iter(b"\x16\x03\x01\x40" + bytes(1000))  # of TLS, which begins as it should

    def drip(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not stop.wait(0.05):
                said.append(sock.send(bytes([next(long_record)])))

    address = door.here.address, door.here.port
    with ThreadPoolExecutor(2) as beside, socket.create_connection(address) as slow:
        met = beside.submit(door.accept)
        beside.submit(drip, slow)
        connect(door.here).close()
        stop.set()
        assert isinstance(met.result(), DirectConnection)
    assert len(said) < direct.TOKEN_BYTES


def test_a_silent_connection_is_kept_open() -> None:
    """What stands between two machines forgets connections over which nothing goes for long."""
    door = Door("127.0.0.1")
    with ThreadPoolExecutor(1) as beside:
        met = beside.submit(door.accept)
        ends = connect(door.here), met.result()
    for end in ends:
        assert end is not None
        assert end._sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert end._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60
        end.close()


def test_a_certificate_is_this_one_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "is_loopback", lambda _address: False)
    door, other = Door("127.0.0.1"), Door("127.0.0.1")
    forged = msgspec.structs.replace(door.here, certificate=other.here.certificate)
    with ThreadPoolExecutor(1) as beside:
        met = beside.submit(door.accept, 0.5)
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            connect(forged)
        assert met.result() is None


def test_nothing_goes_beyond_loopback_in_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door("127.0.0.1")
    assert door.here.certificate == b""
    monkeypatch.setattr(direct, "is_loopback", lambda _address: False)
    with pytest.raises(ConnectionError, match="offers no TLS"):
        connect(door.here)


def test_loopback_is_known() -> None:
    assert is_loopback("127.8.0.1") and is_loopback("::1")
    assert not is_loopback("10.0.0.1") and not is_loopback("a-host")
