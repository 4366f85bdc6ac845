"""The listening socket, and addresses that cannot be had."""

import socket

import pytest

from daemon.runtime.listen import ListenError, listen, url_of
from tests.wire.descriptors import open_descriptors


def test_a_free_port_is_found_and_answers() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert port > 0 and url_of(sock) == f"http://127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            connection, _ = sock.accept()
            connection.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_an_ipv6_url_has_brackets() -> None:
    try:
        sock = listen("::1", 0)
    except ListenError:
        pytest.skip("no IPv6 loopback here")
    with sock:
        assert url_of(sock) == f"http://[::1]:{sock.getsockname()[1]}"


def test_a_port_in_use_is_said() -> None:
    with listen("127.0.0.1", 0) as sock:
        before = open_descriptors()
        port = sock.getsockname()[1]
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}: Address"):
            listen("127.0.0.1", port)
        assert open_descriptors() == before


def test_a_port_can_be_taken_again_at_once() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5) as client:
            connection, _ = sock.accept()
            connection.close()  # the side that closes first stays in TIME_WAIT
            assert client.recv(1) == b""
    listen("127.0.0.1", port).close()


@pytest.mark.parametrize("host", ["192.0.2.1", "no such host", "a..b", "x" * 80 + ".example"])
def test_an_address_that_is_not_ours_is_said(host: str) -> None:
    before = open_descriptors()
    with pytest.raises(ListenError, match=host):
        listen(host, 0)
    assert open_descriptors() == before
