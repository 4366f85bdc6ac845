"""Drafts of a simulated run: how many there are behind each token, and how many are accepted.

Both depend on the answer's tokens alone, so they hold under any schedule. A journal has them where
its daemon looked for drafts and tried them; a scenario has a stated model instead.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from daemon.core.values.actions import Submit
from daemon.lab.simulator.scenario import ScenarioError
from daemon.runtime.lookup import GROWTH, LEAST_MATCH, MOST_MATCH, MOST_TOKENS
from daemon.wire.columns import Int32, Int64, int32

_NONE = int32()
_STATED = "drafts must be SHARE:LENGTH, such as 0.3:20: the share of tokens in quotes, below 1, "
_STATED += "and the mean tokens of a quote, at least 1; got {!r}"


class Drafts(Protocol):
    """The drafts of every answer. A length is that of prompt and answer so far."""

    def offer(self, sequence: int, length: int) -> int:
        """Drafts that can be made behind the first `length` tokens of a sequence."""

    def accepted(self, sequence: int, length: int, num_drafts: int) -> int:
        """The first drafts there that are accepted, of `num_drafts`."""


@dataclass(slots=True)
class RecordedDrafts:
    """The drafts of a journal, by sequence and length.

    Drafts that the daemon could have made and did not try are accepted with the chance that those
    it tried had; where it did not look for any there are none.
    """

    offers: dict[tuple[int, int], int] = field(default_factory=dict)
    right: dict[tuple[int, int], int] = field(default_factory=dict)
    num_accepted: int = 0
    num_tried: int = 0

    def offered(self, sequence: int, length: int, count: int) -> None:
        """Note that `count` could be made there."""
        if count:
            self.offers[sequence, length] = count

    def tried(self, sequence: int, length: int, num_drafts: int, num_accepted: int) -> None:
        """Note what became of drafts; those behind fewer of their tokens would fare alike."""
        offer = max(num_drafts, self.offer(sequence, length))
        self.num_accepted += num_accepted
        self.num_tried += min(num_accepted + 1, num_drafts)
        for token in range(num_accepted + (num_accepted < num_drafts)):
            self.right[sequence, length + token] = num_accepted - token
            self.offers.setdefault((sequence, length + token), offer - token)

    def of(self, numbers: dict[int, int]) -> "RecordedDrafts":
        """The same under other sequences: `numbers` has the new one of each that is kept."""
        offers, right = (
            {
                (numbers[sequence], length): count
                for (sequence, length), count in known.items()
                if sequence in numbers
            }
            for known in (self.offers, self.right)
        )
        return RecordedDrafts(offers, right, self.num_accepted, self.num_tried)

    def offer(self, sequence: int, length: int) -> int:
        """As the journal says."""
        return self.offers.get((sequence, length), 0)

    def accepted(self, sequence: int, length: int, num_drafts: int) -> int:
        """As the journal says, or by chance."""
        known = self.right.get((sequence, length))
        if known is None:
            share = self.num_accepted / self.num_tried if self.num_tried else 0.0
            draws = np.random.default_rng((sequence, length)).random(num_drafts)
            known = int((draws < share).cumprod().sum())
        return min(known, num_drafts)


class QuotedDrafts:
    """Stated drafts: each answer quotes now and then, and drafts are accepted to a quote's end.

    Quotes and what is between them have geometric lengths. Drafts are as many as prompt lookup
    makes of the quote's tokens so far, and none elsewhere.
    """

    def __init__(self, share: float, length: float, seed: int) -> None:
        """`share` of all tokens are in quotes, of `length` tokens in the mean."""
        self._chances = min(1.0, share / (length * (1.0 - share))), 1.0 / length
        self._seed = seed
        self._edges: dict[int, tuple[np.random.Generator, list[int]]] = {}

    def _quote(self, sequence: int, length: int) -> tuple[int, int]:
        """(first token, end) of the quote that the token before `length` is in; (0, 0): none."""
        if sequence not in self._edges:
            self._edges[sequence] = np.random.default_rng((self._seed, sequence)), [0]
        chance, edges = self._edges[sequence]
        while edges[-1] < length:
            edges.extend(edges[-1] + chance.geometric(self._chances).cumsum())
        place = bisect_right(edges, length - 1)
        return (edges[place - 1], edges[place]) if place % 2 == 0 else (0, 0)

    def offer(self, sequence: int, length: int) -> int:
        """As many as a match of the quote's tokens so far gives."""
        begin, end = self._quote(sequence, length)
        match = min(length - begin, MOST_MATCH)
        return min(MOST_TOKENS, GROWTH * (match - 1)) if end and match >= LEAST_MATCH else 0

    def accepted(self, sequence: int, length: int, num_drafts: int) -> int:
        """Those within the quote."""
        _, end = self._quote(sequence, length)
        return min(num_drafts, max(0, end - length))


def stated(text: str, seed: int) -> QuotedDrafts | None:
    """The drafts of `SHARE:LENGTH`; None for "". Raises ScenarioError."""
    if not text:
        return None
    try:
        share, length = map(float, text.split(":"))
    except ValueError:
        raise ScenarioError(_STATED.format(text)) from None
    if not (0.0 < share < 1.0 <= length < float("inf")):
        raise ScenarioError(_STATED.format(text))
    return QuotedDrafts(share, length, seed)


class Lookup:
    """The runtime's part in drafts: it says with each answer how many could be made."""

    def __init__(self, drafts: Drafts) -> None:
        self._drafts = drafts
        self._sent: dict[tuple[int, int], tuple[Int64, Int32]] = {}

    def sent(self, action: Submit, counts: Int32) -> None:
        """Note a plan, whose rows will sample these numbers of tokens; empty: one each."""
        batch = action.batch
        lengths = (batch.starts + batch.counts)[batch.samples.view(bool)]
        sampled = counts if counts.size else np.int32(1)
        self._sent[batch.instance, batch.step] = action.sequences, lengths + sampled

    def offers(self, instance: int, step: int, looks: bool) -> Int32:
        """The drafts that could be made behind each row of a plan that answers [R]; empty: none, or
        the runtime does not look.
        """
        sequences, lengths = self._sent.pop((instance, step))
        if not looks:
            return _NONE
        rows = zip(sequences.tolist(), lengths.tolist(), strict=True)
        found = int32([self._drafts.offer(sequence, length) for sequence, length in rows])
        return found if found.any() else _NONE
