"""What the next step will take, learned from the steps that were."""


class StepTimeModel:
    """step_s = base + per_token * num_tokens, fitted by exponentially forgetting least squares.

    Enough to choose the steps in flight and to estimate a wait; it sees neither tile effects nor
    attention's growth with context.
    """

    def __init__(self, first_step_s: float = 0.0, memory: float = 0.98) -> None:
        self._memory = memory
        self._weight = 1.0 if first_step_s > 0.0 else 0.0
        self._mean_tokens = 1.0
        self._mean_s = first_step_s
        self._variance = 0.0
        self._covariance = 0.0

    @property
    def mean_s(self) -> float:
        """Smoothed time of a step; 0 before any was seen."""
        return self._mean_s

    @property
    def per_token_s(self) -> float:
        """Marginal time of one more token in a step."""
        if self._variance > 1e-9:
            return max(0.0, self._covariance / self._variance)
        return self._mean_s / self._mean_tokens if self._mean_tokens else 0.0

    def observe(self, num_tokens: int, elapsed_s: float) -> None:
        """Learn from a step that took `elapsed_s`."""
        self._weight = self._memory * self._weight + 1.0
        share = 1.0 / self._weight
        token_offset = num_tokens - self._mean_tokens
        self._mean_tokens += share * token_offset
        self._mean_s += share * (elapsed_s - self._mean_s)
        rest = num_tokens - self._mean_tokens
        self._variance += share * (token_offset * rest - self._variance)
        self._covariance += share * (token_offset * (elapsed_s - self._mean_s) - self._covariance)

    def predict_s(self, num_tokens: int) -> float:
        """Expected time of a step of `num_tokens`."""
        return max(0.0, self._mean_s + self.per_token_s * (num_tokens - self._mean_tokens))
