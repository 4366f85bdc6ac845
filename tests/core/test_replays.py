"""Recorded lives are repeated, every action byte for byte: what was moved does what it did."""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from daemon.core.values.actions import Action
from daemon.core.values.events import Event
from daemon.journal.records import Record
from tests.core.replays.life import LINK_BYTES, Life, read, replay, write

LIVES = read()


@pytest.mark.parametrize("life", LIVES, ids=[life.name for life in LIVES])
def test_a_recorded_life_is_repeated(life: Life) -> None:
    replay(life)


def test_another_answer_is_noticed_where_it_comes(tmp_path: Path) -> None:
    life = LIVES[0]
    number = len(life.events) // 2
    links = bytearray(life.links)
    links[number * LINK_BYTES] ^= 1
    write([msgspec.structs.replace(life, links=bytes(links))], tmp_path / "lives.xz")
    (changed,) = read(tmp_path / "lives.xz")
    with pytest.raises(AssertionError, match=f"event {number},"):
        replay(changed)


def test_tags_on_the_wire_stay_as_journals_have_them() -> None:
    told = "Configured WorkerReady WorkerLost RequestArrived Predicted StepDone Copied"
    told += " PolicyChosen Sealed Finish Abort DrainBegun Resumed Reconfigured"
    told += " Link Transferred MigrationOrdered FlipOrdered InstanceDrained InstanceResumed"
    told += " Tick PlacementChosen RolesChosen GivenUp BudgetChosen"
    asked = "Send CancelSend Submit Started Deliver Finished Rejected WakeAt"
    asked += " RoleGiven FlipShown Noted Wake Emptied"
    appended = "append a new tag at the end, and rename none: journals have them"
    assert [_tag(one) for one in get_args(Event)] == told.split(), appended
    assert [_tag(one) for one in get_args(Record)] == [*told.split(), "Checkpoint", "Gap", "Note"]
    assert [_tag(one) for one in get_args(Action)] == asked.split(), appended


def _tag(struct: type[msgspec.Struct]) -> str:
    tag = struct.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
