"""Moving: running sequences leave an instance, and others come to it with their KV."""

from daemon.memory.block_pool import BlockPool
from daemon.scheduler.remote_kv import Fetch, RemoteKVs
from daemon.scheduler.scheduler import Scheduler
from daemon.state.sequence import Sequence
from daemon.state.story import What


class Moving:
    """A scheduler's part in migrations; the Core decides on them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._admission = scheduler.admission
        self._slots = scheduler.slots
        self.remote_kvs: RemoteKVs = scheduler.residency.remote_kvs  # that sequences left here

    @property
    def host_pool(self) -> BlockPool:
        """The ledger of the host pool."""
        return self._admission.residency.space.pool

    @property
    def answered_step(self) -> int:
        """The newest step that has answered."""
        return self._admission.answered_step

    @property
    def num_room(self) -> int:
        """Blocks of the KV pool that transfers ahead of their sequence may take."""
        return self._admission.kv.num_unreserved - self._admission.num_spare

    def hold(self, sequence: Sequence) -> None:
        """Have no further step compute a running sequence, as it is to leave."""
        self._admission.residency.hold(sequence)
        self._scheduler.steady_decodes.forget()

    def stay(self, sequence: Sequence) -> None:
        """Have steps compute a sequence again that stays after all."""
        self._admission.residency.release(sequence)

    def has_answered(self, sequence: Sequence) -> bool:
        """Whether no step in flight computes a running sequence."""
        admission = self._admission
        last_step = int(self._slots.last_step[sequence.slot])
        if last_step > admission.step and not admission.kv.has_copies:
            last_step = admission.step  # the fork that the next plan was to copy is gone
        return last_step <= admission.answered_step

    def may_depart(self, sequence: Sequence) -> bool:
        """Whether a running sequence can leave now: nothing in flight or still to be planned
        computes or brings it.
        """
        residency = self._admission.residency
        is_coming = residency.is_returning(sequence) or residency.awaits_plan(sequence)
        return self.has_answered(sequence) and not is_coming

    def depart(self, sequence: Sequence, now: float, target: int) -> None:
        """Take out a running sequence that migrates; its KV stays as remote KV."""
        self._admission.depart(sequence.slot, now, target)
        self._admission.let_go(sequence)

    def admit_early(self, sequence: Sequence, now: float) -> None:
        """Give a sequence that brings its KV a slot and blocks between two steps, so that its KV
        comes while the step in flight computes. It was running, so it does not wait for others'
        time slices; but the needs of the first waiting sequence are left for that one.
        """
        admission = self._admission
        first = admission.next_waiting(now)
        if first is None or not sequence.residence.parked_tokens or not admission.may_join():
            return
        plan = admission.plan(sequence)
        num_blocks, num_slots = plan.num_new_blocks + admission.num_spare, 1
        if first is not sequence:
            num_blocks += admission.plan(first).num_new_blocks
            num_slots += 1
        lacks = admission.kv.num_lacking(plan.matched, num_blocks) > 0
        if lacks or len(self._slots.vacant) < num_slots:
            return
        if admission.make_room(sequence, plan, now):
            admission.admit(sequence, plan, now)

    def take_fetches(self) -> list[Fetch]:
        """Take the fetches of remote KV that admissions since the last call need."""
        remote_kvs = self.remote_kvs
        taken, remote_kvs.fetches = remote_kvs.fetches, []
        return taken

    def landed(self, sequence: Sequence, num_tokens: int, now: float) -> None:
        """Go on with a sequence whose transfer is over, with `num_tokens` of it here."""
        admission, slot = self._admission, sequence.slot
        lost = int(self._slots.computed[slot]) - num_tokens
        admission.residency.landed(sequence)
        if lost > 0:
            self._slots.computed[slot] = num_tokens
            self._slots.num_computed_tokens -= lost
            sequence.recomputed_tokens += lost
            admission.stats.recomputed_tokens += lost
            num_right = num_tokens // admission.kv.block_size
            sequence.num_sealed_blocks = min(sequence.num_sealed_blocks, num_right)
        sequence.story.add(now, What.LANDED, num_tokens)
        if lost > 0 and admission.kv.has_windows:  # its windows begin where the rest would have
            admission.preempt(slot, What.OUT_OF_BLOCKS, now)
            return
        admission.seal(slot)
