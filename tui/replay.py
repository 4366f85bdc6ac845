"""Plays a recording, at the recorded or another speed, from any place."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import AsyncGenerator

from daemon.control.client import Message
from daemon.protocol.control import Closer, Snapshot
from tui.recording import Recording
from tui.source import Rewound

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
HISTORY_S = 240.0
"""Seconds before a jump's target that are read for the charts."""


class Replay:
    """A source whose time a person controls."""

    def __init__(self, recording: Recording) -> None:
        self.paused = False
        self.speed = 1.0
        self._recording = recording
        self._next = 0  # the message that comes next
        self._at_s = 0.0  # the place in the recording, as of `_since_s`
        self._since_s = time.monotonic()
        self._jumped = False
        self._changed = asyncio.Event()

    @property
    def end_s(self) -> float:
        """The time of the last message."""
        return self._recording.time_s(len(self._recording) - 1)

    @property
    def cut_off(self) -> bool:
        """Whether the recording ends in the middle of a message."""
        return self._recording.cut_off

    @property
    def at_s(self) -> float:
        """The current place in the recording."""
        moved_s = 0.0 if self.paused else (time.monotonic() - self._since_s) * self.speed
        return min(self.end_s, self._at_s + moved_s)

    def ask(self, question: Closer) -> None:
        """Do nothing: a recording has only the answers to its own viewer's questions."""

    def toggle(self) -> None:
        """Stop the time, or continue it."""
        self._settle()
        self.paused = not self.paused

    def faster(self, steps: int) -> None:
        """Go up or down by `steps` speeds."""
        self._settle()
        place = SPEEDS.index(self.speed) + steps
        self.speed = SPEEDS[max(0, min(place, len(SPEEDS) - 1))]

    def seek(self, by_s: float) -> None:
        """Jump by `by_s` seconds."""
        self._settle()
        self._at_s = max(0.0, min(self._at_s + by_s, self.end_s))
        self._jumped = True

    def _settle(self) -> None:
        """Account for the time so far at the old speed."""
        self._at_s, self._since_s = self.at_s, time.monotonic()
        self._changed.set()

    async def news(self) -> AsyncGenerator[Message | Rewound, None]:
        """Each message when its time has come; after a jump the history, then the newest."""
        while True:
            if self._jumped:
                self._jumped = False
                yield self._rewind()
            due_s = self._due_s()
            if due_s <= 0:
                self._next += 1
                yield self._recording.message(self._next - 1)
                continue
            self._changed.clear()
            try:
                async with asyncio.timeout(None if due_s == float("inf") else due_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _due_s(self) -> float:
        """Seconds until the next message; infinite where there is none or time is stopped."""
        if self._next >= len(self._recording):
            return float("inf")
        left_s = self._recording.time_s(self._next) - self.at_s
        if left_s <= 0:
            return 0.0
        return float("inf") if self.paused else left_s / self.speed

    def _rewind(self) -> Rewound:
        """Go to the first message of the newest snapshot at `at_s`; return the history
        before it.
        """
        recording, at_s = self._recording, self.at_s
        last = max(0, bisect_right(range(len(recording)), at_s, key=recording.time_s) - 1)
        while last > 0 and not isinstance(recording.message(last), Snapshot):
            last -= 1
        self._next = last
        before: list[Snapshot] = []
        first = bisect_right(range(len(recording)), at_s - HISTORY_S, key=recording.time_s)
        for number in range(first, last):
            message = recording.message(number)
            if isinstance(message, Snapshot):
                before.append(message)
        return Rewound(tuple(before))
