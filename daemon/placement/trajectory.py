"""Trajectories: an instance's held tokens and step times until all its sequences have ended.

All grow by a token a step until each ends. So memory is fullest just before a sequence ends,
and between two ends the time of a step grows with what is attended to.
"""

import numpy as np
import numpy.typing as npt

from daemon.cost.step_time import Float64


class Trajectory:
    """The trajectory of sequences with `known` tokens that end after `left` steps; [..., n], of
    many instances at once. A sequence of no tokens and no steps left is none.
    """

    def __init__(self, known: npt.NDArray[np.int32], left: npt.NDArray[np.int32]) -> None:
        order, num = left.argsort(axis=-1, kind="stable"), left.shape[-1]
        if left.ndim > 1 and left.size:
            order += np.arange(0, left.size, num).reshape(*left.shape[:-1], 1)
        self._flat = order
        ends = left.take(self._flat).astype(np.float64)
        sizes = known.take(self._flat)
        self.ends: Float64 = ends  # in steps, ascending
        behind = sizes[..., ::-1].cumsum(axis=-1, dtype=np.float64)[..., ::-1]
        self.counts: Float64 = np.arange(left.shape[-1], 0, -1, dtype=np.float64)  # until each end
        self._held_now: Float64 = behind  # by sequences that end then or later
        self.at_ends: Float64 = behind + self.counts * ends  # tokens, just before each

    @property
    def peaks(self) -> Float64:
        """The most tokens that they ever hold together; [...]."""
        most: Float64 = self.at_ends.max(axis=-1, initial=0.0)
        return most

    def after_ends(self) -> Float64:
        """Tokens that are held just after each end."""
        after: Float64 = self.at_ends.copy()
        after[..., :-1] = self._held_now[..., 1:] + self.counts[1:] * self.ends[..., :-1]
        after[..., -1:] = 0.0
        return after

    def ends_s(self, base_s: Float64, row_s: Float64, context_s: Float64) -> Float64:
        """The expected time of each end from now. A step takes `base_s`, `row_s` for each decode
        and `context_s` for each token attended to; [..., 1].
        """
        before = np.empty_like(self.ends)
        before[..., :1] = 0.0
        before[..., 1:] = self.ends[..., :-1]
        context = self._held_now + self.counts * (before + self.ends) * 0.5
        steps_s = base_s + row_s * self.counts + context_s * context
        expected: Float64 = ((self.ends - before) * steps_s).cumsum(axis=-1)
        return expected

    def in_place(self, of_ends: Float64) -> Float64:
        """Values of the ends, in the order in which the sequences were given."""
        placed = np.empty(of_ends.shape)
        placed.reshape(-1)[self._flat] = of_ends
        return placed
