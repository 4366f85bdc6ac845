"""Today's names of policies in older journals: `packed` was `synced`, `synced` `synced-nested`."""

from collections.abc import Iterable, Iterator

import msgspec

from daemon.core.values.events import POLICY_NAMES, Configured, PolicyChosen
from daemon.core.view.checkpoint import Checkpoint
from daemon.journal.records import Record

_NAMES = {"synced": "packed", "synced-nested": "synced"}


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
