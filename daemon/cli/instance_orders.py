"""`llmd ctl flip`, `migrate` and `cap`: orders to single instances, and what came of them."""

import argparse
import time
from pathlib import Path

import msgspec

from daemon.cli.faults import UsageError
from daemon.cli.status import how_far
from daemon.control.client import cap, fetch_snapshot, flip, migrate
from daemon.protocol.control import FLIP_WAIT_S, Capped, Flipped

TIMEOUT_S = 5.0
CAP_TIMEOUT_S = 10.0
"""A driver takes seconds to wake a card."""
AUTO = "auto"
ROUNDED_WATTS = 0.01
LOOK_S = 0.1
"""Time between two looks at a flip until it is clear."""


def flip_text(path: Path, arguments: argparse.Namespace) -> str:
    """Flip an instance; say how fast it was. Raises ControlError."""
    done = flip(path, arguments.instance, arguments.role, TIMEOUT_S)
    if arguments.wait_clear:
        done = _until_clear(path, done)
    return _json(done) if arguments.json else flipped(done)


def flipped(done: Flipped) -> str:
    """A flip in words."""
    if not done.number:
        return f"{done.instance} is {done.role} already"
    late = ""
    if done.flip_s < 0 and not done.idle:
        late = f" (the daemon waited {FLIP_WAIT_S:.0f} s for it)"
    progress = how_far(done.flip_s, done.clear_s, idle=done.idle)
    return f"{done.instance} was {done.was} and is {done.role} now: {progress}{late}"


def migrate_text(path: Path, arguments: argparse.Namespace) -> str:
    """Migrate a sequence; say from where to where. Raises ControlError and UsageError."""
    try:
        sequence = int(arguments.sequence)
    except ValueError:
        raise UsageError(f"a sequence is a number, not {arguments.sequence!r}") from None
    migrating = migrate(path, sequence, arguments.instance, TIMEOUT_S)
    if arguments.json:
        return _json(migrating)
    return f"sequence {migrating.sequence} moves from {migrating.source} to {migrating.target}"


def cap_text(path: Path, arguments: argparse.Namespace) -> str:
    """Limit an instance's power; say what is in force. Raises ControlError and UsageError."""
    watts = None
    if arguments.watts != AUTO:
        try:
            watts = float(arguments.watts)
        except ValueError:
            wrong = f"a cap is a number of watts or {AUTO}, not {arguments.watts!r}"
            raise UsageError(wrong) from None
    cap_set = cap(path, arguments.instance, watts, CAP_TIMEOUT_S)
    return _json(cap_set) if arguments.json else capped(cap_set)


def capped(done: Capped) -> str:
    """A cap in words."""
    chosen = f"{done.instance}: {done.wish_watts:g} W"
    if done.asked_watts is None:
        chosen += ", as its role asks"
    elif done.wish_watts != done.asked_watts:
        can = f"its card can have {done.min_watts:g} to {done.max_watts:g} W"
        chosen += f" instead of {done.asked_watts:g} W: {can}"
    if abs(done.cap_watts - done.wish_watts) > ROUNDED_WATTS:
        chosen += f"; the limit in force is {done.cap_watts:g} W, since others want more"
    return chosen


def _until_clear(path: Path, done: Flipped) -> Flipped:
    """Wait until nothing of the old role is left, or the instance was flipped again."""
    while done.number and done.clear_s < 0:
        time.sleep(LOOK_S)
        snapshot = fetch_snapshot(path, TIMEOUT_S)
        own = [status for status in snapshot.flips if status.instance == done.instance]
        now = next((status for status in own if status.number == done.number), None)
        if now is None:
            break
        done = msgspec.structs.replace(done, flip_s=now.flip_s, clear_s=now.clear_s, idle=now.idle)
        if own[-1].number != done.number:
            break
    return done


def _json(answer: msgspec.Struct) -> str:
    plain = msgspec.json.encode(msgspec.structs.asdict(answer))
    return msgspec.json.format(plain.decode(), indent=2)
