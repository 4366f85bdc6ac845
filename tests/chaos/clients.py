"""Clients that ask without a pause, some leaving early, and compare every answer.

What breaks because the API process was ended must have been right as far as it came, and is asked
again until it is whole.
"""

import asyncio
import random
import time
from collections import Counter

import aiohttp

from tests.chaos.answers import Answer, RefusedError, ToldError, ask
from tests.chaos.cases import Case

RETRY_S = 0.05
FELT_S = 1.0
PATIENCE_S = 120.0
"""An answer that takes longer never comes."""
BUSY = (429, 503)
ENDS = ("not_ready", "aborted")
"""Errors that a stream may report when the daemon ends under it."""


class Outages:
    """When the API process was ended on purpose: streams may break then, and at no other time."""

    def __init__(self) -> None:
        self._ends_s: list[float] = []

    def begin(self) -> None:
        """It is ended now."""
        self._ends_s.append(float("inf"))

    def end(self) -> None:
        """It is gone; who was connecting meanwhile may still find out."""
        self._ends_s[-1] = time.monotonic() + FELT_S

    def excuse(self, since_s: float) -> bool:
        """Whether a stream that began then may break."""
        return any(end_s > since_s for end_s in self._ends_s)


class Tally:
    """The answers and errors that all clients of a run have seen."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.longest_gap_s = 0.0


async def undisturbed(
    url: str, cases: list[Case], at_once: int, streamed: bool = True
) -> list[Answer]:
    """Each case's answer, whole; where it is `streamed` too, that must say the same."""
    gate = asyncio.Semaphore(at_once)

    async def one(session: aiohttp.ClientSession, case: Case) -> Answer:
        async with gate:
            whole = await ask(session, case, False, Answer(), lambda: None)
            pieces = await ask(session, case, True, Answer(), lambda: None) if streamed else whole
        assert pieces == whole, f"{case}: {pieces} is not {whole}"
        return whole

    async with aiohttp.ClientSession(url) as session:
        return await asyncio.gather(*(one(session, case) for case in cases))


class Clients:
    """Run clients of one daemon until they are stopped."""

    def __init__(
        self,
        url: str,
        expected: list[tuple[Case, Answer]],
        seed: int,
    ) -> None:
        self.tally = Tally()
        self.outages = Outages()
        self.going = True
        self.open: set[int] = set()  # the answers under way, by number
        self._url = url
        self._expected = expected
        self._chance = random.Random(seed)
        self._number = 0

    async def live(self) -> None:
        """One client's life: each of its connections is a new one."""
        while self.going:
            case, whole = self._chance.choice(self._expected)
            stream = self._chance.random() < 0.7
            leaves_s = self._chance.choice([0.0, 0.05, 0.3]) if self._chance.random() < 0.1 else -1
            self._number += 1
            number = self._number
            self.open.add(number)
            try:
                if leaves_s >= 0:
                    await self._leave(case, stream, leaves_s)
                else:
                    await self._insist(case, whole, stream)
            finally:
                self.open.discard(number)

    async def _leave(self, case: Case, stream: bool, after_s: float) -> None:
        """Ask, and be gone before the answer is."""
        try:
            async with asyncio.timeout(after_s), self._session() as session:
                await ask(session, case, stream, Answer(), lambda: None)
        except TimeoutError:
            self.tally.seen["left"] += 1
        except (aiohttp.ClientError, RefusedError, ToldError):
            self.tally.seen["left, unanswered"] += 1

    async def _insist(self, case: Case, whole: Answer, stream: bool) -> None:
        """Ask until the answer is whole; it must be the right one."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not await self._once(case, whole, stream):
            if time.monotonic() > deadline_s:
                self.tally.wrong.append(f"{case.kind}: no answer in {PATIENCE_S} s")
                return
            await asyncio.sleep(RETRY_S)
        self.tally.seen["streamed" if stream else "whole"] += 1
        self.tally.kinds[case.kind] += 1

    async def _once(self, case: Case, whole: Answer, stream: bool) -> bool:
        """Ask once; whether the answer came to its end."""
        so_far, began_s = Answer(), time.monotonic()
        last_s = began_s

        def heard() -> None:
            nonlocal last_s
            now = time.monotonic()
            self.tally.longest_gap_s = max(self.tally.longest_gap_s, now - last_s)
            last_s = now

        try:
            async with asyncio.timeout(PATIENCE_S), self._session() as session:
                got = await ask(session, case, stream, so_far, heard)
        except RefusedError as error:
            if error.status not in BUSY:
                self.tally.wrong.append(f"{case.kind}: {error}")
            self.tally.seen[f"refused with {error.status}"] += 1
            return error.status not in BUSY
        except (aiohttp.ClientError, ToldError) as error:
            if isinstance(error, ToldError) and error.code not in ENDS:
                self.tally.wrong.append(f"{case.kind}: {error}")
            return self._broken(case, whole, so_far, began_s, error)
        except (AssertionError, TimeoutError) as error:
            self.tally.wrong.append(f"{case.kind}: {error!r}")
            return True
        if got != whole:
            self.tally.wrong.append(f"{case}: {got} is not {whole}")
        return True

    def _broken(
        self, case: Case, whole: Answer, so_far: Answer, began_s: float, error: Exception
    ) -> bool:
        """A stream broke: only the API process's end excuses that, and nothing else."""
        self.tally.seen["broken off"] += 1
        if not self.outages.excuse(began_s):
            self.tally.wrong.append(f"{case.kind}: broken off by nobody: {error!r}")
        if not so_far.begins(whole):
            self.tally.wrong.append(f"{case}: {so_far} is no beginning of {whole}")
        return False

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(self._url, connector=aiohttp.TCPConnector(force_close=True))
