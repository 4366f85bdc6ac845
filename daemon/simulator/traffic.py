"""A workload as the Core's events see it: arrivals with counts and block hashes."""

import numpy as np

from daemon.core.events import RequestArrived
from daemon.memory.hashing import chain_hashes
from daemon.report.records import RequestLog
from daemon.wire.columns import Int32
from daemon.workload.workload import Workload


class Traffic:
    """The requests of one run, numbered in order of arrival.

    A client's request reaches the Core `request_s` after it was sent. Nothing tells the Core how
    long an answer will be: each may fill the model's context.
    """

    def __init__(
        self, workload: Workload, max_len: int, block_size: int, request_s: float = 0.0
    ) -> None:
        self._workload = workload
        self._max_len = max_len
        self._block_size = block_size
        self._request_s = request_s
        self._arrival_s: list[float] = workload.arrival_s.tolist()
        self._prompts: list[int] = workload.prompt_tokens.tolist()
        self._priorities = [one.priority for one in workload.classes]
        self.answers: list[int] = workload.output_tokens.tolist()
        self.stops_at: Int32 = workload.prompt_tokens + workload.output_tokens - 1

    def __len__(self) -> int:
        return len(self._arrival_s)

    @property
    def first_s(self) -> float:
        """When the first client sends."""
        return self._arrival_s[0] if self._arrival_s else 0.0

    def core_s(self, request: int) -> float:
        """When a request reaches the Core."""
        return self._arrival_s[request] + self._request_s

    def prompt(self, request: int) -> int:
        """Its prompt's tokens."""
        return self._prompts[request]

    def event(self, request: int) -> RequestArrived:
        """Its arrival."""
        prompt = self._prompts[request]
        return RequestArrived(
            self.core_s(request),
            request,
            prompt,
            self._max_len - prompt,
            priority=self._priorities[self._workload.slo_class[request]],
            hashes=self._hashes(request, prompt),
        )

    def log(self) -> RequestLog:
        """A log of these requests, to which nothing has happened yet."""
        workload = self._workload
        log = RequestLog.empty(len(self))
        log.arrival_s = workload.arrival_s - self.first_s
        log.prompt_tokens = workload.prompt_tokens
        log.asked_tokens = workload.output_tokens
        log.slo_class = workload.slo_class
        return log

    def _hashes(self, request: int, prompt: int) -> bytes:
        """Hashes of its full blocks: equal leading ids of the trace make equal ones."""
        if not self._workload.prefixes:
            return b""
        size = self._workload.prefix_block
        ids = np.repeat(np.array(self._workload.prefixes[request], np.int64), size)[:prompt]
        own = np.full(prompt - ids.size, -1 - request, np.int64)
        return chain_hashes(np.concatenate([ids, own]).tolist(), self._block_size)
