"""Flips: changes of an instance's role while it works, and how long each took to show."""

from dataclasses import dataclass

from daemon.core.instance import Instance
from daemon.core.snapshot import FlipStatus
from daemon.cost.work import StepWork
from daemon.role import Role

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
    idle: bool
    received: bool = False  # a sequence that came from elsewhere
    flip_s: float = -1.0
    clear_s: float = -1.0

    @property
    def over(self) -> bool:
        """Whether there is nothing more to see."""
        return self.clear_s >= 0.0 and self.flip_s >= 0.0


class Flips:
    """The newest flips; those that are not over are looked at after each step of their instance."""

    def __init__(self) -> None:
        self.count = 0
        self.newest: list[Flip] = []
        self._open: list[Flip] = []  # of them

    def begin(self, instance: Instance, role: Role, why: str, idle: bool, now: float) -> Flip:
        """An instance has another role from now on."""
        self.count += 1
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

    def look(self, instance: Instance, now: float) -> None:
        """See whether anything of the old role is left."""
        for flip in self._of(instance):
            if flip.clear_s < 0.0 and not _is_left(flip):
                flip.clear_s = now - flip.at_s

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
                one.number,
                one.instance.config.name,
                one.was,
                one.role,
                one.why,
                now - one.at_s,
                one.flip_s,
                one.clear_s,
                one.idle,
            )
            for one in self.newest
        )


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
    begun = [one.num_output_tokens > 0 for one in scheduler.waiting]
    begun += [
        int(table.delivered[slot]) > table.member(slot).num_prompt_tokens
        for slot in table.order().tolist()
    ]
    return any(begun) if flip.role is Role.PREFILL else not all(begun)
