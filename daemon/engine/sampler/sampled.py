"""The sampled tokens: on the device at once, on the host when the device is done."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from daemon.engine.sampler.logprobs import Scores
from daemon.protocol.worker import Logprobs
from daemon.wire.columns import Bools


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """R sampled tokens on the host, and the log-probabilities asked for."""

    tokens: npt.NDArray[np.int32]  # [R]
    logprobs: Logprobs | None
    broken: npt.NDArray[np.intp]  # rows whose logits leave no token; theirs is 0


@dataclass(frozen=True, slots=True)
class Sampled:
    """R sampled tokens; the device may not be done yet."""

    chosen: torch.Tensor  # int64 [2, R], on the device: tokens, and 1 for rows that are broken
    _copy: torch.Tensor  # the same on the host
    _scores: Scores | None
    kept: Bools | None = None  # [R]: which count, where rows were drafted; None: all

    @property
    def tokens(self) -> torch.Tensor:
        """int64 [R], on the device."""
        return self.chosen[0]

    def read(self) -> SampledTokens:
        """The tokens on the host; only once the device is done with what `sample` queued."""
        tokens, broken = self._copy.numpy()
        logprobs = None if self._scores is None else self._scores.read()
        return SampledTokens(tokens.astype(np.int32), logprobs, broken.nonzero()[0])
