"""The HTTP listening socket: bound by the daemon, so that it outlives any one API process."""

import errno
import socket

BACKLOG = 1024
_OTHER_PORT = "--port N listens on another port, --port 0 on a free one"
_OTHER_HOST = "--host H listens on another address"
_OF_PORTS = (errno.EADDRINUSE, errno.EACCES)
"""Errors of a port rather than of a host."""


class ListenError(Exception):
    """The address cannot be listened on; the message says which and why."""


def listen(host: str, port: int) -> socket.socket:
    """A bound, listening TCP socket. Raises ListenError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except UnicodeError as error:  # a name that no resolver could take
        raise ListenError(f"{host}:{port}: not a host name; {_OTHER_HOST}") from error
    except OSError as error:
        raise ListenError(f"{host}:{port}: {error.strerror}; {_OTHER_HOST}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        other = _OTHER_PORT if error.errno in _OF_PORTS else _OTHER_HOST
        raise ListenError(f"cannot listen on {host}:{port}: {error.strerror}; {other}") from error
    return sock


def url_of(sock: socket.socket) -> str:
    """The base URL of a listening socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
