"""Predictors by the names that flags and configuration use."""

from collections.abc import Callable

from daemon.base.nearest import did_you_mean, not_one_of
from daemon.length_models.adversary import Adversary
from daemon.length_models.conditional_mean import ConditionalMean
from daemon.length_models.errors import PredictorError
from daemon.length_models.feature_model import FeatureModel
from daemon.length_models.learned import Learned
from daemon.length_models.mlp import Mlp
from daemon.length_models.noisy import Noisy
from daemon.length_models.oracle import Oracle
from daemon.length_models.prediction import Predictor
from daemon.length_models.ranges import GRANULARITIES, Ranges
from daemon.length_models.retrieval import Retrieval
from daemon.length_models.stand_in import StandIn
from daemon.length_models.store import VectorStore

LIVE = ("none", "mean", "features", "mlp", "retrieval", "ranges")
"""The predictors that a daemon, which does not know the truth, can run.

`ranges:TOKENS` has ranges of another granularity. To measure what predictions are worth, a daemon
also takes `noisy:SIGMA`: its truth is the request's limit, which is the length of an answer that
ignores its end.
"""

VECTOR_KINDS = frozenset({"mlp", "retrieval", "ranges"})
"""The predictors that use the prompt's embedding, where there is one; without what may follow a
colon."""

CHOICES = (
    "none, mean, features, mlp, retrieval, ranges, ranges:TOKENS, stand-in, oracle, noisy:SIGMA or "
    "adversary"
)
"""For help texts and messages."""

_MAKERS: dict[str, Callable[[VectorStore], Predictor]] = {
    "mean": ConditionalMean,
    "features": lambda store: Learned(store, FeatureModel(store)),
    "mlp": lambda store: Learned(store, Mlp(store)),
    "retrieval": lambda store: Learned(store, Retrieval(store, Mlp(store))),
    "ranges": lambda store: Learned(store, Ranges(store)),
    "stand-in": lambda store: StandIn(),
    "oracle": lambda store: Oracle(),
    "adversary": lambda store: Adversary(),
}


KINDS = ("none", *_MAKERS, "noisy")
"""The simulator's predictors, without what may follow a colon."""


def length_predictor(name: str, store: VectorStore | None = None) -> Predictor | None:
    """The predictor of a flag's text; None for `none`. Raises PredictorError.

    Predictors that learn start from the rows of `store` and add to them; without one they begin
    afresh.
    """
    kind, colon, value = name.partition(":")
    store = VectorStore() if store is None else store
    if kind == "noisy":
        return Noisy(_sigma(value))
    if kind == "ranges" and colon:
        return Learned(store, Ranges(store, _granularity(value)))
    if colon or kind not in {*_MAKERS, "none"}:
        meant = did_you_mean(kind, KINDS) if kind not in KINDS else ""
        raise PredictorError(f"unknown predictor {name!r}: choose {CHOICES}{meant}")
    return _MAKERS[kind](store) if kind in _MAKERS else None


def uses_vectors(name: str) -> bool:
    """Whether a predictor uses the prompt's embedding."""
    return name.partition(":")[0] in VECTOR_KINDS


def predictor_without_text(name: str) -> Predictor | None:
    """The same where requests have lengths and no text: for `features`, its stand-in."""
    return length_predictor("stand-in" if name == "features" else name)


def live_fault(name: str) -> str:
    """Why a daemon cannot run this predictor; empty if it can."""
    if name in LIVE:
        return ""
    if not name.startswith(("noisy:", "ranges:")):
        return not_one_of(name, LIVE)
    try:
        length_predictor(name)
    except PredictorError as error:
        return str(error)
    return ""


def _sigma(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise PredictorError(f"noisy:SIGMA needs a number from 0 on, got {value!r}") from None


def _granularity(value: str) -> int:
    if value not in map(str, GRANULARITIES):
        allowed = ", ".join(map(str, GRANULARITIES))
        raise PredictorError(f"ranges:TOKENS needs one of {allowed}, got {value!r}")
    return int(value)
