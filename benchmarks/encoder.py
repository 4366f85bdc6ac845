"""`python -m benchmarks.encoder`: what the sentence encoder costs, in float32 and in 8 bits.

Prompts are those of `benchmarks/prompt_texts.py`. Ways take turns, and times are the thread's own
processor time, so that other work on the machine disturbs them little. Below stands what rounding
changes: the cosine to the float32 vector, and the share of the eight nearest prompts that stay so.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np

from benchmarks.prompt_texts import generated
from daemon.length_models.prediction import Float32
from daemon.length_models.retrieval import Retrieval
from daemon.predictor.encoder import Encoder
from daemon.predictor.linear import Float32Linear, Int8Linear, quicker

TOGETHER = 32
"""Prompts that wait at once, at most, as in `daemon/predictor/server.py`."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    texts = [text for _, text in generated(arguments.prompts)]
    exact, rounded = Encoder(Float32Linear), Encoder(Int8Linear)

    def alone(encoder: Encoder) -> Callable[[], object]:
        return lambda: [encoder.encode([text]) for text in texts]

    def together(encoder: Encoder) -> Callable[[], object]:
        starts = range(0, len(texts), TOGETHER)
        return lambda: [encoder.encode(texts[first : first + TOGETHER]) for first in starts]

    ways = {
        "float32, one by one": alone(exact),
        "float32, those that wait": together(exact),
        "8 bits, one by one": alone(rounded),
        "8 bits, those that wait": together(rounded),
    }
    rounds = np.array(
        [[_each_ms(way, len(texts)) for way in ways.values()] for _ in range(arguments.rounds)]
    )
    for column, name in enumerate(ways):
        found, ratio = rounds[:, column], rounds[:, column] / rounds[:, 0]
        print(
            f"{name:<26}{np.median(found):7.2f} ms a prompt ({found.min():.2f}-{found.max():.2f}),"
            f" {np.median(ratio):.2f} of the first"
        )
    print(f"chosen on this processor: {quicker().__name__}")
    vectors, others = exact.encode(texts), rounded.encode(texts)
    cosines = (vectors * others).sum(axis=1)
    print(
        f"cosine to float32: mean {cosines.mean():.4f}, least {cosines.min():.4f}; "
        f"{_kept(vectors, others):.1%} of the {Retrieval.MOST} nearest are the same"
    )


def _each_ms(way: Callable[[], object], count: int) -> float:
    began_s = time.thread_time()
    way()
    return (time.thread_time() - began_s) / count * 1e3


def _kept(vectors: Float32, others: Float32) -> float:
    nearest = []
    for these in (vectors, others):
        cosines = these @ these.T
        np.fill_diagonal(cosines, -1.0)
        nearest.append(np.argsort(-cosines, axis=1)[:, : Retrieval.MOST])
    kept = [len(set(a) & set(b)) for a, b in zip(*map(np.ndarray.tolist, nearest), strict=True)]
    return float(np.mean(kept)) / Retrieval.MOST


if __name__ == "__main__":
    main()
