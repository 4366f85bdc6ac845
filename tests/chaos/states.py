"""Kills in a journal: how far each transfer was, and how soon answers went on.

A kill's time is known to the microsecond, and so are the events of the journal before it.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from daemon.core.core import Core
from daemon.core.instance.instance import WorkerState
from daemon.core.migration.transfers import OpenTransfer
from daemon.core.values.actions import Action, Deliver
from daemon.core.values.events import Event, MigrationOrdered, StepDone, TransferEnded, WorkerLost
from daemon.journal.records import Record
from daemon.lab.simulator.journal import replay
from daemon.state.request import State
from daemon.state.sequence import Where
from tests.chaos.strikes import Strike
from tests.core.laws import check_laws

STATES = (
    "link being joined",
    *("ahead, source", "ahead, target", "tail, source", "tail, target"),
    *("layers, source", "layers, target", "from host, source", "from host, target"),
    *("frozen, source", "frozen, target", "remote KV waits, source", "remote KV waits, target"),
    *("source has answered, source", "source has answered, target"),
    *("target has answered, source", "target has answered, target"),
    *("landed", "moved again"),
)
"""How far a transfer was; and which end was killed."""


class Kill(NamedTuple):
    """A worker's death: transfers under way, and the next tokens of its sequences (s)."""

    states: Counter[str]
    onward_s: list[float]


class Landings:
    """Sequences that landed and have not run, and those moved again before they ran."""

    def __init__(self) -> None:
        self.landed: dict[int, tuple[int, int]] = {}  # by sequence: where, and the step before
        self.again: set[int] = set()
        self._newest: Counter[int] = Counter()  # step of each instance that has answered

    def before(self, core: Core, event: Event) -> None:
        """An event is about to be handled."""
        if isinstance(event, MigrationOrdered) and event.sequence in core.sequences:
            one = core.sequences[event.sequence]
            moves = one.residence.where in (Where.AWAY, Where.RETURNING)
            if moves or one.id in core.migrator.migrations:
                self.again.add(one.id)
        if isinstance(event, TransferEnded) and event.num_right:
            sent = core.migrator.transfers.open.get(event.transfer)
            waits = sent is not None and sent.sequence.residence.transfer == sent.number
            if sent is not None and waits and event.instance == sent.target:
                newest = core.instances[sent.target].moving.answered_step
                self.landed[sent.sequence.id] = sent.target, newest + 1

    def after(self, core: Core, actions: list[Action]) -> None:
        """It was handled: who got a token runs."""
        for action in actions:
            if isinstance(action, Deliver):
                for sequence in action.sequences.tolist():
                    self.landed.pop(sequence, None)
                    self.again.discard(sequence)


def kills_of(records: list[Record], strikes: list[Strike]) -> list[Kill]:
    """Each death in a journal, with what was on its way when the strike fell.

    The replayed Core keeps its laws at every strike and every death.
    """
    events = list(_events(records))
    cores: list[Core] = []
    found: list[Kill] = []
    waiting: list[tuple[float, dict[int, Counter[str]], dict[int, set[int]]]] = []
    onward: list[tuple[float, set[int], Kill]] = []
    left, landings = list(strikes), Landings()
    repeated = replay(records, cores.append)
    for event in events:
        core = cores[-1] if cores else None
        if core is not None:
            while left and event.now > left[0].time_s:
                check_laws(core)
                states = {one.index: states_of(core, one.index, landings) for one in core.instances}
                waiting.append((left.pop(0).time_s, states, _running(core)))
            landings.before(core, event)
        same, actions = next(repeated)
        assert same == event
        core = cores[-1]
        landings.after(core, actions)
        if isinstance(event, WorkerLost) and waiting:
            struck_s, states, running = waiting.pop(0)
            found.append(Kill(states[event.instance], []))
            onward.append((struck_s, running[event.instance], found[-1]))
            check_laws(core)
        if isinstance(event, StepDone):
            _note_onward(event, actions, onward)
    return found


def _note_onward(
    event: StepDone, actions: list[Action], onward: list[tuple[float, set[int], Kill]]
) -> None:
    """Note whose first token after a kill this is."""
    for action in actions:
        if isinstance(action, Deliver):
            drawn = set(action.sequences.tolist())
            for struck_s, sequences, kill in onward:
                for _one in drawn & sequences:
                    kill.onward_s.append(event.now - struck_s)
                sequences.difference_update(drawn)


def _events(records: list[Record]) -> Iterable[Event]:
    return (event for event, _actions in replay(records))


def _running(core: Core) -> dict[int, set[int]]:
    """The sequences that run on each instance."""
    running: dict[int, set[int]] = {one.index: set() for one in core.instances}
    for one in core.sequences.values():
        if one.state is State.RUNNING:
            running[one.instance].add(one.id)
    return running


def states_of(core: Core, index: int, landings: Landings) -> Counter[str]:
    """Transfers to or from an instance, under way or waiting."""
    states: Counter[str] = Counter()
    migrator = core.migrator
    for one in migrator.transfers:
        if index in (one.source, one.target):
            states[f"{_how_far(one)}, {'source' if one.source == index else 'target'}"] += 1
    for migration in migrator.migrations.values():
        if migration.held and index in (migration.source, migration.target):
            states[f"frozen, {'source' if migration.source == index else 'target'}"] += 1
    for sequence in core.sequences.values():
        remote_kv, where = sequence.residence.remote_kv, sequence.residence.where
        if remote_kv is not None and where is Where.AWAY and remote_kv.blocks:
            if remote_kv.instance == index:
                states["remote KV waits, source"] += 1
            elif sequence.instance == index:
                states["remote KV waits, target"] += 1
        states["moved again"] += sequence.id in landings.again and sequence.instance == index
        landed = landings.landed.get(sequence.id, (-1, 0))
        states["landed"] += landed[0] == index == sequence.instance
    for other in core.instances:
        ready = other.state is core.instances[index].state is WorkerState.READY
        if other.index != index and ready:
            ways = ((index, other.index), (other.index, index))
            states["link being joined"] += not all(migrator.transfers.links.up(*w) for w in ways)
    return +states


def _how_far(transfer: OpenTransfer) -> str:
    """A transfer's state, whichever end is asked about."""
    if transfer.source_pool is None:
        return "source has answered"
    if transfer.target_pool is None or transfer.num_right >= 0:
        return "target has answered"
    if transfer.layered:
        return "layers"
    if transfer.from_host:
        return "from host"
    return "ahead" if transfer.ahead else "tail"
