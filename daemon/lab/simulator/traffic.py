"""A run's requests as the Core's events show them: arrivals with counts and block hashes."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from daemon.core.values.events import RequestArrived
from daemon.lab.report.records import RequestLog
from daemon.lab.workload.workload import Workload
from daemon.length_models.prediction import Asked
from daemon.memory.hashing import chain_hashes
from daemon.state.request import MAX_SEQUENCES_PER_REQUEST, request_of
from daemon.wire.columns import Int32, UInt8

_ANSWERS = 1000  # random stream of answers; workloads use those from 0 on


@dataclass(frozen=True)
class Traffic:
    """N requests, numbered in order of arrival, with `n` answers each: N * n rows of a log.

    `answers` is for the workers alone: the Core does not know an answer's length, only its limit.
    """

    arrival_s: list[float]  # when the client sends
    prompts: list[int]  # tokens
    answers: list[int]  # true output tokens, [N * n]: those of a request follow each other
    limits: list[int]  # max_tokens
    priorities: list[int]
    prompt_costs: list[int]  # of one of their tokens
    deadline_s: list[float]  # when answers are due; 0: no deadline
    slo_scales: list[float]  # or due after their time alone, times this; 0: no deadline
    slo_class: UInt8  # [N]
    hashes: Callable[[int], bytes]  # of a request's full prompt blocks
    request_s: float = 0.0  # from the client's send to the Core
    n: int = 1

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def first_s(self) -> float:
        """The time at which the first client sends."""
        return self.arrival_s[0] if self.arrival_s else 0.0

    @property
    def stops_at(self) -> Int32:
        """Length of each sequence when its last token is sampled: int32 [N, n]."""
        answers = np.array(self.answers, np.int32).reshape(-1, self.n)
        return np.array(self.prompts, np.int32)[:, None] + answers - 1

    def rows(self, request: int) -> range:
        """A request's rows."""
        return range(request * self.n, (request + 1) * self.n)

    def row(self, sequence: int) -> int:
        """The row of an answer."""
        return request_of(sequence) * self.n + sequence % MAX_SEQUENCES_PER_REQUEST

    def core_s(self, request: int) -> float:
        """The time at which a request reaches the Core."""
        return self.arrival_s[request] + self.request_s

    def event(self, request: int) -> RequestArrived:
        """A request's arrival."""
        return RequestArrived(
            self.core_s(request),
            request,
            self.prompts[request],
            self.limits[request],
            self.n,
            priority=self.priorities[request],
            hashes=self.hashes(request),
            prompt_cost=self.prompt_costs[request],
            deadline_s=self.deadline_s[request],
            slo_scale=self.slo_scales[request],
        )

    def asked(self, request: int, chance: float = 0.0, guess: float = 0.0) -> Asked:
        """A request as a predictor sees it; `chance` is a random number for predictors with a
        declared error, `guess` an earlier prediction. Of several answers the mean is predicted.
        """
        answers = [self.answers[row] for row in self.rows(request)]
        return Asked(
            self.prompts[request],
            self.limits[request],
            truth=round(sum(answers) / self.n),
            chance=chance,
            guess=guess,
        )

    def log(self) -> RequestLog:
        """A log of these answers, in which nothing has happened yet."""
        log = RequestLog.empty(len(self.answers))
        log.arrival_s = np.repeat(np.array(self.arrival_s), self.n)
        log.prompt_tokens = np.repeat(np.array(self.prompts, np.int32), self.n)
        log.asked_tokens = np.array(self.answers, np.int32)
        log.slo_class = np.repeat(self.slo_class, self.n)
        return log


def traffic_of(
    workload: Workload,
    max_len: int,
    block_size: int,
    request_s: float = 0.0,
    exact_max_tokens: bool = False,
    n: int = 1,
    seed: int = 0,
    named: bool = False,
) -> Traffic:
    """The requests of a workload. Each may fill the model's context of `max_len` tokens, unless
    `exact_max_tokens` says that clients ask for exactly what they get. Of `n` answers the first is
    the workload's; the others are as long as randomly chosen ones of it, by `seed`. `named`:
    prompts have hashes even where no two of them share anything, since only named blocks are copied
    ahead.
    """
    prompts: list[int] = workload.prompt_tokens.tolist()
    answers = _answers(workload, max_len, n, seed)
    priorities = [slo_class.priority for slo_class in workload.classes]
    # A trace's ids may be of any size and sign; their order of appearance is hashed.
    numbers: dict[int, int] = {}
    for prefix in workload.prefixes:
        for block in prefix:
            numbers.setdefault(block, len(numbers))

    def hashes(request: int) -> bytes:
        """Equal leading ids of the trace make equal blocks; the rest is the request's own."""
        if not workload.prefixes and not named:
            return b""
        size, prompt = workload.prefix_block, prompts[request]
        known = (
            [numbers[block] for block in workload.prefixes[request]] if workload.prefixes else []
        )
        ids = np.repeat(np.array(known, np.int64), size)[:prompt]
        own = np.full(prompt - ids.size, -1 - request, np.int64)
        return chain_hashes(np.concatenate([ids, own]).tolist(), block_size)

    return Traffic(
        arrival_s=workload.arrival_s.tolist(),
        prompts=prompts,
        answers=answers.ravel().tolist(),
        limits=answers.max(axis=1).tolist()
        if exact_max_tokens
        else [max_len - prompt for prompt in prompts],
        priorities=[priorities[index] for index in workload.slo_class.tolist()],
        prompt_costs=[1] * len(prompts),
        deadline_s=[0.0] * len(prompts),
        slo_scales=[workload.classes[index].scale for index in workload.slo_class.tolist()],
        slo_class=workload.slo_class,
        hashes=hashes,
        request_s=request_s,
        n=n,
    )


def _answers(workload: Workload, max_len: int, n: int, seed: int) -> Int32:
    """Tokens of each answer, [N, n]."""
    first = workload.output_tokens[:, None]
    if n == 1:
        return first
    chance = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_ANSWERS,)))
    others = chance.choice(workload.output_tokens, (len(workload), n - 1))
    longest = max_len - workload.prompt_tokens[:, None]
    answers: Int32 = np.minimum(np.hstack([first, others]), longest).astype(np.int32)
    return answers
