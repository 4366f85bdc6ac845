"""The host names that this server answers to.

A web page can make its own name point to this machine's loopback, and then talk to llmd as its
origin (DNS rebinding). Its requests still carry the page's host name, and are refused for that.
"""

import ipaddress
import os
from collections.abc import Sequence

from daemon.api.replies.errors import ApiError

ANY = "*"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def machine_names(node: str) -> frozenset[str]:
    """The names of a machine with this node name in its own network; no stranger controls them."""
    node = node.lower()
    short = node.partition(".")[0]
    return frozenset({node, short, f"{short}.local"} if short else ())


class Hosts:
    """The names that a Host header may have."""

    def __init__(self, bound_to: str) -> None:
        """`bound_to` is the listening socket's address."""
        self._own = LOCAL_NAMES | {bound_to}
        self._machine = machine_names(os.uname().nodename)
        self.is_loopback = ipaddress.ip_address(bound_to.partition("%")[0]).is_loopback
        self.allow(())

    def allow(self, names: Sequence[str]) -> None:
        """Answer to these names and our own; `*`: to all. Without any, a server on loopback
        answers to its own names, and any other server to all.
        """
        allowed = frozenset(name.lower() for name in names)
        self._all = ANY in allowed or not (self.is_loopback or allowed)
        self._names = self._own | allowed - {ANY}

    def is_sure(self, host: str) -> bool:
        """Whether no stranger can make this name point here: it is an address, this machine's own
        name, or a configured one.
        """
        name = _name(host)
        return name in self._names or name in self._machine or _is_address(name)

    def check(self, host: str | None) -> None:
        """Raise ApiError 403 for a name that is not ours. Browsers always send one; a request
        without (HTTP/1.0 has no Host) is from no web page.
        """
        if self._all or host is None:
            return
        if _name(host) not in self._names:
            raise ApiError(
                403,
                "this host name is not in server.allowed_hosts",
                code="host_not_allowed",
            )


def _name(host: str) -> str:
    """`host` without port and brackets, in lower case."""
    name, colon, port = host.strip().rpartition(":")
    if not colon or not port.isdigit():
        name = host.strip()
    return name.lower().removeprefix("[").removesuffix("]").removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
