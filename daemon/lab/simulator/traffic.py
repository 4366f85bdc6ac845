"""A run's requests as the Core's events see them: arrivals with counts and block hashes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from daemon.core.events import RequestArrived
from daemon.lab.report.records import RequestLog
from daemon.lab.workload.workload import Workload
from daemon.memory.hashing import chain_hashes
from daemon.predict.prediction import Asked
from daemon.wire.columns import Int32, UInt8


@dataclass(frozen=True)
class Traffic:
    """N requests, numbered in order of arrival. `answers` is for the workers alone: nothing tells
    the Core how long an answer will be, save its limit.
    """

    arrival_s: list[float]  # when the client sends
    prompts: list[int]  # tokens
    answers: list[int]  # true output tokens
    limits: list[int]  # max_tokens
    priorities: list[int]
    prompt_costs: list[int]  # of one of their tokens
    slo_class: UInt8  # [N]
    hashes: Callable[[int], bytes]  # of a request's full prompt blocks
    request_s: float = 0.0  # from the client's send to the Core

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def first_s(self) -> float:
        """When the first client sends."""
        return self.arrival_s[0] if self.arrival_s else 0.0

    @property
    def stops_at(self) -> Int32:
        """Length of each sequence when its last token is drawn: int32 [N]."""
        return np.array(self.prompts, np.int32) + np.array(self.answers, np.int32) - 1

    def core_s(self, request: int) -> float:
        """When a request reaches the Core."""
        return self.arrival_s[request] + self.request_s

    def event(self, request: int) -> RequestArrived:
        """Its arrival."""
        return RequestArrived(
            self.core_s(request),
            request,
            self.prompts[request],
            self.limits[request],
            priority=self.priorities[request],
            hashes=self.hashes(request),
            prompt_cost=self.prompt_costs[request],
        )

    def asked(self, request: int, chance: float = 0.0, guess: float = 0.0) -> Asked:
        """It as a predictor sees it; `chance` is a draw for those that err as they declare, `guess`
        what one made of it before.
        """
        return Asked(
            self.prompts[request],
            self.limits[request],
            truth=self.answers[request],
            chance=chance,
            guess=guess,
        )

    def log(self) -> RequestLog:
        """A log of these requests, to which nothing has happened yet."""
        log = RequestLog.empty(len(self))
        log.arrival_s = np.array(self.arrival_s)
        log.prompt_tokens = np.array(self.prompts, np.int32)
        log.asked_tokens = np.array(self.answers, np.int32)
        log.slo_class = self.slo_class
        return log


def traffic_of(
    workload: Workload,
    max_len: int,
    block_size: int,
    request_s: float = 0.0,
    exact_max_tokens: bool = False,
) -> Traffic:
    """A workload's requests; each may fill the model's context of `max_len` tokens, unless
    `exact_max_tokens` says that clients ask for no more than they get.
    """
    prompts: list[int] = workload.prompt_tokens.tolist()
    answers: list[int] = workload.output_tokens.tolist()
    priorities = [one.priority for one in workload.classes]
    # A trace's ids may be of any size and sign; what is hashed is their order of appearance.
    numbers: dict[int, int] = {}
    for prefix in workload.prefixes:
        for one in prefix:
            numbers.setdefault(one, len(numbers))

    def hashes(request: int) -> bytes:
        """Equal leading ids of the trace make equal blocks; the rest is the request's own."""
        if not workload.prefixes:
            return b""
        size, prompt = workload.prefix_block, prompts[request]
        known = [numbers[one] for one in workload.prefixes[request]]
        ids = np.repeat(np.array(known, np.int64), size)[:prompt]
        own = np.full(prompt - ids.size, -1 - request, np.int64)
        return chain_hashes(np.concatenate([ids, own]).tolist(), block_size)

    return Traffic(
        arrival_s=workload.arrival_s.tolist(),
        prompts=prompts,
        answers=answers,
        limits=answers if exact_max_tokens else [max_len - prompt for prompt in prompts],
        priorities=[priorities[index] for index in workload.slo_class.tolist()],
        prompt_costs=[1] * len(prompts),
        slo_class=workload.slo_class,
        hashes=hashes,
        request_s=request_s,
    )
