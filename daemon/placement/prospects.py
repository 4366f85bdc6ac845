"""Prospects: the next seconds of several instances, played at once, with a newcomer and without."""

from collections.abc import Sequence as Listing
from functools import cached_property

import numpy as np

from daemon.cost.step_time import Float64
from daemon.placement.base import Candidate, Newcomer
from daemon.placement.trajectory import Trajectory

_NOW, _THEN = range(2)


class Prospects:
    """Of K instances: who is there now, running or waiting, and the same with the newcomer.

    Rows are instances. A column is a sequence: those that run, those that wait, the newcomer last.
    """

    def __init__(self, newcomer: Newcomer, candidates: Listing[Candidate]) -> None:
        there = [(one.members, one.queued[0], one.queued[1]) for one in candidates]
        width = 1 + max(members.known.size + known.size for members, known, _ in there)
        shape = len(there), width
        known, left = np.zeros((2, *shape), np.int32), np.zeros((2, *shape), np.int32)
        self._outputs, first_s = np.zeros(shape, np.int32), np.full(shape, np.inf)
        for row, (members, waiting, waiting_left) in enumerate(there):
            size = members.known.size
            known[:, row, :size], left[:, row, :size] = members.known, members.left
            self._outputs[row, :size], first_s[row, :size] = members.outputs, members.first_s
            if waiting.size:
                end = size + waiting.size
                known[:, row, size:end], left[:, row, size:end] = waiting, waiting_left
        known[_THEN, :, -1], left[_THEN, :, -1] = newcomer.num_tokens, newcomer.num_left
        self.num_waiting_tokens = [int(waiting.sum()) for _, waiting, _ in there]
        self._num_running = [members.known.size for members, *_ in there]
        self._known, self._left = known[_NOW], left[_NOW]
        self._since_s = np.maximum(newcomer.now - first_s, 0.0)
        self._candidates = candidates
        self._terms = np.array([one.step_time.decode_terms for one in candidates]).T[..., None]
        self._all = Trajectory(known, left)
        self._when_s = self._all.in_place(self._all.ends_s(*self._terms))

    @property
    def life_s(self) -> list[float]:
        """How long the newcomer's answer takes at each, once it begins."""
        lives: list[float] = self._when_s[_THEN, :, -1].tolist()
        return lives

    def tpots_s(self, stall_s: Float64, added_s: Float64) -> tuple[Float64, Float64]:
        """(times per token now, and with the newcomer; 1 for each that draws tokens): over their
        whole answers, where prompts take `stall_s`, its own `added_s`; [2, K, n] and [K, n].
        """
        whole_s: Float64 = self._when_s + (self._since_s + stall_s[:, None])
        whole_s[_THEN] += added_s[:, None]
        whole_s /= np.maximum(self._outputs + self._left, 1)
        return whole_s, (self._outputs > 0).astype(np.float64)

    def more_excess(self) -> list[float]:
        """By how many tokens more memory falls short with the newcomer, at each."""
        found = []
        for one, now, then in zip(self._candidates, *self._all.peaks.tolist(), strict=True):
            most = one.capacity_tokens
            if then > most:
                most += one.shared_tokens
            found.append(max(0.0, then - most) - max(0.0, now - most))
        return found

    def mean_tokens(self, row: int) -> float:
        """What a sequence that runs has, on average."""
        held = float(self._all.at_ends[_THEN, row, 0])
        return max(1.0, held / (self._num_running[row] + 1))

    def room_s(self, row: int, needed: int, free: int, lacking_slots: int, share: float) -> float:
        """When so many tokens are free at an instance, of which some are, and so many slots.

        `share`: how many of its pools they would fill beyond the first.
        """
        size = self._num_running[row]
        if not size or (needed <= free and lacking_slots <= 0):
            return 0.0
        ends_s, after = (each[row] for each in self._ends)
        last_s, room_s = float(ends_s[-1]), 0.0
        if needed > free:
            enough = after >= needed
            first = int(enough.argmax())
            room_s = float(ends_s[first]) if enough[first] else last_s * (1.0 + share)
        if lacking_slots > 0:
            turns, index = divmod(lacking_slots - 1, size)
            room_s = max(room_s, turns * last_s + float(ends_s[index - size]))
        return room_s

    @cached_property
    def _ends(self) -> tuple[Float64, Float64]:
        """Of those that run alone: (when each ends, the tokens of the pool that are free then)."""
        runs = np.arange(self._known.shape[1]) < np.array(self._num_running)[:, None]
        running = Trajectory(self._known * runs, self._left * runs)
        sizes = np.array([one.capacity_tokens for one in self._candidates])
        free = sizes[:, None] - running.after_ends()
        return running.ends_s(*self._terms), free
