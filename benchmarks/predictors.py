"""How well every predictor foretells the lengths of real answers, and what it costs.

    python -m benchmarks.predictors [--data FILE] [--kinds mean,features,...] [--json]

The data set (see benchmarks/make_answers.py) is gone through in order of time: a predictor is asked
when a request came, and learns from an answer when it ended, not before. Twice:

time      the first 70 % only teach; figures are of the rest, through which it goes on learning.
          Prompts made from one template, or of one file, are on both sides: so does a daemon see
          the prompts of its few applications again and again
source    each file and each kind of template is held out once, in a few folds: it goes through all
          the others, and is then asked about those held out, of which it learns nothing

Answers as long as their limit were cut there; every table stands with them and without.

MAE       mean absolute error, tokens
error     mean of |predicted - true| / true
@100 ...  share of predictions in the same range of so many tokens as the truth (TetriInfer)
below     share of answers shorter than was predicted; 50 % is right
above     share of answers longer than what is said to be enough for nine in ten; 10 % is right
width     median of the latter over the former
rank      Spearman's rank correlation of prediction and truth: what an order by length gains from
cost      mean time of one prediction; finding features and embedding come on top, see below
learn     mean time to learn from one answer
slowest   the longest time that one answer took: some models are fitted anew now and then
"""

import argparse
import heapq
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.answers import DEFAULT, Answers, load
from daemon.length_models.prediction import Asked, Bool, Float64, Prediction
from daemon.length_models.registry import length_predictor
from daemon.length_models.store import VectorStore

KINDS = (
    "mean", "features", "mlp", "retrieval", "ranges:100", "ranges:200", "ranges:400",
    "stand-in", "oracle", "noisy:0.5", "adversary",
)  # fmt: skip
GRANULARITIES = (100, 200, 400)
LEARNED_SHARE = 0.7
NUM_FOLDS = 4

Int = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Score:
    """One predictor's figures."""

    kind: str
    mae_tokens: float
    relative_error: float
    accuracy: dict[int, float]  # by granularity
    below: float
    above: float
    band_width: float
    rank_correlation: float
    predict_s: float
    observe_s: float
    slowest_s: float  # of the same


@dataclass(frozen=True)
class PredictedAnswers:
    """What one predictor said of every request, in order, and the time it took."""

    said: list[Prediction]
    predict_s: Float64  # [N]
    observe_s: float  # mean
    slowest_s: float  # of the same


class Course:
    """One predictor on its way through the data set, or a part of it."""

    def __init__(self, answers: Answers, kind: str, seed: int) -> None:
        self._answers = answers
        self._requests = answers.asked()
        self._kind = kind
        self._store = VectorStore()
        predictor = length_predictor(kind, self._store)
        assert predictor is not None
        self._predictor = predictor
        self._draws = np.random.default_rng(seed).standard_normal(len(answers))
        self._endings: list[tuple[float, int]] = []
        self.said: dict[int, Prediction] = {}
        self.predict_s: dict[int, float] = {}
        self.observe_s: list[float] = []

    def live(self, rows: Iterable[int]) -> None:
        """Ask about these in their order, and learn of each when it ends."""
        for row in rows:
            self._learn(float(self._answers.asked_s[row]))
            self.ask(row)
            heapq.heappush(self._endings, (float(self._answers.ended_s[row]), row))
        self._learn(float("inf"))

    def ask(self, row: int) -> None:
        """Ask about this one."""
        shown = untold(self._requests[row], self._kind)
        shown = msgspec.structs.replace(shown, chance=float(self._draws[row]))
        began_s = time.perf_counter()
        self.said[row] = self._predictor.predict(shown)
        self.predict_s[row] = time.perf_counter() - began_s

    def _learn(self, until_s: float) -> None:
        while self._endings and self._endings[0][0] <= until_s:
            ended_s, row = heapq.heappop(self._endings)
            self._store.advance(ended_s)
            asked = untold(self._requests[row], self._kind)
            asked = msgspec.structs.replace(asked, guess=self.said[row].guess)
            began_s = time.perf_counter()
            self._predictor.observe(asked, self._requests[row].truth)
            self.observe_s.append(time.perf_counter() - began_s)


def predicted(answers: Answers, kind: str, seed: int = 0) -> PredictedAnswers:
    """Go through the data set as a daemon would have."""
    course = Course(answers, kind, seed)
    course.live(range(len(answers)))
    return _whole(answers, [course])


def predicted_unseen(answers: Answers, kind: str, seed: int = 0) -> PredictedAnswers:
    """Ask about every request when all sources but some, its own among these, were learned."""
    courses = []
    fold_of = folds(answers)
    for fold in range(NUM_FOLDS):
        course = Course(answers, kind, seed)
        course.live(np.flatnonzero(fold_of != fold).tolist())
        course.said, course.predict_s = {}, {}
        for row in np.flatnonzero(fold_of == fold).tolist():
            course.ask(row)
        courses.append(course)
    return _whole(answers, courses)


def folds(answers: Answers) -> Int:
    """[N]: to which fold each request belongs; those of a source stay together."""
    names, source_of, sizes = np.unique(answers.source, return_inverse=True, return_counts=True)
    fold_of: Int = np.zeros(names.size, np.intp)
    load = [0] * NUM_FOLDS
    for source in np.argsort(-sizes, kind="stable").tolist():
        fold_of[source] = load.index(min(load))
        load[fold_of[source]] += int(sizes[source])
    return fold_of[source_of]


def _whole(answers: Answers, courses: list[Course]) -> PredictedAnswers:
    said: dict[int, Prediction] = {}
    predict_s: dict[int, float] = {}
    for course in courses:
        said |= course.said
        predict_s |= course.predict_s
    rows = range(len(answers))
    observe_s = np.concatenate([course.observe_s for course in courses])
    return PredictedAnswers(
        [said[row] for row in rows],
        np.array([predict_s[row] for row in rows]),
        float(observe_s.mean()),
        float(observe_s.max()),
    )


def untold(asked: Asked, kind: str) -> Asked:
    """The request without its truth, but for those that claim to know it."""
    knowing = kind in {"stand-in", "oracle", "adversary"} or kind.startswith("noisy:")
    return asked if knowing else msgspec.structs.replace(asked, truth=-1)


def score(answers: Answers, kind: str, run: PredictedAnswers, rows: Bool) -> Score:
    """The figures of these requests [N]."""
    truth = answers.output_tokens[rows].astype(np.float64)
    said = [one for one, counts in zip(run.said, rows.tolist(), strict=True) if counts]
    middle = np.array([one.middle for one in said], np.float64)
    high = np.array([one.high for one in said], np.float64)
    return Score(
        kind=kind,
        mae_tokens=float(np.abs(middle - truth).mean()),
        relative_error=float((np.abs(middle - truth) / np.maximum(truth, 1.0)).mean()),
        accuracy={size: float((middle // size == truth // size).mean()) for size in GRANULARITIES},
        below=float((truth < middle).mean() + (truth == middle).mean() / 2.0),
        above=float((truth > high).mean()),
        band_width=float(np.median(high / middle)),
        rank_correlation=rank_correlation(middle, truth),
        predict_s=float(run.predict_s[rows].mean()),
        observe_s=run.observe_s,
        slowest_s=run.slowest_s,
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


def table(answers: Answers, title: str, rows: Bool, scores: list[Score]) -> str:
    """The figures as text."""
    truth = answers.output_tokens[rows]
    lines = [
        f"{title}: {truth.size:,} answers, mean {truth.mean():.0f} tokens, median "
        f"{np.median(truth):.0f}, {_cut(answers)[rows].mean():.1%} at the limit",
        f"{'predictor':12}{'MAE':>7}{'error':>8}{'@100':>8}{'@200':>8}{'@400':>8}"
        f"{'below':>8}{'above':>8}{'width':>8}{'rank':>8}{'cost':>10}{'learn':>10}{'slowest':>10}",
    ]
    for one in scores:
        accuracy = "".join(f"{one.accuracy[size]:8.1%}" for size in GRANULARITIES)
        lines.append(
            f"{one.kind:12}{one.mae_tokens:7.1f}{one.relative_error:8.2f}{accuracy}"
            f"{one.below:8.1%}{one.above:8.1%}{one.band_width:8.1f}{one.rank_correlation:8.2f}"
            f"{one.predict_s * 1e3:7.3f} ms{one.observe_s * 1e3:7.3f} ms"
            f"{one.slowest_s * 1e3:7.1f} ms"
        )
    return "\n".join(lines)


def splits(answers: Answers, kinds: list[str]) -> dict[str, tuple[Bool, list[Score]]]:
    """By title: which requests [N] count, and every predictor's figures."""
    late = np.arange(len(answers)) >= int(LEARNED_SHARE * len(answers))
    runs = {"split by time": (late, {kind: predicted(answers, kind) for kind in kinds})}
    if np.unique(answers.source).size > 1:
        unseen = {kind: predicted_unseen(answers, kind) for kind in kinds}
        runs["split by source"] = (np.ones_like(late), unseen)
    found = {}
    for title, (counts, by_kind) in runs.items():
        for name, rows in ((title, counts), (f"{title}, none cut", counts & ~_cut(answers))):
            if rows.any():
                scores = [score(answers, kind, run, rows) for kind, run in by_kind.items()]
                found[name] = (rows, scores)
    return found


def _cut(answers: Answers) -> Bool:
    cut: Bool = answers.output_tokens >= answers.max_tokens
    return cut


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DEFAULT, metavar="FILE")
    parser.add_argument("--kinds", default=",".join(KINDS), metavar="K,K")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    answers = load(arguments.data)
    found = splits(answers, arguments.kinds.split(","))
    if arguments.json:
        rows = {title: [asdict(one) for one in scores] for title, (_, scores) in found.items()}
        print(json.dumps(rows, indent=1))
        return
    print(f"{len(answers):,} answers of {answers.model}")
    for title, (counts, scores) in found.items():
        print("", table(answers, title, counts, scores), sep="\n")
    print(
        f"\non top of that, for each prompt: features {float(answers.features_s) * 1e3:.3f} ms, "
        f"embedding {float(answers.encode_s) * 1e3:.1f} ms (mlp, retrieval, ranges)"
    )
    if len(found) < 3:
        print("all answers are of one source: none can be held out")


if __name__ == "__main__":
    main()
