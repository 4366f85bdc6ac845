"""Prospects: the next seconds of several instances, played at once, with a newcomer and without."""

from collections.abc import Sequence as Listing

import numpy as np
import numpy.typing as npt

from daemon.cost.step_time import Float64
from daemon.placement.base import Candidate, Newcomer
from daemon.placement.trajectory import Trajectory

_RUNNING, _NOW, _THEN = range(3)


class Prospects:
    """Of K instances: who runs, with those that wait, and with the newcomer too.

    Rows are instances. A column is a sequence: those that run, those that wait, the newcomer last.
    """

    def __init__(self, newcomer: Newcomer, candidates: Listing[Candidate]) -> None:
        there = [(one.members, one.queued) for one in candidates]
        width = 1 + max(members.known.size + known.size for members, (known, _) in there)
        shape = len(there), width
        known, left = np.zeros((3, *shape), np.int32), np.zeros((3, *shape), np.int32)
        self.outputs = np.zeros(shape, np.int32)
        first_s = np.full(shape, np.inf)
        queued = []
        for row, (members, (waiting, waiting_left)) in enumerate(there):
            size = members.known.size
            end = size + waiting.size
            known[:, row, :size], left[:, row, :size] = members.known, members.left
            known[_NOW:, row, size:end], left[_NOW:, row, size:end] = waiting, waiting_left
            self.outputs[row, :size] = members.outputs
            first_s[row, :size] = members.first_s
            queued.append(int(waiting.sum()))
        self._since_s = np.maximum(newcomer.now - first_s, 0.0)
        known[_THEN, :, -1], left[_THEN, :, -1] = newcomer.num_tokens, newcomer.num_left
        self.num_waiting_tokens = queued
        self._left = left[_RUNNING]
        self._all = Trajectory(known, left)
        terms = np.array([one.step_time.decode_terms for one in candidates])
        self._ends_s = self._all.ends_s(*(terms[None, :, i, None] for i in range(3)))
        self._when_s = self._all.in_place(self._ends_s)
        sizes = [one.capacity_tokens for one in candidates]
        self._after = np.array(sizes)[:, None] - self._all.after_ends()[_RUNNING]

    @property
    def life_s(self) -> list[float]:
        """How long the newcomer's answer takes at each, once it begins."""
        lives: list[float] = self._when_s[_THEN, :, -1].tolist()
        return lives

    def tpots_s(self, stall_s: Float64, added_s: Float64) -> tuple[Float64, Float64, Float64]:
        """(times per token of those that run, the same with the newcomer, 1 for each that draws
        tokens): over their whole answers, where prompts take `stall_s`, its own `added_s`; [K, n].
        """
        gone_s = self._since_s + stall_s[:, None]
        counts = np.maximum(self.outputs + self._left, 1)
        now_s = (self._when_s[_NOW] + gone_s) / counts
        then_s = (self._when_s[_THEN] + gone_s + added_s[:, None]) / counts
        return now_s, then_s, (self.outputs > 0).astype(np.float64)

    def more_excess(self, most: npt.NDArray[np.int64]) -> Float64:
        """By how many tokens more the memory of `most` falls short with the newcomer; [K]."""
        excess = np.maximum(self._all.peaks - most, 0.0)
        more: Float64 = excess[_THEN] - excess[_NOW]
        return more

    def mean_tokens(self, row: int) -> float:
        """What a sequence that runs has, on average."""
        held, count = self._all.at_ends[_THEN, row, 0], int((self._left[row] > 0).sum())
        return max(1.0, float(held) / (count + 1))

    def room_s(self, row: int, needed: int, free: int, lacking_slots: int, share: float) -> float:
        """When so many tokens are free at an instance, of which some are, and so many slots.

        `share`: how many of its pools they would fill beyond the first.
        """
        ends_s = self._ends_s[_RUNNING, row]
        size = int((self._left[row] > 0).sum())
        if not size:
            return 0.0
        last_s, room_s = float(ends_s[-1]), 0.0
        if needed > free:
            enough = self._after[row] >= needed
            first = int(enough.argmax())
            room_s = float(ends_s[first]) if enough[first] else last_s * (1.0 + share)
        if lacking_slots > 0:
            turns, index = divmod(lacking_slots - 1, size)
            room_s = max(room_s, turns * last_s + float(ends_s[index - size]))
        return room_s
