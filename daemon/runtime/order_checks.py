"""Why an operator's order between instances cannot be carried out, each reason as a sentence."""

from daemon.base.nearest import unknown
from daemon.control.orders import RefusalError
from daemon.core.core import Core
from daemon.core.instance.instance import WorkerState
from daemon.protocol.control import Flipped, FlipStatus, InstanceStatus, Snapshot
from daemon.state.role import Role

READY = WorkerState.READY.value


def index_of(instance: str, snapshot: Snapshot) -> int:
    """The index of the instance of this name. Raises RefusalError for an unknown one."""
    names = [status.name for status in snapshot.instances]
    if instance not in names:
        raise RefusalError(unknown("instance", instance, names))
    return names.index(instance)


def role_of(role: str) -> Role:
    """The role of this name. Raises RefusalError."""
    roles = [known.value for known in Role]
    if role not in roles:
        raise RefusalError(unknown("role", role, roles))
    return Role(role)


def check_migration(core: Core, sequence: int, target: InstanceStatus, index: int) -> int:
    """The instance of a sequence that shall move to `target`, at `index`. Raises RefusalError."""
    found = core.sequences.get(sequence)
    if found is None:
        raise RefusalError(f"there is no sequence {sequence} (any more)")
    if found.instance < 0:
        raise RefusalError(f"sequence {sequence} is on no instance yet")
    if found.instance == index:
        raise RefusalError(f"sequence {sequence} is on {target.name} already")
    if found.strikes:
        raise RefusalError(f"sequence {sequence} may have ended a worker, and stays where it is")
    if target.state != READY:
        raise RefusalError(f"the worker of {target.name} is not ready: {target.state}")
    if target.drained:
        raise RefusalError(f"{target.name} is drained: llmd ctl resume {target.name} comes first")
    capacity = core.instances[index].capacity_tokens
    if found.limit > capacity:
        raise RefusalError(
            f"{target.name} cannot hold sequence {sequence}: it may grow to {found.limit} tokens, "
            f"and there is room for {capacity}"
        )
    return found.instance


def check_drain(index: int, snapshot: Snapshot) -> None:
    """Raises RefusalError if no other instance could take the work."""
    others = [status for place, status in enumerate(snapshot.instances) if place != index]
    if not any(status.state == READY and not status.drained for status in others):
        name = snapshot.instances[index].name
        raise RefusalError(
            f"no other instance could take what is on {name}; "
            "llmd ctl drain without a name drains the whole daemon"
        )


def flip_of(number: int, snapshot: Snapshot) -> FlipStatus:
    """A flip that was just ordered, by its number."""
    return next(flip for flip in snapshot.flips if flip.number == number)


def flipped(flip: FlipStatus) -> Flipped:
    """A flip's progress, for the operator."""
    return Flipped(
        number=flip.number,
        instance=flip.instance,
        was=flip.was,
        role=flip.role,
        flip_s=flip.flip_s,
        clear_s=flip.clear_s,
        idle=flip.idle,
    )
