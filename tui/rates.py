"""Rates from successive snapshots: pure differences of counters over the daemon's own clock."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from daemon.control.protocol import Counters, InstanceStatus, Snapshot

HISTORY_LENGTH = 600
SERIES_INTERVAL_S = 0.95  # a little under a second, so that two half seconds make one value
RATE_WINDOW_S = 3.0
TTFT_WINDOW_S = 30.0


@dataclass(frozen=True)
class Swapped:
    """What went over one instance's swap link since its start."""

    out_bytes: int
    in_bytes: int
    busy_s: float


@dataclass(frozen=True)
class Moment:
    """What rates are made of, at one snapshot."""

    pid: int
    time_s: float
    counters: Counters
    swapped: tuple[Swapped, ...] = ()  # by instance


@dataclass(frozen=True)
class Rates:
    """Means between two moments; None where nothing happened that could be averaged."""

    output_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    ttft_s: float | None = None


@dataclass(frozen=True)
class LinkRates:
    """One swap link between two moments; None where there is no second moment."""

    busy: float | None = None  # share of the time; both ways count, so up to 2 where they overlap
    out_bytes_per_s: float | None = None
    in_bytes_per_s: float | None = None


def swapped_by(instances: Iterable[InstanceStatus]) -> tuple[Swapped, ...]:
    """What each instance has swapped so far."""
    return tuple(
        Swapped(i.out_blocks * i.kv_block_bytes, i.in_blocks * i.kv_block_bytes, i.link_s)
        for i in instances
    )


def link_rates_between(old: Moment, new: Moment) -> list[LinkRates]:
    """The links' rates from `old` to `new`, an entry an instance; a new worker counts from 0."""
    elapsed_s = new.time_s - old.time_s
    if old.pid != new.pid or elapsed_s <= 0 or len(old.swapped) != len(new.swapped):
        return [LinkRates()] * len(new.swapped)
    return [
        LinkRates(
            busy=max(0.0, (after.busy_s - before.busy_s) / elapsed_s),
            out_bytes_per_s=max(0.0, (after.out_bytes - before.out_bytes) / elapsed_s),
            in_bytes_per_s=max(0.0, (after.in_bytes - before.in_bytes) / elapsed_s),
        )
        for before, after in zip(old.swapped, new.swapped, strict=True)
    ]


def rates_between(old: Moment, new: Moment) -> Rates:
    """The rates from `old` to `new`; empty if the daemon was restarted or no time went by."""
    elapsed_s = new.time_s - old.time_s
    if old.pid != new.pid or elapsed_s <= 0:
        return Rates()
    before, after = old.counters, new.counters
    first_tokens = after.ttft_count - before.ttft_count
    return Rates(
        output_tokens_per_s=max(0.0, (after.output_tokens - before.output_tokens) / elapsed_s),
        prompt_tokens_per_s=max(0.0, (after.prompt_tokens - before.prompt_tokens) / elapsed_s),
        ttft_s=(after.ttft_sum_s - before.ttft_sum_s) / first_tokens if first_tokens > 0 else None,
    )


class History:
    """The series behind the charts, newest last, and the smoothed rates of the header."""

    def __init__(self) -> None:
        self.series: deque[Rates] = deque(maxlen=HISTORY_LENGTH)
        self._moments: deque[Moment] = deque(maxlen=HISTORY_LENGTH)
        self._drawn: Moment | None = None  # where the next value of the series begins

    def add(self, snapshot: Snapshot) -> None:
        """Take the next snapshot; one of the same time as the last adds nothing."""
        swapped = swapped_by(snapshot.instances)
        moment = Moment(snapshot.pid, snapshot.time_s, snapshot.counters, swapped)
        if self._moments:
            last = self._moments[-1]
            if last.pid != moment.pid:
                self._moments.clear()
                self._drawn = moment
            elif moment.time_s <= last.time_s:
                return
        self._moments.append(moment)
        if self._drawn is None:
            self._drawn = moment
        elif moment.time_s - self._drawn.time_s >= SERIES_INTERVAL_S:
            self.series.append(rates_between(self._drawn, moment))
            self._drawn = moment

    def output(self) -> list[float | None]:
        """Output tokens per second, one value a second."""
        return [rates.output_tokens_per_s for rates in self.series]

    def prompt(self) -> list[float | None]:
        """Prompt tokens per second that arrived, one value a second."""
        return [rates.prompt_tokens_per_s for rates in self.series]

    def ttft(self) -> list[float | None]:
        """Mean TTFT in seconds of each second; None where no first token came."""
        return [rates.ttft_s for rates in self.series]

    def now(self) -> Rates:
        """Tokens per second over the last seconds, and TTFT over the last half minute."""
        if not self._moments:
            return Rates()
        recent = rates_between(*self._span(RATE_WINDOW_S))
        long = rates_between(*self._span(TTFT_WINDOW_S))
        return Rates(recent.output_tokens_per_s, recent.prompt_tokens_per_s, long.ttft_s)

    def links(self) -> list[LinkRates]:
        """Each instance's swap link over the last seconds."""
        return link_rates_between(*self._span(RATE_WINDOW_S)) if self._moments else []

    def _span(self, window_s: float) -> tuple[Moment, Moment]:
        """The newest moment, and the oldest within `window_s` of it or else the last before."""
        newest = self._moments[-1]
        oldest = newest
        for moment in reversed(self._moments):
            if newest.time_s - moment.time_s > window_s:
                break
            oldest = moment
        if oldest is newest and len(self._moments) > 1:
            oldest = self._moments[-2]
        return oldest, newest
