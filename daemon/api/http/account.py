"""The account of an API key: its quotas, and its running answers."""

import time
from collections.abc import Callable
from typing import Protocol

from daemon.api.http.bucket import Bucket
from daemon.api.replies.errors import ApiError, invalid
from daemon.config.schema import KeyConfig
from daemon.cost.finish_rate import FinishRate
from daemon.memory.hashing import salt_digest

ONE_TOKEN = 1.0
"""The least that must be left of a token quota; a longer request runs into debt."""


class Spending(Protocol):
    """A request whose tokens are charged while it runs."""

    @property
    def num_generated(self) -> int:
        """Output tokens so far."""


class Account:
    """The quotas of one key and what counts against them. `clock` gives monotonic seconds."""

    def __init__(self, key: KeyConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.key = key
        self.salt = b""
        self._clock = clock
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self._running: dict[Lease, None] = {}
        self._num_running = 0
        self._finish_rate = FinishRate()
        self.change(key)

    @property
    def num_running(self) -> int:
        """Running answers."""
        return self._num_running

    def change(self, key: KeyConfig) -> None:
        """Take a changed section of the key: new limits, with what was used still used."""
        now = self._clock()
        self.key = key
        self.salt = salt_digest(key.salt or key.name)
        self._requests = _changed(self._requests, key.requests_per_minute, now)
        self._tokens = _changed(self._tokens, key.tokens_per_minute, now)

    def charge_request(self) -> None:
        """Charge a new request. Raises ApiError 429, at no charge, while a quota is used up."""
        now = self._clock()
        if self._tokens is not None:
            self._settle(now)
            wait_s = self._tokens.wait_s(ONE_TOKEN, now)
            if wait_s:
                raise self._exceeded(f"{self.key.tokens_per_minute} tokens", wait_s)
        if self._requests is not None:
            wait_s = self._requests.wait_s(1.0, now)
            if wait_s:
                raise self._exceeded(f"{self.key.requests_per_minute} requests", wait_s)
            self._requests.charge(1.0, now)

    def priority(self, requested: int | None) -> int:
        """The priority of a request, given the one it asks for: never better than the key's."""
        return self.key.priority if requested is None else max(requested, self.key.priority)

    def begin(self, num_answers: int, num_prompt_tokens: int, spending: Spending) -> "Lease":
        """Begin answers; the lease must be ended with them. Raises ApiError: 429 where the key has
        too many running answers, 400 where it may never have that many.
        """
        most = self.key.max_running
        if most and num_answers > most:
            raise invalid(f"this key may have {most} answers under way, not {num_answers}", "n")
        now = self._clock()
        if not self._num_running:
            self._finish_rate.resume(now)
        excess = self._num_running + num_answers - most
        if most and excess > 0:
            message = f"this key has {self._num_running} of {most} answers under way"
            wait_s = self._finish_rate.wait_s(excess)
            raise ApiError(429, message, code="too_many_running", retry_after_s=max(1.0, wait_s))
        lease = Lease(self, num_answers, spending)
        self._running[lease] = None
        self._num_running += num_answers
        if self._tokens is not None:
            self._tokens.charge(num_prompt_tokens, now)
        return lease

    def end(self, lease: "Lease") -> None:
        """End a lease's answers; called by the lease."""
        if lease not in self._running:
            return
        now = self._clock()
        del self._running[lease]
        self._num_running -= lease.num_answers
        self._finish_rate.observe(now, lease.num_answers)
        if self._tokens is not None:
            self._tokens.charge(lease.unpaid(), now)

    def _settle(self, now: float) -> None:
        """Charge the tokens that running answers have generated since the last charge."""
        if self._tokens is not None:
            self._tokens.charge(sum(lease.unpaid() for lease in self._running), now)

    def _exceeded(self, quota: str, wait_s: float) -> ApiError:
        message = f"this key's quota of {quota} a minute is used up"
        return ApiError(429, message, code="quota_exceeded", retry_after_s=wait_s)


class Lease:
    """A request's share of its key's running answers."""

    def __init__(self, account: Account, num_answers: int, spending: Spending) -> None:
        self.num_answers = num_answers
        self._account = account
        self._spending = spending
        self._num_paid = 0

    def unpaid(self) -> int:
        """Output tokens since the last call."""
        num_generated = self._spending.num_generated
        unpaid, self._num_paid = num_generated - self._num_paid, num_generated
        return unpaid

    def end(self) -> None:
        """End its answers; a second call does nothing."""
        self._account.end(self)


def _changed(bucket: Bucket | None, per_minute: int, now: float) -> Bucket | None:
    if not per_minute:
        return None
    if bucket is None:
        return Bucket(per_minute, now)
    bucket.set_rate(per_minute, now)
    return bucket
