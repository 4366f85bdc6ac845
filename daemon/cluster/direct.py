"""The direct connection of a proxy, or of another worker's host, to the host of a worker on a node.

Ray's calls place a worker and tell of its end; a step's frames would wake two processes more on
their way through them. The host listens on its node's address, and lets in who gives the token
that came with Ray's answer: first its proxy, then the hosts of workers that have links to its own.
Beyond loopback all is TLS, with a certificate made for this host alone, which comes with the token.
"""

import contextlib
import datetime as dt
import hmac
import ipaddress
import os
import secrets
import socket
import ssl
import threading
import time

from daemon.protocol.worker import NodeDoor

TOKEN_BYTES = 32
CONNECT_S = 60.0
"""Time for the proxy to connect to a host that listens."""
_GREET_S = 5.0
"""Time for one peer to say who it is, all of it, so that another one gets its turn."""
_KEEP_S = 60
"""Silence after which the kernel asks the peer's: firewalls forget what is silent for long."""
_READ_BYTES = 256 * 1024
_EVER = dt.datetime(2000, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, tzinfo=dt.UTC)
"""The dates of a certificate that is of one use: clocks of machines differ."""
_WELCOME = b"\x01"
"""A host's answer to its token."""


def is_loopback(address: str) -> bool:
    """Whether nobody else can listen in on what goes to an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class DirectConnection:
    """Bytes both ways; one thread may send while another receives."""

    def __init__(
        self, sock: socket.socket, context: ssl.SSLContext | None = None, *, serves: bool = False
    ) -> None:
        """Encrypted if there is a `context`; `serves`: as TLS's server. Raises OSError."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEP_S)
        self._sock = sock
        self._sending = threading.Lock()
        self._locked = threading.Lock()  # around `_tls`, which is not made for several threads
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = None
        if context is not None:
            self._tls = context.wrap_bio(self._in, self._out, server_side=serves)
            self._shake_hands(self._tls)

    def send(self, data: bytes) -> None:
        """Send all of it; blocks while the peer's buffer is full. Raises OSError."""
        with self._sending:
            if self._tls is not None:
                with self._locked:
                    self._tls.write(data)
                    data = self._out.read()
            self._sock.sendall(data)

    def receive(self, most_bytes: int = _READ_BYTES) -> bytes:
        """The bytes that come next; empty at the peer's end, or where the connection is lost."""
        try:
            if self._tls is None:
                return self._sock.recv(most_bytes)
            return self._decrypted(self._tls, most_bytes)
        except OSError:
            return b""

    def exactly(self, count: int) -> bytes:
        """The next `count` bytes; fewer at the peer's end."""
        found = b""
        while len(found) < count and (data := self.receive(count - len(found))):
            found += data
        return found

    def end(self) -> None:
        """Send no more; the peer receives what was sent, and then the end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def settimeout(self, timeout_s: float | None) -> None:
        """The longest time that sending and receiving may wait."""
        self._sock.settimeout(timeout_s)

    def close(self) -> None:
        """End it, for a thread that receives too."""
        _shut(self._sock)
        self._sock.close()

    def _decrypted(self, tls: ssl.SSLObject, most_bytes: int) -> bytes:
        while True:
            with self._locked:
                try:
                    return tls.read(most_bytes)
                except ssl.SSLWantReadError:
                    pass
            self._read_more()

    def _read_more(self) -> None:
        """Take encrypted bytes, or their end."""
        data = self._sock.recv(_READ_BYTES)
        with self._locked:
            if data:
                self._in.write(data)
            else:
                self._in.write_eof()

    def _shake_hands(self, tls: ssl.SSLObject) -> None:
        is_done = False
        while not is_done:
            try:
                tls.do_handshake()
                is_done = True
            except ssl.SSLWantReadError:
                pass
            if out := self._out.read():
                self._sock.sendall(out)
            if not is_done:
                self._read_more()


class Door:
    """A host's listening socket, and the token of who may come."""

    def __init__(self, address: str) -> None:
        """Listens on a free port of `address` alone. Raises OSError; ImportError where TLS is
        needed, and the library that makes certificates is not installed.
        """
        self._context, certificate = None, b""
        if not is_loopback(address):
            self._context, certificate = _own_context(address)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._sock = socket.create_server((address, 0), family=family, backlog=16)
        self.closed = False
        port = self._sock.getsockname()[1]
        self.here = NodeDoor(address, port, certificate, secrets.token_bytes(TOKEN_BYTES))

    def accept(self, deadline_s: float = CONNECT_S) -> DirectConnection | None:
        """The next peer that has the token; None: none came in time, or the door was closed."""
        until_s = time.monotonic() + deadline_s
        while not self.closed and (left_s := until_s - time.monotonic()) > 0.0:
            with contextlib.suppress(OSError):
                self._sock.settimeout(left_s)
                if (met := self._meet(self._sock.accept()[0])) is not None:
                    return met
        return None

    def close(self) -> None:
        """Let in nobody any more."""
        self.closed = True
        _shut(self._sock)  # a thread may wait in `accept`
        self._sock.close()

    def _meet(self, sock: socket.socket) -> DirectConnection | None:
        late = threading.Timer(_GREET_S, _shut, [sock])
        late.start()
        try:
            met = DirectConnection(sock, self._context, serves=True)
            if hmac.compare_digest(met.exactly(TOKEN_BYTES), self.here.token):
                met.send(_WELCOME)
                return met
        except OSError:
            pass
        finally:
            late.cancel()
        sock.close()
        return None


def connect(door: NodeDoor) -> DirectConnection:
    """A connection to a host that listens. Raises OSError where it does not answer, or is another
    one than the certificate's.
    """
    sock = socket.create_connection((door.address, door.port), CONNECT_S)
    context = None
    if door.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # it is this very certificate, or none
        context.load_verify_locations(cadata=door.certificate)
    elif not is_loopback(door.address):
        sock.close()
        raise ConnectionError(f"{door.address} offers no TLS")
    try:
        made = DirectConnection(sock, context)
        made.send(door.token)
        if made.exactly(len(_WELCOME)) != _WELCOME:
            raise ConnectionError(f"{door.address} lets nobody in with this token")
    except OSError:
        sock.close()
        raise
    made.settimeout(None)
    return made


def _shut(sock: socket.socket) -> None:
    """Let nobody wait for a socket any more."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _own_context(address: str) -> tuple[ssl.SSLContext, bytes]:
    """A server's context with a new key, and its certificate, which nobody signed but itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, address)])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_EVER[0])
        .not_valid_after(_EVER[1])
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with open(os.memfd_create("key"), "wb") as file:  # no file on a disk has the key
        file.write(private + made.public_bytes(pem))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context, made.public_bytes(serialization.Encoding.DER)
