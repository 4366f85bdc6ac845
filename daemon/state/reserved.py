"""An instance's reservations for answers, as viewers are shown them."""

import msgspec

MAX_LOANS_SHOWN = 64
MAX_GROUPS_SHOWN = 12


class LoanStatus(msgspec.Struct, frozen=True, array_like=True):
    """A sequence that lends reserved blocks, borrows some, or both."""

    sequence: int
    host: int  # the lender, a sequence; -1: none
    num_borrowed: int  # blocks, here and below
    due_token: int  # of its lender, by which it has to leave; -1: it borrows nothing
    num_tokens: int  # of its own; its loans are due in tokens from there on
    num_held: int
    num_reserved: int  # in all: what it may hold, what it lends, what it is owed
    num_lent: int


class LendingStatus(msgspec.Struct, frozen=True):
    """The loans of an instance's reserved blocks."""

    num_hosts: int = 0
    num_loans: int = 0
    num_blocks: int = 0  # that are lent
    num_owed: int = 0  # left by borrowers, while steps in flight still name them
    shown: tuple[LoanStatus, ...] = ()
    """At most 64: each lender, then its borrowers, the first due first; likewise a borrower
    that lends itself. First come the lenders whose loans are due in the fewest tokens."""


class GroupStatus(msgspec.Struct, frozen=True, array_like=True):
    """Answers of the same predicted length, padded, which begin together where they can."""

    num_tokens: int  # of this length
    num_begun: int
    num_ready: int  # that wait for room


class PeakStatus(msgspec.Struct, frozen=True):
    """The most blocks that all begun answers are expected to hold together."""

    num_blocks: int
    num_steps: int  # until then


class ReservedStatus(msgspec.Struct, frozen=True):
    """An instance's reservations for answers, where its policy makes them by predictions."""

    ready: int = 0  # answers that hold the KV of their prompts, and wait for room
    ready_blocks: int = 0  # that these hold
    num_groups: int = 0
    groups: tuple[GroupStatus, ...] = ()  # at most 12, the largest first; none where none are made
    lending: LendingStatus | None = None  # None: the policy lends nothing
    peak: PeakStatus | None = None  # None: the policy does not pack by it
