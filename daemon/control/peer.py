"""Who is at the other end of a Unix socket, as the kernel tells it, and whether they may ask.

The socket's mode says the same. But a mode can be changed, and a folder above it be opened, long
after the daemon has bound it; what the kernel says of a connection cannot.
"""

import socket
import struct
from typing import NamedTuple

_CREDENTIALS = struct.Struct("iII")
_SO_PEERGROUPS = 59  # Linux's number; Python has no name for it
_GROUPS_BYTES = 1024  # the most that Python reads, 256 groups


class Peer(NamedTuple):
    """A process as it was when it connected."""

    pid: int
    uid: int
    gids: frozenset[int]  # its group and its supplementary ones, as far as they are told


def peer_of(sock: socket.socket) -> Peer:
    """Who connected. Raises OSError."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(credentials)
    try:
        groups = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
    except OSError:  # more groups than fit, or a kernel that does not tell
        groups = b""
    return Peer(pid, uid, frozenset({gid, *struct.unpack(f"{len(groups) // 4}I", groups)}))


def may_ask(peer: Peer, uid: int, gid: int) -> bool:
    """Whether a peer may use a socket of this user and group: the user, the group, and root."""
    return peer.uid in (0, uid) or gid in peer.gids
