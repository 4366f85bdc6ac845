"""The running sequences of a scheduler, as the Core and its views read them."""

from daemon.cost.step_time import Float64
from daemon.scheduler.slots import SlotTable
from daemon.state.sequence import Sequence
from daemon.wire.columns import Int32, Slots


class Running:
    """The running sequences of one scheduler, for reading alone: their slots hold what changes with
    each step. Columns are in the policy's order, [num_running].
    """

    def __init__(self, table: SlotTable) -> None:
        self._table = table

    @property
    def slots(self) -> Slots:
        """Their slots."""
        return self._table.order()

    @property
    def unordered_slots(self) -> Slots:
        """Their slots in any order: nothing is sorted for it."""
        (used,) = (self._table.sequence >= 0).nonzero()
        return used

    @property
    def sequences(self) -> list[Sequence]:
        """The sequences."""
        return self.at(self.slots)

    @property
    def begun(self) -> list[Sequence]:
        """Those whose first token was delivered, in the policy's order."""
        return self.at(self.slots[self.delivered > self.prompt])

    @property
    def prompt(self) -> Int32:
        """Tokens of their prompts."""
        return self._table.prompt[self.slots]

    @property
    def known(self) -> Int32:
        """Their tokens, those counted on included."""
        return self._table.known[self.slots]

    @property
    def computed(self) -> Int32:
        """Tokens with KV, once the steps in flight have ended."""
        return self._table.computed[self.slots]

    @property
    def delivered(self) -> Int32:
        """Tokens of prompts and of answered steps."""
        return self._table.delivered[self.slots]

    @property
    def likely_end(self) -> Int32:
        """Tokens that they are likely to end with."""
        return self._table.likely_end[self.slots]

    @property
    def first_s(self) -> Float64:
        """The time of their first tokens; negative: none has come."""
        return self._table.first_s[self.slots]

    @property
    def num_computed_tokens(self) -> int:
        """The sum of `computed`."""
        return self._table.num_computed_tokens

    def at(self, slots: Slots) -> list[Sequence]:
        """The sequences in these slots."""
        return [self._table.member(slot) for slot in slots.tolist()]

    # Of one of them

    def computed_of(self, sequence: Sequence) -> int:
        """Its tokens with KV, once the steps in flight have ended."""
        return int(self._table.computed[sequence.slot])

    def delivered_of(self, sequence: Sequence) -> int:
        """Its prompt's tokens, and those of answered steps."""
        return int(self._table.delivered[sequence.slot])

    def is_prefill(self, sequence: Sequence) -> bool:
        """Whether it still computes tokens that were known when it got its slot."""
        return bool(self._table.computed[sequence.slot] < self._table.fed_until[sequence.slot])

    def last_step_of(self, sequence: Sequence) -> int:
        """The newest step with a row of it."""
        return int(self._table.last_step[sequence.slot])

    def behind_prompts_s(self, sequence: Sequence) -> float:
        """Its pauses behind others' prompts since it got its slot."""
        return float(self._table.behind_prompts_s[sequence.slot])
