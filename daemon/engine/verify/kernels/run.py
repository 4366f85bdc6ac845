"""A self-test from the worker's side: one child process, and what it says of each family."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

import msgspec

from daemon.engine.families import BLOCKS, EXPERTS, FAMILIES, GRAPHS, PRODUCTS
from daemon.engine.verify.kernels.lines import LineReader
from daemon.engine.verify.kernels.messages import Imported, Late, Request, Tried, Trying, Untried
from daemon.engine.verify.kernels.subject import Subject

CHILD = (sys.executable, "-m", "daemon.engine.verify.kernels.child")
_LONG = dict.fromkeys((PRODUCTS, BLOCKS, EXPERTS), 200.0)
DEADLINES_S = {**dict.fromkeys(FAMILIES, 60.0), **_LONG, GRAPHS: 120.0}
"""For a family: compiling its kernels takes seconds on a busy machine, those of products a minute.
Each is below what a loading worker may say nothing for."""
_SLACK_S = 30.0
"""More time, for the child to say that a family is late, and to end its fork."""
_ENDING_S = 10.0

Tell = Callable[[str], None]
"""Called at each step with the family that is tried; empty before the first."""


class SelfTestError(Exception):
    """Nothing can be said of the card; the message says why."""


class TriedFamilies(msgspec.Struct):
    """Outcomes of the families that were tried."""

    faults: dict[str, str] = {}  # family -> why torch computes it
    passing: bool = False  # some fault says nothing of the card


def run(
    subject: Subject,
    tell: Tell,
    families: Sequence[str] = tuple(FAMILIES),
    command: Sequence[str] = CHILD,
    deadlines_s: Mapping[str, float] = DEADLINES_S,
) -> TriedFamilies:
    """Try families in a child process; blocks for seconds. Raises SelfTestError."""
    request = Request(subject, tuple(families), dict(deadlines_s))
    reading, writing = os.pipe()
    try:
        child = subprocess.Popen(
            [*command, "--fd", str(writing)], stdin=subprocess.PIPE, pass_fds=(writing,)
        )
    except OSError as error:
        os.close(reading)
        raise SelfTestError(f"no child process: {error.strerror}") from error
    finally:
        os.close(writing)
    try:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError), child.stdin as stdin:
            stdin.write(msgspec.json.encode(request))
        return _heard(LineReader(reading), request, tell)
    finally:
        os.close(reading)
        _end(child)


def _heard(lines: LineReader, request: Request, tell: Tell) -> TriedFamilies:
    found, waiting = TriedFamilies(), set(request.families)
    limit_s = _SLACK_S + max(request.deadlines_s.values(), default=0.0)
    while waiting:
        match lines.next(limit_s):
            case Imported():
                tell("")
            case Trying(family) | Late(family):
                tell(family)
            case Tried(family, fault, passing):
                tell(family)
                waiting.remove(family)
                found.passing |= passing
                if fault:
                    found.faults[family] = fault
            case Untried(why):
                raise SelfTestError(why)
            case None:
                how = "ended" if lines.hung_up else f"said nothing for {limit_s:g} s"
                raise SelfTestError(f"the self-test's process {how}")
    return found


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child if it has not ended; a device may keep it for ever."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        try:
            child.wait(1.0)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait(_ENDING_S)
