"""Trust in the predictor: whether its predictions are followed, by length of prompt."""

from collections import deque
from math import fsum

import msgspec

WINDOW = 48
"""The number of newest answers that a verdict is about."""

LOST_BELOW, REGAINED_FROM = 0.6, 0.7
"""Shares of pairs in the right order; a half is chance. An answer moves the mean by 1 / WINDOW at
most, so that no verdict changes twice within fewer than WINDOW / 10 answers."""

CLAIM = 1.25
"""Two predictions that differ by a smaller factor claim no order that matters."""

_COMPARED = 8
_FIRST_SHARE = 0.75

Pair = tuple[int, int]  # (predicted, true)


class VerdictState(msgspec.Struct, frozen=True, array_like=True):
    """One verdict as plain values."""

    prompt: int  # the class; -1: over all
    holds: bool
    votes: list[float]
    latest: list[Pair]


class OrderVerdict:
    """Whether predictions put answers into the right order.

    Each answer is compared with the last few, and votes with the share of pairs that are in the
    predicted order; it does not vote where there is no such pair.
    """

    def __init__(self) -> None:
        self.holds = True
        self.votes: deque[float] = deque(maxlen=WINDOW)
        self.latest: deque[Pair] = deque(maxlen=_COMPARED)

    @property
    def full(self) -> bool:
        """Whether enough answers voted."""
        return len(self.votes) == WINDOW

    @property
    def share(self) -> float:
        """The mean of the votes, of which there is at least one."""
        return fsum(self.votes) / len(self.votes)

    def observe(self, pair: Pair) -> None:
        """Learn from an answer that ended."""
        predicted, true = pair
        agree = [
            (predicted < other_predicted) == (true < other_true)
            for other_predicted, other_true in self.latest
            if true != other_true
            and (predicted > other_predicted * CLAIM or other_predicted > predicted * CLAIM)
        ]  # of pairs predicted to differ by enough, which do differ
        self.latest.append(pair)
        if not agree:
            return
        self.votes.append(sum(agree) / len(agree))
        if self.full:
            self.holds = self.share >= (LOST_BELOW if self.holds else REGAINED_FROM)

    def state(self, prompt: int) -> VerdictState:
        """The learned state, as plain values."""
        return VerdictState(prompt, self.holds, list(self.votes), list(self.latest))

    @classmethod
    def restored(cls, state: VerdictState) -> "OrderVerdict":
        """The verdict with this `state`."""
        verdict = cls()
        verdict.holds = state.holds
        verdict.votes.extend(state.votes)
        verdict.latest.extend(state.latest)
        return verdict


class PredictorTrust:
    """One verdict over all answers, and one for each class of prompts: a power of two of length.

    Where predictions are not trusted, schedulers ignore them: an adversary that calls long answers
    short would otherwise make them first. A class follows the verdict over
    all until its own window is full, and begins with what that says then.
    """

    def __init__(self) -> None:
        self._over_all = OrderVerdict()
        self._over_all.votes.extend([_FIRST_SHARE] * WINDOW)
        self._classes: dict[int, OrderVerdict] = {}

    def holds(self, num_prompt_tokens: int) -> bool:
        """Whether to follow predictions for prompts of such a length."""
        return self._verdict(num_prompt_tokens.bit_length()).holds

    def observe(self, num_prompt_tokens: int, predicted: int, true: int) -> bool:
        """Learn from an answer; whether trust in predictions for any prompts has changed."""
        prompt = num_prompt_tokens.bit_length()
        before = self._over_all.holds, self._verdict(prompt).holds
        self._over_all.observe((predicted, true))
        own = self._classes.get(prompt)
        if own is None:
            own = self._classes[prompt] = OrderVerdict()
        if not own.full:
            own.holds = self._over_all.holds
        own.observe((predicted, true))
        return before != (self._over_all.holds, self._verdict(prompt).holds)

    def _verdict(self, prompt: int) -> OrderVerdict:
        own = self._classes.get(prompt)
        return own if own is not None and own.full else self._over_all

    def state(self) -> list[VerdictState]:
        """The learned state, as plain values; the verdict over all comes first."""
        classes = [verdict.state(prompt) for prompt, verdict in self._classes.items()]
        return [self._over_all.state(-1), *classes]

    @classmethod
    def restored(cls, state: list[VerdictState]) -> "PredictorTrust":
        """The trust with this `state`."""
        trust = cls()
        trust._over_all, *classes = map(OrderVerdict.restored, state)
        trust._classes = {
            written.prompt: own for written, own in zip(state[1:], classes, strict=True)
        }
        return trust

    def older(self) -> tuple[float, list[Pair]]:
        """The verdict over all as older journals have it, which have no other."""
        return self._over_all.share, list(self._over_all.latest)

    @classmethod
    def of_older(cls, state: tuple[float, list[Pair]]) -> "PredictorTrust":
        """Trust as an older journal has it: a window of the share that it says."""
        share, latest = state
        verdict = VerdictState(-1, share >= LOST_BELOW, [share] * WINDOW, latest)
        return cls.restored([verdict])
