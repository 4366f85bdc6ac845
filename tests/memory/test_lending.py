"""Loans of reserved blocks: no lender waits for a lent block, however wrong predictions are."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from daemon.memory.block_pool import LedgerError
from daemon.memory.kv_cache import NOTHING_CACHED, KVCache
from daemon.memory.lending import Loan

BLOCK, SLOTS, MOST = 4, 7, 16


def kv_of(*reserved: tuple[int, int]) -> KVCache:
    """Slots that hold so many blocks, of so many reserved ones."""
    kv = KVCache(32, BLOCK, SLOTS, MOST * BLOCK, prefix_cache=False)
    for slot, (held, most) in enumerate(reserved):
        kv.allocate(slot, NOTHING_CACHED, held * BLOCK)
        if most:
            kv.reservations.reserve(slot, most)
    return kv


def num_lent(kv: KVCache) -> int:
    return sum(one.num_blocks for one in kv.lending)


def test_what_is_lent_is_promised_once() -> None:
    kv = kv_of((2, 10), (1, 0))
    assert kv.num_unreserved == 32 - 10 - 1
    kv.lending.lend(0, 1, 4, 5)
    assert kv.num_unreserved == 32 - 10 - 1, "four of five blocks are the lender's, one it has"
    assert (kv.reservations.most(0), kv.reservations.most(1)) == (6, 5)
    assert (num_lent(kv), kv.lending.num_reserved(0)) == (4, 10)
    assert (kv.lending.lender_of(1), kv.lending.lender_of(0)) == (0, -1)
    assert kv.lending.due_block(0) == 6
    kv.lending.check()


def test_a_loan_is_due_at_a_token_of_its_host() -> None:
    kv = kv_of((2, 10), (1, 0), (1, 0))
    kv.lending.lend(0, 1, 4, 5)
    kv.lending.lend(0, 2, 2, 3)
    known = np.array([13, 5, 5], np.int32)  # the fifth block begins at token 16
    assert kv.lending.due(known, 3, BLOCK) == []
    assert kv.lending.due(known, 4, BLOCK) == [2], "the one that came last is due first"


def test_what_a_borrower_held_is_owed_until_steps_have_answered() -> None:
    kv = kv_of((2, 10), (1, 0), (11, 0), (10, 0))
    kv.lending.lend(0, 1, 4, 5)
    kv.append_each(np.array([1]))
    kv.release([1], 7)
    assert (kv.reservations.most(0), kv.lending.num_owed) == (6, 4)
    assert kv.num_unreserved == -1, "two blocks are fenced, one of them for the lender"
    kv.lending.settle(kv.pool.num_available)
    assert (kv.reservations.most(0), kv.lending.num_owed) == (9, 1)
    kv.pool.step_done(7)
    kv.lending.settle(kv.pool.num_available)
    assert (kv.reservations.most(0), kv.lending.num_owed, kv.num_unreserved) == (10, 0, 1)


def test_what_is_reserved_is_there_though_others_wait_for_what_they_are_owed() -> None:
    kv = kv_of((2, 10), (1, 0), (11, 12), (9, 0))
    kv.lending.lend(0, 1, 4, 5)
    kv.append_each(np.array([1]))
    kv.release([1], 7)
    assert kv.num_unreserved < 0 < kv.lending.num_owed
    assert kv.can_append(np.array([0, 2])), "of eight and of one that are kept for them"
    assert not kv.can_append(np.array([3]))
    kv.append_each(np.array([0, 2]))
    kv.reservations.check(kv.pool.num_available)


def test_the_borrowers_of_one_that_left_are_its_lenders() -> None:
    kv = kv_of((2, 16), (1, 0), (1, 0))
    kv.lending.lend(0, 1, 8, 9)
    kv.lending.lend(1, 2, 5, 6)
    kv.release([1], 0)
    assert list(kv.lending) == [Loan(0, 2, 5)] and kv.lending.num_owed == 3
    kv.release([0], 0)
    assert not len(kv.lending) and kv.reservations.most(2) == 6
    kv.lending.check()
    kv.reservations.check(kv.pool.num_available)


def test_a_lender_that_needs_fewer_leaves_them_to_its_borrowers() -> None:
    kv = kv_of((2, 10), (1, 0))
    kv.lending.lend(0, 1, 4, 5)
    kv.lending.resize(0, 7)
    assert list(kv.lending) == [Loan(0, 1, 1)] and kv.reservations.most(0) == 6
    kv.lending.resize(0, 3)
    assert not len(kv.lending) and kv.reservations.most(0) == 3


def test_a_borrower_that_needs_fewer_gives_back_to_its_lender() -> None:
    kv = kv_of((2, 10), (1, 0))
    kv.lending.lend(0, 1, 4, 5)
    kv.lending.resize(1, 3)
    assert list(kv.lending) == [Loan(0, 1, 2)]
    assert (kv.reservations.most(0), kv.reservations.most(1)) == (8, 3)


def test_nobody_lends_what_it_has_not() -> None:
    kv = kv_of((2, 4), (1, 0), (1, 2))
    with pytest.raises(ValueError, match="no 3 blocks to lend"):
        kv.lending.lend(0, 1, 3, 4)
    with pytest.raises(ValueError, match="cannot borrow"):
        kv.lending.lend(0, 2, 1, 3)


def test_a_ledger_that_is_wrong_is_noticed() -> None:
    kv = kv_of((2, 10), (1, 0))
    kv.lending.lend(0, 1, 4, 5)
    kv.reservations.release([1])
    with pytest.raises(LedgerError, match="not both"):
        kv.lending.check()


class LendingMachine(RuleBasedStateMachine):
    """Lenders and borrowers whose predictions mean nothing; two or three steps are in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.kv = KVCache(15, BLOCK, SLOTS, MOST * BLOCK, prefix_cache=False)
        self.computed = np.zeros(SLOTS, np.int32)
        self.running: set[int] = set()
        self.depth, self.step, self.answered = 3, 0, 0

    @property
    def lead(self) -> int:
        return self.depth - 1

    def _leave(self, slots: list[int]) -> None:
        if slots:
            self.kv.release(slots, self.step)
            self.running.difference_update(slots)

    @precondition(lambda self: len(self.running) < SLOTS)
    @rule(length=st.integers(1, 8), predicted=st.integers(1, 50), pick=st.integers(0, SLOTS))
    def join(self, length: int, predicted: int, pick: int) -> None:
        kv, slot = self.kv, next(one for one in range(SLOTS) if one not in self.running)
        now = kv.blocks_for(length)
        most = min(MOST, kv.blocks_for(length + predicted))
        if kv.num_unreserved < now:
            return
        if kv.num_unreserved >= most and pick >= len(self.running):
            kv.allocate(slot, NOTHING_CACHED, now * BLOCK)
            kv.reservations.reserve(slot, most)
        elif self.running and most > now:
            lender = sorted(self.running)[pick % len(self.running)]
            nearest = -(-(int(self.computed[lender]) + 2 + self.lead) // BLOCK)
            if kv.lending.due_block(lender) - (most - now) < nearest:
                return
            if kv.reservations.unheld(lender) < most - now:
                return
            kv.allocate(slot, NOTHING_CACHED, now * BLOCK)
            kv.lending.lend(lender, slot, most - now, most)
        else:
            return
        self.computed[slot] = length - 1
        self.running.add(slot)

    @rule(times=st.integers(1, 12))
    def steps(self, times: int) -> None:
        for _ in range(times):
            self._one_step()

    def _one_step(self) -> None:
        kv = self.kv
        if self.step - self.answered >= self.depth:
            self.answer()
        kv.lending.settle(kv.pool.num_available)
        while late := kv.lending.due(self.computed + 1, self.lead, BLOCK):
            self._leave(late)
        for slot in sorted(self.running):
            held = int(kv.table.held[slot])
            if self.computed[slot] >= held * BLOCK:
                fits = kv.can_append(np.array([slot]))
                waits = not fits and held < kv.lending.num_reserved(slot)
                assert not waits, "a lender waits for a block that it lent"
                if not fits or held == MOST:
                    self._leave([slot])
                    continue
                kv.append_each(np.array([slot]))
            self.computed[slot] += 1
        self.step += 1

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, SLOTS), predicted=st.integers(0, 40))
    def predict(self, which: int, predicted: int) -> None:
        slot = sorted(self.running)[which % len(self.running)]
        blocks = min(MOST, self.kv.blocks_for(int(self.computed[slot]) + 1 + predicted))
        if blocks - self.kv.lending.num_reserved(slot) <= self.kv.num_unreserved:
            self.kv.lending.resize(slot, blocks)

    @precondition(lambda self: self.running)
    @rule(which=st.lists(st.integers(0, SLOTS), min_size=1, max_size=3))
    def leave(self, which: list[int]) -> None:
        running = sorted(self.running)
        self._leave(list(dict.fromkeys(running[one % len(running)] for one in which)))

    @precondition(lambda self: self.answered < self.step)
    @rule()
    def answer(self) -> None:
        self.answered += 1
        self.kv.pool.step_done(self.answered)

    @rule()
    def give_up(self) -> None:
        if len(self.running) == 3:
            self.kv.clear_reservations()
            self._leave(sorted(self.running))

    @invariant()
    def the_ledgers_agree(self) -> None:
        kv, reservations = self.kv, self.kv.reservations
        ledger = kv.pool.check()  # each block has one owner, or none
        kv.lending.check()
        reservations.check(kv.pool.num_available)
        assert ledger.held == int(kv.table.held.sum())
        reserved = sum(kv.lending.num_reserved(slot) for slot in self.running)
        promised = reserved - num_lent(kv) - kv.lending.num_owed
        assert promised == reservations.num_held + reservations.num_unheld
        assert promised <= ledger.total - ledger.fenced


LendingMachine.TestCase.settings = settings(
    max_examples=80, stateful_step_count=30, deadline=None, derandomize=True
)
TestLendingMachine = LendingMachine.TestCase
