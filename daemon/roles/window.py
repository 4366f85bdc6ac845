"""The observed load: counts in buckets of a few seconds, and changes of the load.

All since the last change is one load. It has changed where the newest half minute, or the newest
two minutes, differ from earlier by more than chance explains: the rate, the prompts and the answers
are tested each. Then everything earlier is forgotten.
"""

import math
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from daemon.roles.kaplan_meier import Answer, likely_answers
from daemon.roles.load import OfferedLoad

BUCKET_S = 5.0
RECENT = (6, 24)
"""Numbers of newest buckets whose sums are compared with all earlier ones."""
LEAST_BEFORE = 6
SURE = 4.5
"""Standard deviations that tell a change: chance alone reaches it once in weeks."""
LEAST_CHANGE = 0.15
"""A smaller part of a value is no change, however sure."""
LEAST_SAMPLES = 20
LEAST_ARRIVALS = 10
KEPT_SAMPLES = 256
KEPT_ANSWERS = 2048
"""More, since the answers that end first are short, and the newest are long for a while."""
LEAST_SETTLE_S, SETTLED = 60.0, 3.0
"""Time until answers of all lengths end: seconds, or a multiple of an answer's stay."""
SMOOTH = 0.02


class LoadBucket(msgspec.Struct, array_like=True):
    """The arrivals and ends of a span of time: counts, sums of lengths and of their squares."""

    span_s: float = 0.0
    requests: int = 0
    streams: int = 0  # answers that the requests want
    prompt_tokens: int = 0
    prompt_squares: int = 0
    ended: int = 0  # answers, once answers of all lengths end
    answer_tokens: int = 0
    answer_squares: int = 0

    def add(self, other: "LoadBucket") -> None:
        """Add the counts of another bucket."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class WindowState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a window."""

    since_s: float
    edge_s: float
    before: LoadBucket
    recent: list[LoadBucket]
    open: LoadBucket
    prompts: list[int]
    answers: list[Answer]
    own_ended: int
    stay_s: float


class LoadWindow:
    """Counts arrivals and ends; `since_s` is the present load's start, -1: no arrival yet."""

    def __init__(self) -> None:
        self.since_s = -1.0
        self._edge_s = 0.0  # time at which the open bucket is full
        self._before = LoadBucket()
        self._recent: deque[LoadBucket] = deque()
        self._open = LoadBucket()
        self._prompts: deque[int] = deque(maxlen=KEPT_SAMPLES)
        self._answers: deque[Answer] = deque(maxlen=KEPT_ANSWERS)
        self._own_ended = 0  # answers to requests of the present load
        self._stay_s = 0.0  # from an arrival to the end of the answer, smoothed

    @property
    def edge_s(self) -> float:
        """The time at which the open bucket is full."""
        return self._edge_s

    def arrived(self, now: float, num_prompt_tokens: int, num_streams: int) -> None:
        """Count a request."""
        if self.since_s < 0.0:
            self._begin(now)
        bucket = self._open
        bucket.requests += 1
        bucket.streams += num_streams
        bucket.prompt_tokens += num_prompt_tokens
        bucket.prompt_squares += num_prompt_tokens * num_prompt_tokens
        self._prompts.append(num_prompt_tokens)

    def ended(self, now: float, arrived_s: float, num_prompt_tokens: int, num_tokens: int) -> None:
        """Count an answer that ended; requests from before the present load are not of it."""
        if not num_tokens or self.since_s < 0.0:
            return
        stay_s = now - arrived_s
        self._stay_s += (SMOOTH if self._stay_s else 1.0) * (stay_s - self._stay_s)
        if now >= self.since_s + max(LEAST_SETTLE_S, SETTLED * self._stay_s):
            # The first to end are short: lengths are compared once that is over.
            self._open.ended += 1
            self._open.answer_tokens += num_tokens
            self._open.answer_squares += num_tokens * num_tokens
        if arrived_s >= self.since_s:
            self._own_ended += 1
            self._answers.append((num_prompt_tokens, num_tokens))

    def close(self, now: float) -> bool:
        """Close the buckets that are full; whether the load has changed."""
        changed = False
        while self.since_s >= 0.0 and self._edge_s <= now:
            self._open.span_s = BUCKET_S
            self._recent.append(self._open)
            self._open = LoadBucket()
            self._edge_s += BUCKET_S
            if self._changed():
                self._begin(self._edge_s - BUCKET_S)
                changed = True
            elif len(self._recent) > RECENT[-1]:
                self._before.add(self._recent.popleft())
            self._skip_rest(now)
        return changed

    @property
    def span_s(self) -> float:
        """The time for which the present load was observed, in full buckets."""
        return self._before.span_s + len(self._recent) * BUCKET_S

    @property
    def num_requests(self) -> int:
        """The number of requests in that time."""
        return self._before.requests + sum(bucket.requests for bucket in self._recent)

    def load(self, unended: Sequence[Answer], cached_share: float) -> OfferedLoad | None:
        """The present load; None before there is any. `unended` are answers of it that have not
        ended: early on only short ones have.
        """
        total = self._total()
        if not total.requests or not self._own_ended or total.span_s <= 0.0:
            return None
        each = self._own_ended / len(self._answers)
        answers, mean = likely_answers(self._answers, unended, KEPT_SAMPLES, each)
        return OfferedLoad(
            rate_rps=total.requests / total.span_s,
            prompts=tuple(self._prompts),
            answers=tuple(tokens for _, tokens in answers),
            answer_tokens=mean,
            answered=tuple(prompt for prompt, _ in answers),
            answers_per_request=total.streams / total.requests,
            cached_share=min(1.0, max(0.0, cached_share)),
        )

    def state(self) -> WindowState:
        """The state of this window."""
        return WindowState(
            since_s=self.since_s,
            edge_s=self._edge_s,
            before=msgspec.structs.replace(self._before),
            recent=[msgspec.structs.replace(bucket) for bucket in self._recent],
            open=msgspec.structs.replace(self._open),
            prompts=list(self._prompts),
            answers=list(self._answers),
            own_ended=self._own_ended,
            stay_s=self._stay_s,
        )

    @classmethod
    def restored(cls, state: WindowState) -> "LoadWindow":
        """The window with this state."""
        window = cls()
        window.since_s, window._edge_s = state.since_s, state.edge_s
        window._before = msgspec.structs.replace(state.before)
        window._recent.extend(msgspec.structs.replace(bucket) for bucket in state.recent)
        window._open = msgspec.structs.replace(state.open)
        window._prompts.extend(state.prompts)
        window._answers.extend(state.answers)
        window._own_ended = state.own_ended
        window._stay_s = state.stay_s
        return window

    def _begin(self, now: float) -> None:
        """Begin a new load."""
        self.since_s, self._edge_s = now, now + BUCKET_S
        self._before, self._open = LoadBucket(), LoadBucket()
        self._own_ended = 0
        for kept in (self._recent, self._prompts, self._answers):
            kept.clear()

    def _skip_rest(self, now: float) -> None:
        """Skip the rest of a long idle time."""
        idle = not any(bucket.requests or bucket.ended for bucket in self._recent)
        if idle and now - self._edge_s > RECENT[-1] * BUCKET_S:
            skipped_s = BUCKET_S * math.floor((now - self._edge_s) / BUCKET_S)
            self._before.span_s += skipped_s
            self._edge_s += skipped_s

    def _total(self) -> LoadBucket:
        total = msgspec.structs.replace(self._before)
        for bucket in self._recent:
            total.add(bucket)
        return total

    def _changed(self) -> bool:
        """Whether the newest buckets are of another load than earlier ones."""
        for count in RECENT:
            older = len(self._recent) - count
            if older < 0 or older * BUCKET_S + self._before.span_s < LEAST_BEFORE * BUCKET_S:
                continue
            before, newest = msgspec.structs.replace(self._before), LoadBucket()
            for index, bucket in enumerate(self._recent):
                (before if index < older else newest).add(bucket)
            if _rates_differ(before, newest, self._dispersion()) or _lengths_differ(before, newest):
                return True
        return False

    def _dispersion(self) -> float:
        """The variance of a bucket's requests over their mean, at least 1: bursts are no change. It
        is taken of neighbours' differences, which a change of the mean touches once.
        """
        counts = [bucket.requests for bucket in self._recent]
        mean = sum(counts) / len(counts)
        if len(counts) < 3 or mean <= 0.0:
            return 1.0
        steps = [(b - a) ** 2 for a, b in pairwise(counts)]
        return max(1.0, sum(steps) / (2.0 * len(steps)) / mean)


def _rates_differ(before: LoadBucket, newest: LoadBucket, dispersion: float) -> bool:
    """Whether requests arrive at another rate."""
    pooled = (before.requests + newest.requests) / (before.span_s + newest.span_s)
    expected = before.requests * newest.span_s / before.span_s
    if max(newest.requests, expected) < LEAST_ARRIVALS:
        return False
    gap = newest.requests / newest.span_s - before.requests / before.span_s
    variance = dispersion * pooled * (1.0 / before.span_s + 1.0 / newest.span_s)
    return abs(gap) > max(SURE * math.sqrt(variance), LEAST_CHANGE * pooled)


def _lengths_differ(before: LoadBucket, newest: LoadBucket) -> bool:
    """Whether prompts or answers have another mean length."""
    return _means_differ(
        (before.requests, before.prompt_tokens, before.prompt_squares),
        (newest.requests, newest.prompt_tokens, newest.prompt_squares),
    ) or _means_differ(
        (before.ended, before.answer_tokens, before.answer_squares),
        (newest.ended, newest.answer_tokens, newest.answer_squares),
    )


def _means_differ(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
    """Whether two means differ, each given as (count, sum, sum of squares). The variance is that of
    both together, as if nothing had changed: a few lengths without a long one have too small a mean
    and variance of their own. Lengths are as skew as exponential ones, so few samples stray far.
    """
    if a[0] < LEAST_SAMPLES or b[0] < LEAST_SAMPLES:
        return False
    means = [total / count for count, total, _ in (a, b)]
    spread = sum(
        max(0.0, squares - count * mean * mean)
        for (count, _, squares), mean in zip((a, b), means, strict=True)
    )
    deviation = math.sqrt(spread / (a[0] + b[0]))
    by_chance = SURE * deviation * math.sqrt(1.0 / a[0] + 1.0 / b[0])
    by_chance += (SURE * SURE - 1.0) / 3.0 * deviation / min(a[0], b[0])  # Cornish and Fisher's
    gap = abs(means[1] - means[0])
    return gap > max(by_chance, LEAST_CHANGE * means[0])
