"""Intake: whether a request is accepted, and the sequences that it becomes."""

from typing import Protocol

from daemon.core.instance.instance import Instance, WorkerState, able_to_hold
from daemon.core.values.actions import Rejected
from daemon.core.values.events import Configured, RequestArrived
from daemon.cost.finish_rate import FinishRate
from daemon.memory.hashing import split_hashes
from daemon.state.request import sequence_id
from daemon.state.sequence import Sequence
from daemon.state.story import What

COMING = (WorkerState.ASLEEP, WorkerState.LOADING)


class Gate(Protocol):
    """The part of the Core that admits or refuses a request."""

    config: Configured
    instances: list[Instance]
    draining: bool
    finish_rate: FinishRate

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""


def refused(gate: Gate, event: RequestArrived) -> Rejected | None:
    """The refusal of a request; None if it is accepted."""

    def reject(kind: str, message: str, retry_after_s: float) -> Rejected:
        return Rejected(event.request, kind, message, retry_after_s)

    if gate.draining:
        return reject("draining", "the daemon takes no new requests now", 0.0)
    length = event.num_prompt_tokens + event.max_tokens
    able = able_to_hold(gate.instances, length)
    if not able and all(instance.state in COMING for instance in gate.instances):
        return reject("not_ready", "the model is still loading", 1.0)
    if length <= gate.config.max_len and not able:
        absent = [
            instance for instance in gate.instances if instance.state is not WorkerState.READY
        ]
        if absent:
            names = " and ".join(instance.config.name for instance in absent)
            message = f"{length} tokens fit no instance that serves now, and {names} does not"
            return reject("not_ready", message, 1.0)
    if length > gate.config.max_len or not able:
        return reject("too_long", f"{length} tokens do not fit this daemon's memory", 0.0)
    most = gate.config.max_waiting
    excess = gate.num_waiting + event.n - most
    if excess > 0 and event.n > most:
        return reject("too_many", f"`n` is {event.n}, more than may ever wait ({most})", 0.0)
    if excess > 0:
        clump = min(most, gate.num_running) // 2  # finishes come in clumps
        wait_s = gate.finish_rate.promise_s(event.now, excess + clump, event.n)
        return reject("queue_full", "too many requests are waiting", wait_s)
    return None


def accepted(event: RequestArrived, index: int, arrival: int) -> Sequence:
    """One stream of an accepted request; `arrival` sequences arrived before it."""
    sequence = Sequence(
        id=sequence_id(event.request, index),
        num_prompt_tokens=event.num_prompt_tokens,
        max_tokens=event.max_tokens,
        priority=event.priority,
        arrived_s=event.now,
        arrival=arrival,
        hashes=split_hashes(event.hashes),
        prompt_cost=event.prompt_cost,
        deadline_s=event.deadline_s,
        slo_scale=event.slo_scale,
    )
    sequence.story.add(event.now, What.ARRIVED, event.num_prompt_tokens)
    return sequence
