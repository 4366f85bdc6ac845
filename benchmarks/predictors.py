"""How well every predictor foretells the lengths of real answers, and what it costs.

    python -m benchmarks.predictors [--data FILE] [--kinds mean,features,...] [--json]

The data set (see benchmarks/make_answers.py) is gone through in order of time: a predictor is asked
when a request came, and learns from an answer when it ended, not before. The first 70 % only teach;
figures are of the rest, through which it goes on learning.

MAE       mean absolute error, tokens
error     mean of |predicted - true| / true
@100 ...  share of predictions in the same range of so many tokens as the truth (TetriInfer)
band      share of answers between the quantiles that say 10 % and 90 %; 80 % is right
width     median of the band's high over its low
rank      Spearman's rank correlation of prediction and truth: what an order by length gains from
cost      mean time of one prediction; finding features and embedding come on top, see below
"""

import argparse
import heapq
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.answers import DEFAULT, Answers, load
from daemon.predict.lengths import length_predictor
from daemon.predict.prediction import Asked, Prediction
from daemon.predict.store import VectorStore

KINDS = (
    "mean", "features", "mlp", "retrieval", "ranges:100", "ranges:200", "ranges:400",
    "oracle", "noisy:0.5", "adversary",
)  # fmt: skip
GRANULARITIES = (100, 200, 400)
LEARNED_SHARE = 0.7

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """One predictor's figures."""

    kind: str
    mae_tokens: float
    relative_error: float
    accuracy: dict[int, float]  # by granularity
    coverage: float
    band_width: float
    rank_correlation: float
    predict_s: float
    observe_s: float


@dataclass(frozen=True)
class Foretold:
    """What one predictor said of every request, in order, and the time it took."""

    said: list[Prediction]
    predict_s: Float64  # [N]
    observe_s: Float64  # [N], in the order of the endings


def foretold(answers: Answers, kind: str, seed: int = 0) -> Foretold:
    """Go through the data set as a daemon would have."""
    store = VectorStore()
    predictor = length_predictor(kind, store)
    assert predictor is not None
    draws = np.random.default_rng(seed).standard_normal(len(answers))
    endings: list[tuple[float, int]] = []
    said, predict_s, observe_s = [], [], []
    requests = answers.asked()

    def learn(until_s: float) -> None:
        while endings and endings[0][0] <= until_s:
            ended_s, one = heapq.heappop(endings)
            store.advance(ended_s)
            began_s = time.perf_counter()
            predictor.observe(_untold(requests[one], kind), requests[one].truth)
            observe_s.append(time.perf_counter() - began_s)

    for index, asked in enumerate(requests):
        learn(float(answers.asked_s[index]))
        shown = msgspec.structs.replace(_untold(asked, kind), chance=float(draws[index]))
        began_s = time.perf_counter()
        said.append(predictor.predict(shown))
        predict_s.append(time.perf_counter() - began_s)
        heapq.heappush(endings, (float(answers.ended_s[index]), index))
    learn(float("inf"))
    return Foretold(said, np.array(predict_s), np.array(observe_s))


def _untold(asked: Asked, kind: str) -> Asked:
    """The request without its truth, but for those that claim to know it."""
    knowing = kind in {"oracle", "adversary"} or kind.startswith("noisy:")
    return asked if knowing else msgspec.structs.replace(asked, truth=-1)


def score(answers: Answers, kind: str, run: Foretold, first: int) -> Score:
    """The figures of the requests from `first` on."""
    truth = answers.output_tokens[first:].astype(np.float64)
    low, middle, high = (
        np.array([getattr(one, name) for one in run.said[first:]], np.float64)
        for name in ("low", "middle", "high")
    )
    return Score(
        kind=kind,
        mae_tokens=float(np.abs(middle - truth).mean()),
        relative_error=float((np.abs(middle - truth) / np.maximum(truth, 1.0)).mean()),
        accuracy={size: float((middle // size == truth // size).mean()) for size in GRANULARITIES},
        coverage=float(((low <= truth) & (truth <= high)).mean()),
        band_width=float(np.median(high / low)),
        rank_correlation=rank_correlation(middle, truth),
        predict_s=float(run.predict_s[first:].mean()),
        observe_s=float(run.observe_s[first:].mean()),
    )


def rank_correlation(a: Float64, b: Float64) -> float:
    """Spearman's, with ties at their mean rank; 0 where one of them is all the same."""
    ranks = [_ranks(one) for one in (a, b)]
    if any(np.ptp(one) == 0.0 for one in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Float64) -> Float64:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[place]


def table(answers: Answers, scores: list[Score], first: int) -> str:
    """The figures as text."""
    truth = answers.output_tokens[first:]
    limit = float((truth >= answers.max_tokens[first:]).mean())
    lines = [
        f"{len(answers):,} answers of {answers.model}; the last {truth.size:,}: mean "
        f"{truth.mean():.0f} tokens, median {np.median(truth):.0f}, {limit:.1%} at the limit",
        f"{'predictor':12}{'MAE':>7}{'error':>8}{'@100':>8}{'@200':>8}{'@400':>8}"
        f"{'band':>8}{'width':>8}{'rank':>8}{'cost':>10}{'learn':>10}",
    ]
    for one in scores:
        accuracy = "".join(f"{one.accuracy[size]:8.1%}" for size in GRANULARITIES)
        lines.append(
            f"{one.kind:12}{one.mae_tokens:7.1f}{one.relative_error:8.2f}{accuracy}"
            f"{one.coverage:8.1%}{one.band_width:8.1f}{one.rank_correlation:8.2f}"
            f"{one.predict_s * 1e3:7.3f} ms{one.observe_s * 1e3:7.3f} ms"
        )
    lines.append(
        f"on top of that, for each prompt: features {float(answers.features_s) * 1e3:.3f} ms, "
        f"embedding {float(answers.encode_s) * 1e3:.1f} ms (mlp, retrieval, ranges)"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DEFAULT, metavar="FILE")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="K,K")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    answers = load(arguments.data)
    first = int(LEARNED_SHARE * len(answers))
    kinds = arguments.kinds.split(",")
    scores = [score(answers, kind, foretold(answers, kind), first) for kind in kinds]
    if arguments.json:
        print(json.dumps([asdict(one) for one in scores], indent=1))
    else:
        print(table(answers, scores, first))


if __name__ == "__main__":
    main()
