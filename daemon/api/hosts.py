"""Which names this server answers to.

A web page can have its own name point to this machine's loopback, and then speak to llmd as if it
came from there (DNS rebinding). Its requests still name the page's host, and are refused for that.
"""

import ipaddress
import os
from collections.abc import Sequence

from daemon.api.errors import ApiError

ANY = "*"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def machine_names(node: str) -> frozenset[str]:
    """What its own network calls a machine of this node name: no stranger's name points there."""
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
        """Answer to these names and our own; `*`: to all. Without any, a server on loopback answers
        to its own, and one that others are meant to reach to all.
        """
        allowed = frozenset(name.lower() for name in names)
        self._all = ANY in allowed or not (self.is_loopback or allowed)
        self._names = self._own | allowed - {ANY}

    def is_sure(self, host: str) -> bool:
        """Whether nobody can have this name point here but who is meant to: it is an address, this
        machine's own name, or one that is configured.
        """
        name = _name(host)
        return name in self._names or name in self._machine or _is_address(name)

    def check(self, host: str | None) -> None:
        """Raises ApiError 403 for a name that is not ours. Browsers always send one; who sends
        none (HTTP/1.0 knows no Host) is no web page.
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
    """`host` without its port and brackets, in small letters."""
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
