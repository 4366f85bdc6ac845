"""A journal from before `packed` had its name replays under today's names."""

from pathlib import Path

import msgspec
import pytest

from daemon.core.values.events import Configured, PolicyChosen
from daemon.core.view.checkpoint import Checkpoint
from daemon.journal.reader import read_records
from daemon.journal.records import FILE_NAME, FRAME_LENGTH, Record, frame
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
