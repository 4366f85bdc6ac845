"""Pings over a channel: the parent asks now and then whether the other process still reads."""

import msgspec


class Ping(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A question; `Alive` answers it at once, from the loop that reads all other messages."""


class Alive(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to one `Ping`."""

    settled: bool = True  # no load under way could delay answers by seconds
