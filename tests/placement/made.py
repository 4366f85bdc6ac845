"""Candidates and newcomers made by hand, with numbers easy to reckon."""

from dataclasses import dataclass, field

import numpy as np

from daemon.cost.step_time import StepTimeModel
from daemon.placement.base import LoadHere, Members, Newcomer
from daemon.scheduler.future_peak import FuturePeak
from daemon.scheduler.queue import is_heavy
from daemon.state.role import Role
from daemon.wire.columns import Int32, int32

_SCALE = (1.0, 64.0, 65536.0, 512.0, 2.0**20)


def model(
    base_s: float = 0.01, row_s: float = 0.0, context_s: float = 0.0, token_s: float = 1e-4
) -> StepTimeModel:
    """Steps of these times: alone, for a decode, for a token attended to, for a prompt's."""
    terms = (base_s, row_s, context_s, token_s, 0.0)
    scaled = [term * scale for term, scale in zip(terms, _SCALE, strict=True)]
    return StepTimeModel.restored((base_s, 0.99, 0.0, *scaled, *[0.0] * 30))


@dataclass
class Made:
    """An instance by what is on it: (known tokens, steps left, tokens that the client has)."""

    instance: int
    running: list[tuple[int, int, int]] = field(default_factory=list)
    waiting: list[tuple[int, int]] = field(default_factory=list)  # (known tokens, steps left)
    role: Role = Role.MIXED
    capacity_tokens: int = 100_000
    max_running: int = 256
    step_tokens: int = 512
    step_time: StepTimeModel = field(default_factory=model)
    since_s: float = 0.0  # since the first tokens of all that run
    cached: int = 0
    left_of_prompts: int = 0

    @property
    def num_pending_tokens(self) -> int:
        return sum(known for known, _ in self.waiting)

    @property
    def wait_s(self) -> float:
        pending = self.num_pending_tokens
        return self.step_time.prefill_s(pending) if pending else 0.0

    @property
    def num_running(self) -> int:
        return len(self.running)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting)

    @property
    def kv_share(self) -> float:
        return self.context / max(1, self.capacity_tokens)

    def has_room(self, num_tokens: int, num_cached: int = 0) -> bool:
        free = self.capacity_tokens - self.context - self.num_pending_tokens
        return num_tokens - num_cached <= free

    def pool_share(self, num_tokens: float, num_sequences: float) -> float:
        return num_tokens / max(1, self.capacity_tokens)

    def peak_share(self, known: Int32, left: Int32, num_cached: int) -> float:
        return (FuturePeak(known, left).peak - num_cached) / max(1, self.capacity_tokens)

    @property
    def saturating_tokens(self) -> int:
        return self.step_time.saturating_tokens(self.step_tokens)

    @property
    def load(self) -> LoadHere:
        prompts = sum(known - outputs for known, _, outputs in self.running)
        likely = sum(known + left for known, left, _ in self.running)
        heavy = sum(is_heavy(known - got, known + left) for known, left, got in self.running)
        return LoadHere(
            len(self.running) + len(self.waiting),
            prompts + self.num_pending_tokens,
            likely + sum(known + left for known, left in self.waiting),
            heavy + sum(is_heavy(known, known + left) for known, left in self.waiting),
        )

    @property
    def beyond(self) -> int:
        return 0

    @property
    def context(self) -> int:
        return sum(known for known, _, _ in self.running)

    @property
    def prompt_left(self) -> int:
        return self.left_of_prompts

    def cached_tokens(self, newcomer: Newcomer) -> int:
        return min(self.cached, newcomer.num_tokens - 1)

    @property
    def members(self) -> Members:
        columns = np.array(self.running, np.int32).reshape(-1, 3)
        first_s = np.where(columns[:, 2] > 0, -self.since_s, np.inf)  # as of time 0
        return Members(columns[:, 0], columns[:, 1], columns[:, 2], first_s)

    @property
    def queued(self) -> tuple[Int32, Int32]:
        columns = np.array(self.waiting, np.int32).reshape(-1, 2)
        return int32(columns[:, 0]), int32(columns[:, 1])


def newcomer(prompt: int = 100, answer: int = 100, **changes: object) -> Newcomer:
    """A request that has just come."""
    fields: dict[str, object] = {
        "sequence": 128,
        "num_tokens": prompt,
        "likely_length": prompt + answer,
        "num_outputs": 0,
        "brings_kv": False,
        "now": 0.0,
        "arrived_s": 0.0,
        "slo_ttft_s": 2.0,
        "slo_tpot_s": 0.1,
    }
    return Newcomer(**{**fields, **changes})  # type: ignore[arg-type]
