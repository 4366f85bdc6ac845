"""What is to be decided in a step where a policy reserves what it predicts."""

from daemon.memory.kv_cache import KVCache
from daemon.scheduler.order import Order
from daemon.scheduler.policies.base import PREDICTION


class PredictedRoom:
    """Whether anybody's room is to be decided, and whether somebody could be asked in."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._slots = order.slots
        self._settled: tuple[int, ...] = ()  # as `_who`, when nobody could be asked in

    def waits(self, slot: int, kv: KVCache) -> bool:
        """Whether the sequence in a slot has not got, or no more has, what its answer will take."""
        return self._order.policy.reserves == PREDICTION and not kv.reservations.has(slot)

    def is_open(self, kv: KVCache) -> bool:
        """Whether it is to be decided who gets what: some that have slots wait for it, were
        predicted anew, or have borrowed some, or it is short, so that who is late has to leave.
        """
        if self._order.policy.reserves != PREDICTION:
            return False
        slots, reserved = self._slots, kv.reservations.num_slots
        if slots.reranked or reserved != slots.num_running or len(kv.lending):
            return True
        return kv.pool.num_available < slots.num_running // 4

    @property
    def _who(self) -> tuple[int, ...]:
        slots = self._slots
        return slots.departures, slots.num_running, self._order.waiting.num_changes

    def settle(self) -> None:
        """Nobody can be asked in before somebody comes, leaves, or is predicted anew."""
        self._settled = self._who

    @property
    def settled(self) -> bool:
        """Whether that is so still."""
        return self._settled == self._who and not self._slots.reranked

    def unsettle(self) -> None:
        """The memory is another one."""
        self._settled = ()
