"""One recorded life: its events, a chain of digests of the actions, and what was seen of the Core.

A link of the chain is a digest of the link before it and of the actions that answered one event, in
their exact bytes. So the first link that differs names the event at which two Cores part.
"""

import lzma
from hashlib import blake2b
from pathlib import Path

import msgspec

from daemon.core.core import Core
from daemon.core.values.actions import Action
from daemon.core.values.events import Configured, Event
from daemon.core.view.checkpoint import checkpoint
from daemon.core.view.view import snapshot
from daemon.wire.columns import decoder, encoder

PATH = Path(__file__).parent / "lives.xz"
LINK_BYTES = 4
"""Bytes kept of each digest in the chain, as in the file; the last one is kept whole."""
SEEN_EVERY = 16
"""A snapshot is part of what was seen after so many events."""

_encode = encoder().encode


class Life(msgspec.Struct, frozen=True, array_like=True):
    """One daemon from its configuration to its rest."""

    name: str
    config: Configured
    events: list[Event]
    links: bytes  # LINK_BYTES for each event
    digest: bytes  # the last link, whole
    seen: bytes  # digest of the snapshots, the stories and, of an idle Core, its checkpoint


class Chain:
    """The digests of what one Core does, while it does it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._seen = blake2b(digest_size=16)
        self._num_events = 0
        self.links = bytearray()
        self.digest = b""

    def add(self, event: Event, actions: list[Action]) -> bytes:
        """One more event and what answered it; its link, cut as in the file."""
        self.digest = blake2b(self.digest + _encode(actions), digest_size=16).digest()
        self.links += self.digest[:LINK_BYTES]
        if self._num_events % SEEN_EVERY == 0:
            self._seen.update(_encode(snapshot(self._core, event.now)))
        self._num_events += 1
        return self.digest[:LINK_BYTES]

    def seen(self, now: float) -> bytes:
        """The digest of what was seen until now."""
        total = self._seen.copy()
        for sequence in self._core.ended:
            total.update(_encode(list(sequence.story.marks)))
        if self._core.idle:
            total.update(_encode(checkpoint(self._core, now)))
        return total.digest()


def replay(life: Life) -> None:
    """Give a new Core the events of a life. Raises AssertionError where it does something else."""
    core = Core(life.config)
    chain = Chain(core)
    for number, event in enumerate(life.events):
        link = chain.add(event, core.handle(event))
        expected = life.links[number * LINK_BYTES : (number + 1) * LINK_BYTES]
        assert link == expected, f"{life.name}: event {number}, {type(event).__name__}, parts"
    assert chain.digest == life.digest, f"{life.name}: the last link differs"
    assert chain.seen(life.events[-1].now) == life.seen, f"{life.name}: seen otherwise"


def read(path: Path = PATH) -> list[Life]:
    """Every life of a file."""
    lives: list[Life] = decoder(list[Life]).decode(lzma.decompress(path.read_bytes()))
    return lives


def write(lives: list[Life], path: Path = PATH) -> int:
    """Write a file; its size in bytes."""
    packed = lzma.compress(_encode(lives), preset=9 | lzma.PRESET_EXTREME)
    path.write_bytes(packed)
    return len(packed)
