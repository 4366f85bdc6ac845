"""How many calls a step costs the Core: a change that makes more has to raise a bound knowingly.

Calls of functions in `daemon`, not time: they are the same on every machine. Of the steps of a
small crowd, those are looked at in which nobody ends or joins, and those with one end and one who
joins; and arrivals that wait.
"""

import statistics
import sys
from collections import defaultdict
from types import FrameType

import pytest

from benchmarks.core_queue import Crowd
from daemon.core.values.actions import Action, Deliver, Submit
from daemon.core.values.events import Event

BOUNDS = {  # (policy, instances): (a calm step, one with an end and a newcomer, an arrival)
    ("sarathi", 1): (62, 180, 57),
    ("sarathi", 4): (184, 339, 389),
    ("gittins", 1): (98, 260, 78),
    ("gittins", 4): (303, 494, 137),  # streams pause, and each is offered to others
}
WAITING = dict.fromkeys(BOUNDS, 12) | {("gittins", 4): 160}
"""So many come beyond the places that the crowd reckons with. Under `gittins` streams begin at all
four instances: of the first 128 that would wait, none would.
"""
ROUNDS = 150


def kind_of(event: Event, actions: list[Action]) -> str:
    name = type(event).__name__
    if name == "StepDone":
        ends = sum(int((one.reasons != 0).sum()) for one in actions if isinstance(one, Deliver))
        submits = [one.batch for one in actions if isinstance(one, Submit)]
        joins = sum(batch.joined_slots.size for batch in submits)
        return f"{name} {ends} {joins}" if len(submits) == 1 else "another"
    return name


def calls_of(policy: str, num_instances: int) -> dict[str, float]:
    """Median calls by kind of event."""
    waiting = WAITING[policy, num_instances]
    crowd = Crowd(policy, num_instances, waiting, lambda: 0.0, lengths=(100, 300))
    for _ in range(60):
        crowd.round()
    found: defaultdict[str, list[int]] = defaultdict(list)
    handle, count = crowd.core.handle, 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and "/daemon/" in frame.f_code.co_filename

    def counted(event: Event) -> list[Action]:
        nonlocal count
        count = 0
        sys.setprofile(note)
        try:
            actions = handle(event)
        finally:
            sys.setprofile(None)
        found[kind_of(event, actions)].append(count)
        return actions

    crowd.core.handle = counted  # type: ignore[method-assign]
    for _ in range(ROUNDS):
        crowd.round()
        assert crowd.core.num_waiting, "nobody waits"
    return {kind: statistics.median(counts) for kind, counts in found.items()}


@pytest.mark.parametrize(("policy", "num_instances"), BOUNDS)
def test_steps_and_arrivals_make_no_more_calls_than_is_written(
    policy: str, num_instances: int
) -> None:
    calls = calls_of(policy, num_instances)
    told = tuple(calls[kind] for kind in ("StepDone 0 0", "StepDone 1 1", "RequestArrived"))
    bounds = BOUNDS[policy, num_instances]
    assert all(count <= bound for count, bound in zip(told, bounds, strict=True)), (told, bounds)
    assert all(count > 0.8 * bound for count, bound in zip(told, bounds, strict=True)), (
        f"{told} are far fewer than {bounds}: lower the bounds"
    )
