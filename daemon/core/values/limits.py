"""The limits of one instance: its own settings, and else the common ones."""

from dataclasses import dataclass
from typing import Protocol

from daemon.scheduler.decode_admission import GREEDY
from daemon.scheduler.policies import POLICIES
from daemon.scheduler.policies.base import Policy


class Said(Protocol):
    """A source of limits: a section of a file or an event. 0 and "" leave a limit open."""

    @property
    def policy(self) -> str:
        """The scheduling policy: one of POLICIES."""

    @property
    def max_running(self) -> int:
        """Slots."""

    @property
    def max_batch_tokens(self) -> int:
        """Token budget of a step."""

    @property
    def prefill_chunk(self) -> int:
        """Most tokens of one sequence in a step."""

    @property
    def depth(self) -> int:
        """Steps in flight."""

    @property
    def swap(self) -> str:
        """The swap mode of victims: one of SWAP_MODES."""

    @property
    def decode_admission(self) -> str:
        """The rule of room for decodes: one of DECODE_ADMISSIONS."""


@dataclass(slots=True, frozen=True)
class InstanceLimits:
    """The limits of one instance, resolved; as `Said`."""

    policy: str
    max_running: int
    max_batch_tokens: int
    prefill_chunk: int
    depth: int  # 0: chosen from the step time
    swap: str  # "": as the policy that is in force has it
    decode_admission: str = ""


PREFILL_TOKENS = 2048
"""The largest chunk of a prefill instance whose budget was not configured."""


def chunks_by_device(policy: str, may_prefill: bool, is_open: bool) -> bool:
    """Whether the size of its device may become an instance's chunk: it may compute prompts for
    others, in pieces, and its budget `is_open`, not configured.
    """
    return may_prefill and is_open and not POLICIES[policy].whole_prompts


def largest_step(limits: InstanceLimits, may_prefill: bool, is_open: bool) -> int:
    """The tokens of the largest step that a worker has to have memory for, in any role."""
    if not chunks_by_device(limits.policy, may_prefill, is_open):
        return limits.max_batch_tokens
    return max(limits.max_batch_tokens, PREFILL_TOKENS)


def says_budget(own: Said, shared: Said) -> bool:
    """Whether the token budget of an instance's steps was configured."""
    return bool(own.max_batch_tokens or shared.max_batch_tokens)


def says_chunk(own: Said, shared: Said) -> bool:
    """Whether the prompt chunk of an instance's steps was configured."""
    return says_budget(own, shared) or bool(own.prefill_chunk or shared.prefill_chunk)


def limits_of(own: Said, shared: Said) -> InstanceLimits:
    """The limits of an instance with its `own` and the `shared` settings.

    A budget in neither is that of the instance's policy.
    """
    policy = own.policy or shared.policy
    asked_tokens = own.max_batch_tokens or shared.max_batch_tokens
    budget = POLICIES.get(policy, Policy).budget(asked_tokens)
    return InstanceLimits(
        policy=policy,
        max_running=own.max_running or shared.max_running,
        max_batch_tokens=budget,
        prefill_chunk=min(own.prefill_chunk or shared.prefill_chunk or budget, budget),
        depth=own.depth or shared.depth,
        swap=own.swap or shared.swap,
        decode_admission=own.decode_admission or shared.decode_admission or GREEDY,
    )
