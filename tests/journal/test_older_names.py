"""Journals from before policies and orders had today's names replay under these."""

from pathlib import Path

import msgspec
import pytest

from daemon.core.values.events import (
    Configured,
    DrainBegun,
    FlipOrdered,
    InstanceDrained,
    InstanceResumed,
    MigrationOrdered,
    PolicyChosen,
    RolesChosen,
)
from daemon.core.view.checkpoint import Checkpoint
from daemon.journal.reader import JournalError, read_records
from daemon.journal.records import FILE_NAME, FRAME_LENGTH, Record, frame
from daemon.state.role import Role
from tests.core.driver import Driver, configured
from tests.journal.life import record, replayed

THEN = {"packed": "synced", "synced": "synced-nested"}


def _as_then(written: Record) -> bytes:
    """A record's frame as it was before; `Configured` ended in front of `policy_names`."""
    replace = msgspec.structs.replace
    if isinstance(written, PolicyChosen):
        return frame(replace(written, policy=THEN[written.policy]))
    if isinstance(written, Checkpoint):
        states = [
            replace(each, scheduler=replace(each.scheduler, policy=THEN[each.scheduler.policy]))
            for each in written.instances
        ]
        return frame(replace(written, instances=states))
    if not isinstance(written, Configured):
        return frame(written)
    own = tuple(replace(each, policy=THEN.get(each.policy, "")) for each in written.instances)
    config = replace(written, policy=THEN[written.policy], instances=own)
    fields = msgspec.msgpack.decode(frame(config)[FRAME_LENGTH.size :])
    behind = len(Configured.__struct_fields__) - Configured.__struct_fields__.index("policy_names")
    payload = msgspec.msgpack.encode(fields[:-behind])
    return FRAME_LENGTH.pack(len(payload)) + payload


@pytest.mark.parametrize(
    ("configured_name", "chosen"), [("packed", "synced"), ("synced", "packed")]
)
def test_what_was_written_before_replays(tmp_path: Path, configured_name: str, chosen: str) -> None:
    config = configured(configured_name)
    own = tuple(msgspec.structs.replace(each, policy=configured_name) for each in config.instances)
    driver = Driver(msgspec.structs.replace(config, instances=own), 40)
    for _ in range(6):
        for length in (20, 9, 14):
            driver.predict(driver.arrive([length] * 8, length), length)
        driver.settle()
        driver.choose(chosen)
    record(tmp_path, driver, max_bytes=2000)
    path = tmp_path / FILE_NAME
    records = list(read_records(path))
    assert any(isinstance(each, Checkpoint) for each in records)
    assert any(isinstance(each, PolicyChosen) for each in records)
    path.write_bytes(b"".join(map(_as_then, records)))
    assert list(map(frame, read_records(path))) == list(map(frame, records))
    assert replayed(path, driver, len(driver.events) - 1) > 0


ORDERS = {
    "Drain": DrainBegun(1.0),
    "Move": MigrationOrdered(2.0, 128, 1),
    "Role": FlipOrdered(3.0, 1, Role.DECODE, "operator"),
    "Roles": RolesChosen(4.0, "auto"),
    "DrainOne": InstanceDrained(5.0, 1),
    "ResumeOne": InstanceResumed(6.0, 1),
}
"""Operators' orders, by the tags that they had."""


def test_orders_are_read_by_the_tags_that_they_had(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    written = frame(configured("vllm"))
    for tag, order in ORDERS.items():
        fields = msgspec.msgpack.decode(frame(order)[FRAME_LENGTH.size :])
        payload = msgspec.msgpack.encode([tag, *fields[1:]])
        written += FRAME_LENGTH.pack(len(payload)) + payload
    path.write_bytes(written)
    assert list(read_records(path))[1:] == list(ORDERS.values())


def test_a_tag_that_never_was_is_damage(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    payload = msgspec.msgpack.encode(["Moved", 2.0, 128, 1])
    path.write_bytes(frame(configured("vllm")) + FRAME_LENGTH.pack(len(payload)) + payload)
    with pytest.raises(JournalError, match=r"damaged at byte .*: Invalid value 'Moved'"):
        list(read_records(path))
