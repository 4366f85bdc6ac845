"""Migration: sequences leave one instance and go on at another, with their KV.

One mechanism with many uses: the handoff from prefill to decode, flips of roles, draining, orders
of the operator. A running sequence's named blocks are copied ahead while it runs; then no further
step takes it, it leaves its slot once the steps in flight have answered, and queues at its target,
where admission fetches the blocks that are missing. A waiting sequence just changes queues.
"""

from collections.abc import Sequence as Listing
from typing import Protocol

from daemon.core.chores import Chores
from daemon.core.instance.instance import Instance, WorkerState
from daemon.core.migration.destinations import destinations, is_prompt, misplaced
from daemon.core.migration.flips import Flips
from daemon.core.migration.open_migrations import Migration, Migrations, Pairs
from daemon.core.migration.pledges import Pledges
from daemon.core.migration.relief import refuges
from daemon.core.migration.transfers import OpenTransfer, Transfers
from daemon.core.values.actions import Action, CancelSend, FlipShown, RoleGiven
from daemon.core.values.events import (
    Configured,
    FlipOrdered,
    InstanceDrained,
    InstanceResumed,
    LinkChanged,
    MigrationOrdered,
    TransferEnded,
)
from daemon.core.values.snapshot import Counters
from daemon.state.batch import Batch
from daemon.state.request import State
from daemon.state.role import Role
from daemon.state.sequence import Sequence
from daemon.state.story import What
from daemon.state.transfer_mode import ARRIVAL, HandoffMode

AHEAD_BLOCKS = 2
"""Named blocks lacking at the target that are worth a transfer ahead; fewer go with the rest."""

LAYERED_S = 0.005
"""Time above which a transfer goes layer by layer, where that is chosen by cost: 5 to 8 ms of it
stay unhidden whatever the length, and short transfers take less (Splitwise, Figure 14).
"""


class Chooser(Protocol):
    """Chooses the instances of sequences."""

    def choose(
        self, sequence: Sequence, among: Listing[Instance], wanted: Role, now: float
    ) -> Instance:
        """The instance that placement chooses."""

    def place(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence where placement chooses."""


class MigratingCore(Protocol):
    """The part of the Core that the migrator uses."""

    config: Configured
    instances: list[Instance]
    sequences: dict[int, Sequence]
    counters: Counters
    chores: Chores

    @property
    def dispatch(self) -> Chooser:
        """The chooser of instances."""

    def touch(self, index: int) -> Instance:
        """Note that this event changes an instance; returns it."""

    def act(self, action: Action) -> None:
        """Have the driver do something."""


class Migrator:
    """All migrations, their transfers, and the changes of roles that cause them."""

    def __init__(self, core: MigratingCore) -> None:
        self._core = core
        self.transfers = Transfers(core.instances)
        self.reconfigure(core.config)
        self.flips = Flips(core.instances, core.act)
        self.migrations = Migrations(len(core.instances))
        self.pledges = Pledges(core.instances, self._homes)
        self.pairs = Pairs()
        self._staying: set[int] = set()  # sequences that decode where their prompts were computed
        self._left_s: dict[int, float] = {}  # time of leaving, of sequences that left with their KV
        for instance in core.instances:
            instance.moving.remote_kvs.is_stuck = self._is_stuck

    def reconfigure(self, config: Configured) -> None:
        """Send prompts' KV in another way from now on."""
        self._mode = HandoffMode(config.handoff)

    def hands_off(self, instance: Instance) -> bool:
        """Whether an instance computes prompts for others."""
        return instance.role is Role.PREFILL and len(self._core.instances) > 1

    def _homes(self, sequence: Sequence, source: Instance) -> list[Instance]:
        """The instances that may decode the answer of a prompt computed at `source`."""
        others = (home for home in self._core.instances if home.role is not Role.PREFILL)
        links, limit = self.transfers.links, sequence.limit
        return [home for home in others if home.takes(limit) and links.up(source.index, home.index)]

    @property
    def idle(self) -> bool:
        """Whether there is neither a migration nor a transfer."""
        return not self.migrations and not self.transfers.open

    def _is_stuck(self, sequence: Sequence) -> bool:
        """Whether nothing runs where a sequence waits. Of two instances full of each other's remote
        KV, one has to give some up.
        """
        return not self._core.instances[sequence.instance].scheduler.num_running

    # Events

    def on_link(self, event: LinkChanged) -> None:
        """Note that an end of a link is up or down."""
        self.transfers.links.change(event)
        if not event.is_up:
            for transfer in self.transfers.over_link(event):
                self._ended(event.instance, transfer.number, 0, 0.0, event.now)
        self._core.touch(event.instance)

    def on_transfer(self, event: TransferEnded) -> None:
        """Note that a transfer is over at one of its ends."""
        self._ended(event.instance, event.transfer, event.num_right, event.elapsed_s, event.now)

    def on_migration(self, event: MigrationOrdered) -> None:
        """Migrate a sequence by the operator's order."""
        sequence = self._core.sequences.get(event.sequence)
        if sequence is not None and sequence.instance >= 0:
            sequence.ordered_to = event.instance
            self.begin(sequence, event.instance, event.now)

    def on_flip(self, event: FlipOrdered) -> None:
        """Give an instance another role; sequences that do not fit it migrate."""
        instance = self._core.touch(event.instance)
        if event.role != instance.role:
            flip = self.flips.begin(instance, event.role, event.why, event.now)
            self._core.counters.flips += 1
            self._core.act(RoleGiven(flip.number, event.instance, event.role))
            if flip.idle:
                self._core.act(FlipShown(flip.number))
            for migration in [
                migrating for migrating in self.migrations.values() if migrating.after_prompt
            ]:
                leaves_role = migration.source == event.instance and event.role is not Role.PREFILL
                if leaves_role or (
                    migration.target == event.instance and event.role is Role.PREFILL
                ):
                    self._give_up(migration)  # it was handed off for the old roles
            self._drop_pledges(event.instance)
            self._replace_waiting(instance, event.now)
            self.tidy(instance, event.now)
            self.flips.look(instance, event.now)

    def _drop_pledges(self, index: int) -> None:
        """Drop the places of prompts from or to a changed instance: they look for a place anew once
        they are computed.
        """
        for sequence, pledge in self.pledges.values():
            if index in (pledge.source, pledge.target) and sequence not in self.migrations:
                self.pledges.drop(sequence)

    def on_instance_drained(self, event: InstanceDrained) -> None:
        """Drain an instance: everything is to leave it."""
        instance = self._core.touch(event.instance)
        instance.drained = True
        self._drop_pledges(event.instance)
        self.tidy(instance, event.now)
        self._core.chores.add(self._clear_out, list(instance.scheduler.waiting), event.now)

    def _clear_out(self, sequence: Sequence, now: float) -> None:
        """Have a sequence go elsewhere, if it still waits at a drained instance."""
        if sequence.slot < 0 and sequence.state is not State.FINISHED:
            home = self._core.instances[sequence.instance]
            if home.drained and home.state is WorkerState.READY:
                target = self._target(sequence, home, now)
                if target is not None:
                    self.begin(sequence, target.index, now)

    def on_instance_resumed(self, event: InstanceResumed) -> None:
        """Use an instance again."""
        self._core.touch(event.instance).drained = False

    def worker_lost(self, index: int) -> None:
        """End the transfers and migrations of an instance whose worker died."""
        self.transfers.lost(index)
        for migration in list(self.migrations.values()):
            if index in (migration.source, migration.target):
                self._give_up(migration)
        self._drop_pledges(index)

    # Sequences that should be elsewhere

    def tidy(self, instance: Instance, now: float) -> None:
        """Migrate the sequences that should not stay at an instance: all of a drained one; those
        that decode of a prefill instance.
        """
        if instance.state is not WorkerState.READY:
            return
        strangers = []
        for sequence in misplaced(instance):
            known = self.migrations.get(sequence.id)
            if known is None:
                if instance.drained or sequence.id not in self._staying:
                    strangers.append(sequence)
            else:
                known.after_prompt &= not instance.drained
        if not strangers or not self._may_leave(instance):
            return
        finds_room = True
        for sequence in strangers:
            if finds_room or instance.drained or self.pledges.target(sequence) >= 0:
                target = self._target(sequence, instance, now)
                if target is not None:
                    self.begin(sequence, target.index, now, after_prompt=not instance.drained)
                else:
                    finds_room = sequence.id in self._staying

    def _may_leave(self, instance: Instance) -> bool:
        """Whether there is any place for sequences that should leave an instance: a cheap test
        after each of its steps, before all that run there are looked at.
        """
        if instance.drained:
            return True
        others = (home for home in self._core.instances if home is not instance and home.takes(0))
        wanted = [home.index for home in others if home.role is not Role.PREFILL]
        links = self.transfers.links
        waits = len(instance.scheduler.waiting) > 0
        return bool(wanted) and (
            waits or any(links.up(instance.index, target) for target in wanted)
        )

    def _target(self, sequence: Sequence, source: Instance, now: float) -> Instance | None:
        """The target of a leaving sequence; None if there is none, so that it stays."""
        overflows = self._overflows(source)
        fitting, wanted = destinations(
            sequence, source, self._core.instances, self.transfers.links, overflows
        )
        paced = [home for home in fitting if home.pace.max_pause_s]
        if paced and self._comes_begun(sequence, source):
            # Without a place it goes where it preempts none, or it might come back at once.
            placed = source.drained or self.pledges.target(sequence) >= 0
            keeps = self.pledges.keeps if placed else self.pledges.has_room
            fitting = [home for home in fitting if home is source or keeps(sequence, home)]
        if not fitting:
            return None
        pair = self.pairs.pop(sequence.id)
        paired = [home for home in fitting if home.index == pair]
        chosen = self._core.dispatch.choose(sequence, paired or fitting, wanted, now)
        if chosen is source:
            self._staying.add(sequence.id)
            return None
        return chosen

    def _overflows(self, source: Instance) -> bool:
        """Whether the answers of an instance's prompts may be decoded by prefill instances too."""
        return self._core.config.mixed_pool and self.hands_off(source) and not source.drained

    def pair(self, sequence: Sequence, home: Instance, now: float) -> None:
        """Choose the instance of an answer as its prompt is queued at `home`, where that is due."""
        self.pairs.pop(sequence.id)  # of where it was queued before
        if self._core.config.pair != ARRIVAL or not self.hands_off(home) or sequence.strikes:
            return
        target = self._target(sequence, home, now)
        if target is not None:
            self.pairs.give(sequence, target.index)

    def paired(self, target: int) -> list[Sequence]:
        """The prompts whose answers are to be decoded at an instance; not those that have come
        meanwhile to where answers are decoded too.
        """
        homes = self._core.instances
        coming = self.pairs.coming(target)
        return [prompt for prompt in coming if self.hands_off(homes[prompt.instance])]

    def _comes_begun(self, sequence: Sequence, source: Instance) -> bool:
        """Whether a leaving sequence will have a token when it comes, and so a pace."""
        if sequence.slot < 0:
            return sequence.num_output_tokens > 0
        hands_off = source.role is Role.PREFILL and not source.drained
        return hands_off or not is_prompt(source, sequence)

    def _replace_waiting(self, instance: Instance, now: float) -> None:
        """Have prompts that wait at a decode instance queue where prompts are computed."""
        others = (home for home in self._core.instances if home is not instance and home.takes(0))
        if instance.role is Role.DECODE and any(home.role is not Role.DECODE for home in others):
            prompts = [
                waiting for waiting in instance.scheduler.waiting if not waiting.num_output_tokens
            ]
            self._core.chores.add(self._replace, prompts, now)

    def _replace(self, sequence: Sequence, now: float) -> None:
        """Have a prompt queue elsewhere, if it still waits at a decode instance."""
        if sequence.slot < 0 and sequence.state is not State.FINISHED:
            home = self._core.instances[sequence.instance]
            begun = sequence.num_output_tokens or sequence.residence.parked_tokens
            if home.role is Role.DECODE and not begun:
                self._core.touch(home.index).scheduler.withdraw(sequence)
                self._core.dispatch.place(sequence, now)

    # Migrating

    def begin(
        self, sequence: Sequence, target: int, now: float, after_prompt: bool = False
    ) -> None:
        """Migrate a sequence as soon as possible, or once its prompt is computed. One that has
        begun stays where it is until the target can keep its pace.
        """
        there = self._core.instances[target]
        if sequence.instance == target or sequence.strikes or not there.takes(sequence.limit):
            return
        known = self.migrations.pop(sequence.id)
        if known is not None:
            self._stay(known)
            if known.target != target:
                self.pledges.drop(sequence.id)
        if sequence.state is State.RUNNING:
            migration = Migration(sequence, sequence.instance, target, after_prompt)
            self.migrations.add(migration)
            self._advance(migration, now)
        elif sequence.slot < 0 and sequence.instance >= 0:
            if sequence.num_output_tokens and not self.pledges.keeps(sequence, there):
                self.migrations.add(Migration(sequence, sequence.instance, target, False))
                return
            if sequence.residence.remote_kv is None:
                self._left_s.pop(sequence.id, None)  # its earlier migration is over
            self._core.touch(sequence.instance).scheduler.withdraw(sequence)
            sequence.story.add(now, What.MOVED, sequence.instance)
            self._queue(sequence, target, now)

    def before_step(self, instance: Instance, batch: Batch, now: float) -> None:
        """Send the blocks that a planned step of a prefill instance completes, layer by layer,
        where that is quicker.

        The target of an answer is chosen at the last chunk of its prompt, or as the prompt arrived.
        Blocks that go ahead chunk by chunk need a target before: then it is chosen at the first
        chunk that is sent, and only where nothing was sent it is chosen anew at the last.
        """
        for row in (batch.counts > 1).nonzero()[0].tolist():
            sequence = instance.scheduler.running.at(batch.slots[row : row + 1])[0]
            migration = self.migrations.get(sequence.id)
            is_last = bool(batch.samples[row])
            if is_last and migration is not None:
                self._choose_anew(migration, instance, now)
            if self._mode == HandoffMode.SERIALIZED:
                continue
            if migration is None and (is_last or self._layers_pay(instance, sequence)):
                migration = self._handoff(sequence, instance, now)
            if migration is not None and migration.ahead and not self.transfers.ahead_of(sequence):
                self._send_layers(migration, now)

    def _handoff(self, sequence: Sequence, source: Instance, now: float) -> Migration | None:
        target = None
        if not sequence.strikes and sequence.id not in self._staying:
            target = self._target(sequence, source, now)
        if target is None:
            return None
        migration = Migration(sequence, source.index, target.index, after_prompt=True)
        self.migrations.add(migration)
        self._give_place(migration)
        return migration

    def _give_place(self, migration: Migration) -> None:
        if self._core.instances[migration.target].pace.max_pause_s:
            self.pledges.give(migration.sequence, migration.source, migration.target)

    def _choose_anew(self, migration: Migration, source: Instance, now: float) -> None:
        """Choose the target of a prompt anew, if none of its blocks went ahead."""
        if self._core.config.pair == ARRIVAL:
            return
        if migration.after_prompt and not (migration.sent or migration.held):
            target = self._target(migration.sequence, source, now)
            if target is not None:
                self.migrations.redirect(migration, target.index)
                self._give_place(migration)
            elif migration.sequence.id in self._staying:
                self._give_up(migration)

    def _layers_pay(self, source: Instance, sequence: Sequence) -> bool:
        """Whether a prompt's blocks take so long to send that sending by layers pays."""
        if self._mode == HandoffMode.LAYERED:
            return True
        links, count = self.transfers.links, sequence.num_sealed_blocks
        homes = (home for home in self._core.instances if home is not source)
        return any(
            links.time(source.index, home.index).predict_s(count) > LAYERED_S for home in homes
        )

    def _send_layers(self, migration: Migration, now: float) -> None:
        sequence = migration.sequence
        if self._mode == HandoffMode.AUTO:
            link = self.transfers.links.time(migration.source, migration.target)
            if link.predict_s(sequence.num_sealed_blocks) <= LAYERED_S:
                return
        send = self.transfers.send_ahead(sequence, migration.target, 1, now, layered=True)
        if send is not None:
            migration.sent = True
            self._core.act(send)
            sequence.story.add(now, What.SENT_AHEAD, len(send.blocks), migration.target)

    def after_step(self, instance: Instance, now: float) -> None:
        """Go on with migrations from an instance, as a step of it has answered."""
        if self.transfers.open:
            for transfer in self.transfers.answered(instance.index):
                self._count(transfer, transfer.num_right, self._core.touch(transfer.target))
        if instance.drained or instance.role is Role.PREFILL:
            self.tidy(instance, now)
        if instance.pace.any_paused:
            self._relieve(instance, now)
        if self.migrations:
            for migration in self.migrations.leaving(instance.index):
                self._advance(migration, now)
        if self.flips.any_open:
            self.flips.look(instance, now)

    def _relieve(self, instance: Instance, now: float) -> None:
        """Migrate streams that wait long at an instance to where there is room."""
        for sequence, target in refuges(
            instance, self._core.instances, self.pledges, self.transfers.links, now
        ):
            self.begin(sequence, target.index, now)

    def after_copies(self, instance: Instance, now: float) -> None:
        """Go on with migrations from an instance whose swap copies have ended: a sequence may have
        waited for its own, and no step that computes it will answer.
        """
        for migration in self.migrations.leaving(instance.index):
            if migration.held:
                self._advance(migration, now)

    def after_plan(self, instance: Instance, now: float) -> bool:
        """Order the fetches of remote KV, as a step was planned or a sequence admitted. Returns
        whether any is impossible, so that its sequence can be computed now.
        """
        will_run = False
        for fetch in instance.moving.take_fetches():
            send = self.transfers.fetch(fetch, instance.index, now)
            if send is not None:
                self._core.act(send)
            else:  # the link is gone: the rest is computed again
                first = 0 if instance.kv.has_windows else fetch.first
                self._land(fetch.sequence, instance, first * instance.kv.block_size, now)
                will_run = True
        return will_run

    def ended(self, sequence: Sequence, is_fault: bool) -> None:
        """Forget a sequence that ended, wherever it was; `is_fault`: its KV must not be cached."""
        self.migrations.pop(sequence.id)
        self.pledges.drop(sequence.id)
        self.pairs.pop(sequence.id)
        self._staying.discard(sequence.id)
        self._left_s.pop(sequence.id, None)
        if is_fault:
            self.transfers.taint(sequence)
        for transfer in self.transfers.of(sequence):
            if transfer.source_pool is not None and not transfer.ahead:
                self._core.act(CancelSend(transfer.number, transfer.source))

    def _advance(self, migration: Migration, now: float) -> None:
        """Take a migration one step further."""
        sequence, source = migration.sequence, self._core.instances[migration.source]
        target = self._core.instances[migration.target]
        if sequence.instance != migration.source or sequence.state is State.FINISHED:
            self.migrations.pop(sequence.id)
            return
        if not target.takes(sequence.limit):
            self._give_up(migration)
            return
        if sequence.state is not State.RUNNING:  # it was preempted meanwhile
            self.migrations.pop(sequence.id)
            self.begin(sequence, migration.target, now)
            return
        if target.pace.max_pause_s and self.pledges.target(sequence) != migration.target:
            begun = self._comes_begun(sequence, source)
            if begun and not self.pledges.keeps(sequence, target):
                return
            self.pledges.give(sequence, migration.source, migration.target)
        if not migration.held and self._goes_ahead(migration, now):
            return
        if migration.after_prompt and is_prompt(source, sequence):
            return
        if source.moving.may_depart(sequence):
            self.migrations.pop(sequence.id)
            self._core.touch(migration.source).moving.depart(sequence, now, migration.target)
            self._left_s[sequence.id] = now
            self._queue(sequence, migration.target, now)
        else:
            migration.held = True
            source.moving.hold(sequence)

    def _goes_ahead(self, migration: Migration, now: float) -> bool:
        """Copy named blocks ahead, if they are worth a transfer; whether any are on their way.

        For a decoding sequence that is done once: blocks filled meanwhile go with the rest.
        """
        sequence = migration.sequence
        if self.transfers.ahead_of(sequence):
            return True
        if not migration.ahead:
            return False
        is_prefill = is_prompt(self._core.instances[migration.source], sequence)
        least = 1 if is_prefill else AHEAD_BLOCKS
        send = self.transfers.send_ahead(sequence, migration.target, least, now)
        if send is None:
            return False
        self._core.touch(migration.source)  # its blocks get free later now
        migration.sent = True
        self._core.act(send)
        sequence.story.add(now, What.SENT_AHEAD, len(send.blocks), migration.target)
        migration.ahead = is_prefill
        return True

    def _queue(self, sequence: Sequence, target: int, now: float) -> None:
        instance = self._core.touch(target)
        self._staying.discard(sequence.id)
        self.pledges.drop(sequence.id)
        instance.scheduler.add(sequence, now)
        instance.moving.admit_early(sequence, now)
        self.flips.received(instance)
        self.after_plan(instance, now)

    def _give_up(self, migration: Migration) -> None:
        """Give a migration up: its sequence stays where it is."""
        self.migrations.pop(migration.sequence.id)
        self.pledges.drop(migration.sequence.id)
        self._stay(migration)

    def _stay(self, migration: Migration) -> None:
        if (
            migration.held
            and migration.sequence.slot >= 0
            and migration.sequence.instance == migration.source
        ):
            self._core.touch(migration.source).moving.stay(migration.sequence)

    # Landing

    def _ended(
        self, instance: int, number: int, num_right: int, elapsed_s: float, now: float
    ) -> None:
        transfer = self.transfers.ended(instance, number, num_right, elapsed_s)
        if transfer is None:
            return
        home = self._core.touch(instance)
        sequence = transfer.sequence
        migration = self.migrations.get(sequence.id)
        if migration is not None and num_right < len(transfer.blocks):
            migration.ahead = False  # failed blocks go with the rest, or are computed again
        if instance != transfer.target:
            return
        self._count(transfer, num_right, home)
        if sequence.residence.transfer == number and sequence.slot >= 0:
            block_size = home.kv.block_size
            begin = transfer.first * block_size
            whole = num_right >= len(transfer.blocks)
            right = transfer.num_tokens if whole else num_right * block_size
            if not whole and home.kv.has_windows:
                right = 0  # it comes as a whole
            self._land(sequence, home, begin + right, now)
        if migration is not None:
            self._advance(migration, now)

    def _land(self, sequence: Sequence, home: Instance, num_tokens: int, now: float) -> None:
        """Have a sequence that waited for its KV run from now on."""
        home.moving.landed(sequence, num_tokens, now)
        left_s = self._left_s.pop(sequence.id, -1.0)
        if left_s >= 0.0:
            self._core.counters.note_handoff(now - left_s)

    def _count(self, transfer: OpenTransfer, num_right: int, home: Instance) -> None:
        counters = self._core.counters
        counters.sent_blocks += num_right
        counters.sent_bytes += num_right * home.block_bytes
        is_awaited = transfer.sequence.state is not State.FINISHED  # else it was cancelled
        counters.handoffs_failed += is_awaited and num_right < len(transfer.blocks)
