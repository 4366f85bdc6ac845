"""Today's names in older journals: of policies and of operators' orders.

`packed` was `synced`, and `synced` `synced-nested`; tags of orders were shorter than their names.
"""

from collections.abc import Iterable, Iterator

import msgspec

from daemon.core.values.events import (
    POLICY_NAMES,
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
from daemon.journal.records import Record

_NAMES = {"synced": "packed", "synced-nested": "synced"}
_TAGS = {
    "Drain": DrainBegun,
    "DrainOne": InstanceDrained,
    "ResumeOne": InstanceResumed,
    "Move": MigrationOrdered,
    "Role": FlipOrdered,
    "Roles": RolesChosen,
}


def with_todays_tag(payload: bytes) -> bytes:
    """A record's bytes, with the tag that an operator's order has today."""
    fields = msgspec.msgpack.decode(payload)
    if isinstance(fields, list) and fields and (event := _TAGS.get(fields[0])):
        return msgspec.msgpack.encode([event.__struct_config__.tag, *fields[1:]])
    return payload


def renamed(records: Iterable[Record]) -> Iterator[Record]:
    """The records of one journal, with the names that their policies have today."""
    is_older = False
    for record in records:
        if isinstance(record, Configured):
            is_older = record.policy_names < POLICY_NAMES
        yield _renamed(record) if is_older else record


def _renamed(record: Record) -> Record:
    replace = msgspec.structs.replace
    match record:
        case Configured():
            own = tuple(replace(each, policy=_now(each.policy)) for each in record.instances)
            policy = _now(record.policy)
            return replace(record, instances=own, policy=policy, policy_names=POLICY_NAMES)
        case PolicyChosen():
            return replace(record, policy=_now(record.policy))
        case Checkpoint():
            states = [
                replace(each, scheduler=replace(each.scheduler, policy=_now(each.scheduler.policy)))
                for each in record.instances
            ]
            return replace(record, instances=states)
    return record


def _now(name: str) -> str:
    return _NAMES.get(name, name)
