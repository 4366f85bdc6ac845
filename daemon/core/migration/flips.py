"""Flips: changes of an instance's role while it works, and the time until each takes effect."""

from collections.abc import Callable
from collections.abc import Sequence as Listing
from dataclasses import dataclass

import msgspec

from daemon.core.instance.instance import Instance
from daemon.core.migration.destinations import is_prompt, misplaced
from daemon.core.values.actions import Action, FlipShown
from daemon.core.values.snapshot import FlipStatus
from daemon.cost.work import StepWork
from daemon.state.role import Role
from daemon.state.sequence import Sequence

MAX_SHOWN = 8


@dataclass(slots=True)
class OpenFlip:
    """One change of role. Times are seconds since it was ordered; -1: not yet."""

    number: int
    instance: Instance
    was: Role
    role: Role
    why: str
    at_s: float
    idle: bool  # no sequence waits, or waited, for the new role
    received: bool = False  # a sequence that came from elsewhere
    flip_s: float = -1.0
    clear_s: float = -1.0

    @property
    def over(self) -> bool:
        """Whether it took effect, and nothing of the old role is left."""
        return self.clear_s >= 0.0 and self.flip_s >= 0.0


class FlipState(msgspec.Struct, frozen=True, array_like=True):
    """A flip that is not over, as a checkpoint keeps it."""

    number: int
    instance: int
    was: Role
    role: Role
    why: str
    at_s: float
    idle: bool
    received: bool
    flip_s: float
    clear_s: float


class Flips:
    """The newest flips; those that are not over are looked at after each step of their instance."""

    def __init__(self, instances: Listing[Instance], act: Callable[[Action], None]) -> None:
        self._instances = instances
        self._act = act
        self.count = 0
        self.newest: list[OpenFlip] = []
        self._open: list[OpenFlip] = []  # flips that are not over

    def begin(self, instance: Instance, role: Role, why: str, now: float) -> OpenFlip:
        """Give an instance another role."""
        self.count += 1
        idle = not is_work(role, instance, self._instances)
        flip = OpenFlip(self.count, instance, instance.role, role, why, now, idle)
        instance.give_role(role)
        # By number: a Core that was restored has those that are not over alone.
        self.newest = [each for each in self.newest if each.number > self.count - MAX_SHOWN] + [
            flip
        ]
        self._open = [each for each in self.newest if not each.over]
        return flip

    def received(self, instance: Instance) -> None:
        """Note that a sequence came to an instance from another."""
        for flip in self._of(instance):
            flip.received = True

    def submitted(self, instance: Instance, work: StepWork, now: float) -> None:
        """Note that a step was sent."""
        for flip in self._of(instance):
            if flip.flip_s < 0.0 and _is_new(flip, work):
                flip.flip_s = now - flip.at_s
                self._act(FlipShown(flip.number))

    def look(self, instance: Instance, now: float) -> None:
        """See whether anything of the old role is left, and whether all work for new roles ended
        before it came.
        """
        for flip in self._of(instance):
            if flip.clear_s < 0.0 and not _is_left(flip):
                flip.clear_s = now - flip.at_s
        for flip in self._open:
            if flip.flip_s < 0.0 and not flip.received and not flip.idle:
                flip.idle = not is_work(flip.role, flip.instance, self._instances)
                if flip.idle:
                    self._act(FlipShown(flip.number))

    def state(self) -> list[FlipState]:
        """The flips that are not over."""
        return [
            FlipState(
                number=flip.number,
                instance=flip.instance.index,
                was=flip.was,
                role=flip.role,
                why=flip.why,
                at_s=flip.at_s,
                idle=flip.idle,
                received=flip.received,
                flip_s=flip.flip_s,
                clear_s=flip.clear_s,
            )
            for flip in self.newest
            if not flip.over
        ]

    def restore(self, count: int, states: Listing[FlipState]) -> None:
        """Restore the number of flips, and those that are not over."""
        self.count = count
        self.newest = [
            OpenFlip(
                **{**msgspec.structs.asdict(state), "instance": self._instances[state.instance]}
            )
            for state in states
        ]
        self._open = list(self.newest)

    @property
    def any_open(self) -> bool:
        """Whether any flip is not over."""
        return bool(self._open)

    def _of(self, instance: Instance) -> list[OpenFlip]:
        self._open = [flip for flip in self._open if not flip.over]
        return [flip for flip in self._open if flip.instance is instance]

    def status(self, now: float) -> tuple[FlipStatus, ...]:
        """Their part of a snapshot."""
        return tuple(
            FlipStatus(
                number=flip.number,
                instance=flip.instance.config.name,
                was=flip.was,
                role=flip.role,
                why=flip.why,
                age_s=now - flip.at_s,
                flip_s=flip.flip_s,
                clear_s=flip.clear_s,
                idle=flip.idle,
            )
            for flip in self.newest
        )


def is_work(role: Role, instance: Instance, instances: Listing[Instance]) -> bool:
    """Whether a sequence waits for an instance that gets this role: a prompt without a slot, or a
    decoding sequence at a prefill instance.
    """
    if role is not Role.DECODE:
        queues = [home.scheduler.waiting for home in instances]
        if any(len(queue) > queue.num_begun for queue in queues):
            return True
    if role is Role.PREFILL:
        return False
    givers = (home for home in instances if home is not instance and home.role is Role.PREFILL)
    return any(_decodes(giver, sequence) for giver in givers for sequence in misplaced(giver))


def _decodes(home: Instance, sequence: Sequence) -> bool:
    if sequence.slot < 0:
        return sequence.num_output_tokens > 0
    return not is_prompt(home, sequence)


def _is_new(flip: OpenFlip, work: StepWork) -> bool:
    """Whether a step has work that the old role does not get."""
    if flip.role is Role.PREFILL or flip.was is Role.DECODE:
        return bool(work.chunks)
    return flip.received or (flip.role is Role.MIXED and work.num_decodes > 0)


def _is_left(flip: OpenFlip) -> bool:
    """Whether something that only the old role gets is still at the instance."""
    if flip.role is Role.MIXED:
        return False
    running, waiting = flip.instance.scheduler.running, flip.instance.scheduler.waiting
    num_begun = waiting.num_begun + int((running.delivered > running.prompt).sum())
    if flip.role is Role.PREFILL:
        return num_begun > 0
    return num_begun < len(waiting) + running.slots.size
