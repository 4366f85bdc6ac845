"""Whether the process at the other end of a channel hears: asked by its parent now and then."""

import msgspec


class Ping(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Answer `Alive` at once, from where all other messages are read."""


class Alive(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to one `Ping`."""

    settled: bool = True  # nothing is being loaded that could keep it from answering for seconds
