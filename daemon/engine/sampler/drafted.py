"""Drafts as a sampler sees them: rows that continue the row before if it samples their token."""

from dataclasses import dataclass

import numpy as np

from daemon.wire.columns import Bools, Int64


@dataclass(frozen=True, slots=True)
class Drafted:
    """Drafted tokens of R sampled rows; the rows of a sequence follow each other."""

    expected: Int64  # [R]: the token that the next row computes; -1: none
    is_end: Bools  # [R]: whether that token would end the sequence: nothing behind it counts
    firsts: Bools  # [R]: whether a row is its sequence's first

    def kept(self, tokens: Int64, broken: Bools) -> Bools:
        """Which draws [R] count: each first one, and those before which all were as expected. A
        `broken` one counts as a first alone, since only then it is reported.
        """
        missed = np.cumsum((tokens != self.expected) | self.is_end | broken)
        before = np.concatenate([[0], missed[:-1]])
        since = before[self.firsts][np.cumsum(self.firsts) - 1]
        kept: Bools = (before == since) & (self.firsts | ~broken)
        return kept
