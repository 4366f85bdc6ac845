"""Rates from successive snapshots: pure differences of counters over the daemon's own clock."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from daemon.protocol.control import Counters, Due, InstanceStatus, Snapshot
from tui.format import share

HISTORY_LENGTH = 600
SERIES_INTERVAL_S = 0.95  # a little under a second, so that two half seconds make one value
RATE_WINDOW_S = 3.0
LATENCY_WINDOW_S = 30.0
DEADLINES_WINDOW_S = 120.0


@dataclass(frozen=True)
class Swapped:
    """The traffic of one instance's swap link since its start."""

    out_bytes: int
    in_bytes: int
    busy_s: float


@dataclass(frozen=True)
class _Gauges:
    """The state of one instance."""

    step_s: float | None  # None before its first step
    running: int
    kv_used: float  # share of its pool


@dataclass(frozen=True)
class Moment:
    """The figures of one snapshot that rates are computed from."""

    pid: int
    time_s: float
    counters: Counters
    swapped: tuple[Swapped, ...] = ()  # by instance
    waiting: int = 0
    gauges: tuple[_Gauges, ...] = ()  # by instance


@dataclass(frozen=True)
class Rates:
    """Means between two moments; None where there is nothing to average."""

    output_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None  # of answers that ended
    pause_s: float | None = None  # of pauses that ended


@dataclass(frozen=True)
class LinkRates:
    """One swap link between two moments; None where there is no second moment."""

    busy: float | None = None  # share of the time; both directions count, so up to 2
    out_bytes_per_s: float | None = None
    in_bytes_per_s: float | None = None


@dataclass(frozen=True)
class _Point:
    """The values of all series for one second."""

    rates: Rates
    waiting: int
    gauges: tuple[_Gauges, ...]
    links: tuple[LinkRates, ...]


def swapped_by(instances: Iterable[InstanceStatus]) -> tuple[Swapped, ...]:
    """The traffic of each instance's swap link so far."""
    return tuple(
        Swapped(i.out_blocks * i.kv_block_bytes, i.in_blocks * i.kv_block_bytes, i.link_s)
        for i in instances
    )


def moment_of(snapshot: Snapshot) -> Moment:
    """The figures of a snapshot."""
    gauges = tuple(
        _Gauges(
            i.step_s if i.steps else None,
            i.running,
            share(i.kv_held + i.kv_fenced, i.kv_blocks),
        )
        for i in snapshot.instances
    )
    swapped = swapped_by(snapshot.instances)
    time_s, counters = snapshot.time_s, snapshot.counters
    return Moment(snapshot.pid, time_s, counters, swapped, snapshot.waiting, gauges)


def link_rates_between(old: Moment, new: Moment) -> list[LinkRates]:
    """The links' rates from `old` to `new`, one per instance; a new worker counts from 0."""
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


def paused(counters: Counters) -> tuple[int, float]:
    """The number of pauses since the start, and their total seconds."""
    return sum(pauses.count for pauses in counters.pauses), sum(
        pauses.sum_s for pauses in counters.pauses
    )


def drafted(counters: Counters) -> tuple[float, float]:
    """The share of drafted tokens that were accepted, and a sequence's tokens per step in which it
    drafted; since the start.
    """
    accepted = share(counters.accepted_tokens, counters.draft_tokens)
    return accepted, 1.0 + share(counters.accepted_tokens, counters.drafts)


def rates_between(old: Moment, new: Moment) -> Rates:
    """The rates from `old` to `new`; empty if the daemon was restarted or no time passed."""
    elapsed_s = new.time_s - old.time_s
    if old.pid != new.pid or elapsed_s <= 0:
        return Rates()
    before, after = old.counters, new.counters
    firsts = after.ttft_count - before.ttft_count
    ends = after.tpot_count - before.tpot_count
    paused_before, paused_s_before = paused(before)
    pauses, paused_s = paused(after)
    pauses -= paused_before
    return Rates(
        output_tokens_per_s=max(0.0, (after.output_tokens - before.output_tokens) / elapsed_s),
        prompt_tokens_per_s=max(0.0, (after.prompt_tokens - before.prompt_tokens) / elapsed_s),
        ttft_s=(after.ttft_sum_s - before.ttft_sum_s) / firsts if firsts > 0 else None,
        tpot_s=(after.tpot_sum_s - before.tpot_sum_s) / ends if ends > 0 else None,
        pause_s=(paused_s - paused_s_before) / pauses if pauses > 0 else None,
    )


def due_between(old: Moment, new: Moment) -> dict[float, Due]:
    """The deadlines kept and missed from `old` to `new`, by SLO scale."""
    before = {due.scale: due for due in old.counters.due}
    found = {}
    for due in new.counters.due:
        known = before.get(due.scale) or Due(due.scale)
        kept, missed = due.kept - known.kept, due.missed - known.missed
        if kept < 0 or missed < 0:  # the daemon dropped it and counts anew
            kept, missed = due.kept, due.missed
        found[due.scale] = Due(due.scale, kept, missed)
    return found


class History:
    """The series behind the charts, newest last, and the smoothed rates of the header."""

    def __init__(self) -> None:
        self.points: deque[_Point] = deque(maxlen=HISTORY_LENGTH)
        self._moments: deque[Moment] = deque(maxlen=HISTORY_LENGTH)
        self._drawn: Moment | None = None  # the beginning of the next value of the series

    def clear(self) -> None:
        """Clear the series."""
        self.points.clear()
        self._moments.clear()
        self._drawn = None

    def add(self, snapshot: Snapshot) -> None:
        """Add the next snapshot; one of the same time as the last adds nothing."""
        moment = moment_of(snapshot)
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
            rates = rates_between(self._drawn, moment)
            links = tuple(link_rates_between(self._drawn, moment))
            self.points.append(_Point(rates, moment.waiting, moment.gauges, links))
            self._drawn = moment

    def output(self) -> list[float | None]:
        """Output tokens per second, one value a second."""
        return [point.rates.output_tokens_per_s for point in self.points]

    def ttft(self) -> list[float | None]:
        """Mean TTFT in seconds of each second; None where no first token came."""
        return [point.rates.ttft_s for point in self.points]

    def tpot(self) -> list[float | None]:
        """Mean TPOT in seconds of the answers that ended in each second."""
        return [point.rates.tpot_s for point in self.points]

    def waiting(self) -> list[float | None]:
        """Sequences that waited at the end of each second."""
        return [float(point.waiting) for point in self.points]

    def gauges(self, instance: int) -> list[_Gauges]:
        """An instance's state at the end of each second, while it existed."""
        return [p.gauges[instance] for p in self.points if instance < len(p.gauges)]

    def busy(self, instance: int) -> list[float | None]:
        """The share of each second in which an instance's swap link was busy."""
        return [p.links[instance].busy for p in self.points if instance < len(p.links)]

    def now(self) -> Rates:
        """Tokens per second over the last seconds, and latencies over the last half minute."""
        if not self._moments:
            return Rates()
        recent = rates_between(*self._span(RATE_WINDOW_S))
        long = rates_between(*self._span(LATENCY_WINDOW_S))
        return Rates(
            recent.output_tokens_per_s,
            recent.prompt_tokens_per_s,
            long.ttft_s,
            long.tpot_s,
            long.pause_s,
        )

    def links(self) -> list[LinkRates]:
        """Each instance's swap link over the last seconds."""
        return link_rates_between(*self._span(RATE_WINDOW_S)) if self._moments else []

    def deadlines(self) -> dict[float, Due]:
        """The deadlines kept and missed over the last two minutes, by SLO scale."""
        return due_between(*self._span(DEADLINES_WINDOW_S)) if self._moments else {}

    def _span(self, window_s: float) -> tuple[Moment, Moment]:
        """The newest moment, and the oldest within `window_s` of it or else the previous one."""
        newest = self._moments[-1]
        oldest = newest
        for moment in reversed(self._moments):
            if newest.time_s - moment.time_s > window_s:
                break
            oldest = moment
        if oldest is newest and len(self._moments) > 1:
            oldest = self._moments[-2]
        return oldest, newest
