"""The expected time of the next step, learned from past steps: the model that policies ask.

It is fitted live, sees no tile effects, and errs: policies plan with it, but no guarantee rests on
it.
"""

from itertools import chain

import numpy as np
import numpy.typing as npt

from daemon.cost.work import StepWork

Float64 = npt.NDArray[np.float64]

_TERMS = 5
_NOTHING = 0, 0  # tokens and pairs of a step without prompts
_WINDOW = 64
_EARLY_FITS = (4, 8, 16, 32)
_SCALE = np.array([1.0, 64.0, 65536.0, 512.0, 2.0**20])
"""Typical sizes of the terms, so that one ridge suits all of them."""
_RIDGE = 1e-3


class StepTimeModel:
    """step_s = base + a*decodes + b*their context + c*prompt tokens + d*prompt pairs.

    Non-negative least squares of the relative error over an exponentially forgetting window. A
    term that was never seen keeps its first value: 0, but for the base and for what a prompt token
    and a row add, which a worker measures before it is ready.
    """

    def __init__(
        self,
        first_step_s: float = 0.0,
        first_token_s: float = 0.0,
        memory: float = 0.99,
        first_row_s: float = 0.0,
    ) -> None:
        self.mean_s = first_step_s
        self.alone = first_step_s, first_token_s  # as the worker measured them; it learns nothing
        self._memory = memory
        self._count = 0
        self._coefficients = np.zeros(_TERMS)
        row_s = min(first_row_s, first_step_s)  # a first step has one row
        first = first_step_s - row_s, row_s * _SCALE[1], first_token_s * _SCALE[3]
        self._coefficients[[0, 1, 3]] = first
        self._terms: tuple[float, ...] = tuple((self._coefficients / _SCALE).tolist())
        self._products = np.zeros((_TERMS, _TERMS))
        self._targets = np.zeros(_TERMS)
        self._window: list[tuple[float, ...]] = []

    def observe(self, work: StepWork, elapsed_s: float) -> None:
        """Learn from a step that took `elapsed_s`."""
        if elapsed_s <= 0.0:
            return
        if work.times > 1:
            work, elapsed_s = work.once, elapsed_s / work.times
        self._count = count = self._count + 1
        share = max(0.02, 1.0 / (count + 1)) if self.mean_s else 1.0
        self.mean_s += share * (elapsed_s - self.mean_s)
        weight = 1.0 / elapsed_s
        tokens, pairs = work.prompts() if work.chunks else _NOTHING
        decodes, context = work.num_decodes * weight, work.decode_context * weight
        self._window.append((weight, decodes, context, tokens * weight, pairs * weight))
        if len(self._window) == _WINDOW or count in _EARLY_FITS:
            self._learn()

    @property
    def fits_next(self) -> bool:
        """Whether the next step that it learns from changes its terms."""
        return len(self._window) + 1 == _WINDOW or self._count + 1 in _EARLY_FITS

    @property
    def terms(self) -> tuple[float, ...]:
        """(base, a, b, c, d), as learned so far."""
        return self._terms

    @property
    def num_observed(self) -> int:
        """The number of steps that it has learned from."""
        return self._count

    def predict_s(self, work: StepWork) -> float:
        """Expected time of a step."""
        if work.times > 1:
            return work.times * self.predict_s(work.once)
        base, a, b, c, d = self._terms
        if not work.chunks:
            return base + a * work.num_decodes + b * work.decode_context
        tokens, pairs = work.prompts()
        return base + a * work.num_decodes + b * work.decode_context + c * tokens + d * pairs

    def prefill_s(self, num_tokens: int) -> float:
        """Expected time of a step that computes one whole prompt (ALISE eq. 4's T_pre)."""
        base, _, _, c, d = self._terms
        return base + c * num_tokens + d * (num_tokens * num_tokens)

    def chunk_s(self, num_tokens: int) -> float:
        """The time that `num_tokens` of a prompt add to a step that runs anyway."""
        return self.prefill_s(num_tokens) - self._terms[0]

    def drain_s(
        self, num_steps: float, num_decodes: int, context: int, num_prompt_tokens: int
    ) -> float:
        """Expected time of `num_steps` that compute all these together; prompts are short beside
        the tokens they attend to.
        """
        base, a, b, c, _ = self._terms
        return base * num_steps + a * num_decodes + b * context + c * num_prompt_tokens

    def decode_s(self, num_decodes: int, context: int) -> float:
        """Expected time of a step of decodes alone, which attend to `context` tokens together."""
        return self.predict_s(StepWork(num_decodes, context))

    def alone_s(self, num_prompt_tokens: int, num_output_tokens: int) -> float:
        """The time of such an answer on an idle machine, as the worker measured it before it was
        ready (EcoServe's t_p + t_g x l, section 4); 0: not measured.
        """
        step_s, token_s = self.alone
        return step_s * (1 + num_output_tokens) + token_s * num_prompt_tokens

    @property
    def decode_terms(self) -> tuple[float, float, float]:
        """The time of a decode step: its base, per decode, and per token of the context."""
        return self._terms[0], self._terms[1], self._terms[2]

    def saturating_tokens(self, most: int) -> int:
        """The length of a prompt, up to `most`, that takes as long as a step's base: longer prompts
        keep the device busy alone (the L_m of DistServe, section 3.1).
        """
        base, _, _, c, d = self._terms
        if c <= 0.0 and d <= 0.0:
            return most
        root = (c * c + 4.0 * d * base) ** 0.5
        return max(1, min(most, int(2.0 * base / (c + root))))

    def state(self) -> tuple[float, ...]:
        """The learned state, as plain numbers."""
        return (
            self.mean_s,
            self._memory,
            float(self._count),
            *self._coefficients.tolist(),
            *self._products.ravel().tolist(),
            *self._targets.tolist(),
            *chain.from_iterable(self._window),
        )

    @classmethod
    def restored(
        cls, state: tuple[float, ...], alone: tuple[float, float] = (0.0, 0.0)
    ) -> "StepTimeModel":
        """The model with this `state` and `alone`."""
        numbers = np.array(state)
        model = cls(state[0], memory=state[1])
        model.alone = alone
        model._count = int(state[2])
        sizes = np.cumsum([3, _TERMS, _TERMS * _TERMS, _TERMS])
        _, coefficients, products, targets, window = np.split(numbers, sizes)
        model._coefficients = coefficients
        model._terms = tuple((coefficients / _SCALE).tolist())
        model._products = products.reshape(_TERMS, _TERMS)
        model._targets = targets
        model._window = [tuple(row) for row in window.reshape(-1, _TERMS).tolist()]
        return model

    def _learn(self) -> None:
        rows = np.array(self._window) / _SCALE
        decay = self._memory ** len(self._window)
        self._products = decay * self._products + rows.T @ rows
        self._targets = decay * self._targets + rows.sum(axis=0)
        self._window.clear()
        ridge = _RIDGE * max(float(np.trace(self._products)), 1e-30) / _TERMS
        products = self._products + ridge * np.eye(_TERMS)
        targets = self._targets + ridge * self._coefficients
        self._coefficients = _non_negative(products, targets)
        self._terms = tuple((self._coefficients / _SCALE).tolist())


def _non_negative(
    products: "np.ndarray[tuple[int, int], np.dtype[np.float64]]",
    targets: "np.ndarray[tuple[int], np.dtype[np.float64]]",
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Solve the normal equations; terms that would be negative are left out, the worst first."""
    kept = np.arange(targets.size)
    while kept.size:
        found = np.linalg.solve(products[np.ix_(kept, kept)], targets[kept])
        if found.min() >= 0.0:
            break
        kept = np.delete(kept, int(found.argmin()))
    result = np.zeros(targets.size)
    if kept.size:
        result[kept] = found
    return result
