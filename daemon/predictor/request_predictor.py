"""A predictor, what it reads of a prompt, and the requests whose endings it awaits."""

import logging
import random
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

import msgspec

from daemon.config.schema import PredictConfig
from daemon.length_models.errors import PredictorError
from daemon.length_models.features import features
from daemon.length_models.prediction import Asked, Float32, Prediction
from daemon.length_models.registry import length_predictor, uses_vectors
from daemon.predictor.keeper import Keeper
from daemon.protocol.predictor import Ask, Ended

if TYPE_CHECKING:
    from daemon.predictor.encoder import Encoder

log = logging.getLogger(__name__)


class RequestPredictor:
    """Turns asks into predictions, and endings into rows of the store."""

    def __init__(self, config: PredictConfig, keeper: Keeper) -> None:
        """Loads the encoder where the kind needs vectors. Raises EncoderError, PredictorError."""
        predictor = length_predictor(config.kind, keeper.store)
        if predictor is None:
            raise PredictorError(f"there is nothing to predict with kind {config.kind!r}")
        self._predictor = predictor
        self._keeper = keeper
        self._encoder = _encoder() if uses_vectors(config.kind) else None
        self._open: dict[int, tuple[Ask, Asked]] = {}

    def vectors(self, asks: Sequence[Ask]) -> Iterator[Float32 | None]:
        """The vector of each prompt, encoded several together; None where the kind needs none, or
        where the encoder fails.
        """
        if self._encoder is not None:
            try:
                yield from self._encoder.each([ask.text for ask in asks])
            except Exception:
                log.exception("prompts cannot be encoded")
        yield from repeat(None)

    def predict(self, ask: Ask, vector: Float32 | None) -> Prediction:
        """How long the answer will be; `vector` is one of `vectors`."""
        self._keeper.tick()
        asked = _read(ask, vector)
        said = self._predictor.predict(asked)
        self._open[ask.request] = (ask, msgspec.structs.replace(asked, guess=said.guess))
        return said

    def learn(self, ended: Ended) -> None:
        """Learn from a finished request, unless it was aborted or never asked about."""
        found = self._open.pop(ended.request, None)
        if found is None or not ended.num_output_tokens:
            return
        ask, asked = found
        self._keeper.tick()
        self._predictor.observe(asked, ended.num_output_tokens)
        self._keeper.learned(ask, ended.num_output_tokens)


def _read(ask: Ask, vector: Float32 | None) -> Asked:
    """The request as predictors see it. Features are cheap; later kinds learn from them."""
    return Asked(
        num_prompt_tokens=ask.num_prompt_tokens,
        max_tokens=ask.max_tokens,
        features=features(ask.text),
        vector=vector,
        truth=ask.max_tokens,  # of answers that ignore their end; only `noisy` looks at it
        chance=random.gauss(),
    )


def _encoder() -> "Encoder":
    from daemon.predictor.encoder import Encoder  # brings torch along: seconds

    return Encoder()
