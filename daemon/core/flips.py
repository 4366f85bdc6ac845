"""Flips: changes of an instance's role while it works, and how long each took to show."""

from collections.abc import Callable
from collections.abc import Sequence as Listing
from dataclasses import dataclass

import msgspec

from daemon.core.actions import Action, FlipShown
from daemon.core.destinations import is_prompt, misplaced
from daemon.core.instance import Instance
from daemon.core.snapshot import FlipStatus
from daemon.cost.work import StepWork
from daemon.state.role import Role
from daemon.state.sequence import Sequence

MAX_SHOWN = 8


@dataclass(slots=True)
class Flip:
    """One change of role. Times are seconds since it was ordered; -1: not yet."""

    number: int
    instance: Instance
    was: Role
    role: Role
    why: str
    at_s: float
    idle: bool  # nobody waits, or waited, for the new role
    received: bool = False  # a sequence that came from elsewhere
    flip_s: float = -1.0
    clear_s: float = -1.0

    @property
    def over(self) -> bool:
        """Whether there is nothing more to see."""
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
        self.newest: list[Flip] = []
        self._open: list[Flip] = []  # of them

    def begin(self, instance: Instance, role: Role, why: str, now: float) -> Flip:
        """An instance has another role from now on."""
        self.count += 1
        idle = not is_work(role, instance, self._instances)
        flip = Flip(self.count, instance, instance.role, role, why, now, idle)
        instance.role = role
        self.newest = [*self.newest[1 - MAX_SHOWN :], flip]
        self._open = [one for one in self.newest if not one.over]
        return flip

    def received(self, instance: Instance) -> None:
        """A sequence came to an instance from another one."""
        for flip in self._of(instance):
            flip.received = True

    def submitted(self, instance: Instance, work: StepWork, now: float) -> None:
        """A step was sent."""
        for flip in self._of(instance):
            if flip.flip_s < 0.0 and _is_new(flip, work):
                flip.flip_s = now - flip.at_s
                self._act(FlipShown(flip.number))

    def look(self, instance: Instance, now: float) -> None:
        """See whether anything of the old role is left, and whether what new ones waited for ended
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
        """Those that are not over."""
        return [
            FlipState(
                number=one.number,
                instance=one.instance.index,
                was=one.was,
                role=one.role,
                why=one.why,
                at_s=one.at_s,
                idle=one.idle,
                received=one.received,
                flip_s=one.flip_s,
                clear_s=one.clear_s,
            )
            for one in self.newest
            if not one.over
        ]

    def restore(self, count: int, states: Listing[FlipState]) -> None:
        """Know that there were `count` flips, and those of them that are not over."""
        self.count = count
        self.newest = [
            Flip(**{**msgspec.structs.asdict(one), "instance": self._instances[one.instance]})
            for one in states
        ]
        self._open = list(self.newest)

    @property
    def any_open(self) -> bool:
        """Whether any is not over."""
        return bool(self._open)

    def _of(self, instance: Instance) -> list[Flip]:
        self._open = [one for one in self._open if not one.over]
        return [one for one in self._open if one.instance is instance]

    def status(self, now: float) -> tuple[FlipStatus, ...]:
        """Their part of a snapshot."""
        return tuple(
            FlipStatus(
                number=one.number,
                instance=one.instance.config.name,
                was=one.was,
                role=one.role,
                why=one.why,
                age_s=now - one.at_s,
                flip_s=one.flip_s,
                clear_s=one.clear_s,
                idle=one.idle,
            )
            for one in self.newest
        )


def is_work(role: Role, instance: Instance, instances: Listing[Instance]) -> bool:
    """Whether somebody waits for an instance that gets this role: a prompt without a slot, or one
    that draws tokens where prompts are computed for others.
    """
    if role is not Role.DECODE:
        queues = [one.scheduler.waiting for one in instances]
        if any(len(queue) > queue.num_begun for queue in queues):
            return True
    if role is Role.PREFILL:
        return False
    givers = (one for one in instances if one is not instance and one.role is Role.PREFILL)
    return any(_draws(one, sequence) for one in givers for sequence in misplaced(one))


def _draws(home: Instance, sequence: Sequence) -> bool:
    if sequence.slot < 0:
        return sequence.num_output_tokens > 0
    return not is_prompt(home, sequence)


def _is_new(flip: Flip, work: StepWork) -> bool:
    """Whether a step has work that the old role did not get."""
    if flip.role is Role.PREFILL or flip.was is Role.DECODE:
        return bool(work.chunks)
    return flip.received or (flip.role is Role.MIXED and work.num_decodes > 0)


def _is_left(flip: Flip) -> bool:
    """Whether something that only the old role gets is still at the instance."""
    if flip.role is Role.MIXED:
        return False
    scheduler = flip.instance.scheduler
    table = scheduler.slots
    order, waiting = table.order(), scheduler.waiting
    num_begun = waiting.num_begun + int((table.delivered[order] > table.prompt[order]).sum())
    if flip.role is Role.PREFILL:
        return num_begun > 0
    return num_begun < len(waiting) + order.size
