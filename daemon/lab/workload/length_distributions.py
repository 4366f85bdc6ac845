"""Named length distributions: the papers' published figures of their data sets, and nothing finer.

Prompt and output are joined by a Gaussian copula: two normal scores with the given correlation,
each turned into a length by its own marginal.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec
import numpy as np
import numpy.typing as npt

from daemon.lab.workload.marginals import Bounded, Marginal, Quantiles, whole
from daemon.lab.workload.workload import Float64

Int32 = npt.NDArray[np.int32]
Accept = Callable[[Float64, Float64], npt.NDArray[np.bool_]]

SKEW_OUTPUT = Quantiles((0.0, 0.9, 0.9, 1.0), (15.5, 64.5, 799.5, 1500.5))
"""90 % of outputs uniform from 16 to 64 tokens, 10 % from 800 to 1,500."""

_HEAVY_PROMPT = 512  # TetriInfer, section 5.1: more than this is heavy
_HEAVY_OUTPUT = 128


@dataclass(frozen=True)
class Lengths:
    """A joint distribution of prompt and output tokens."""

    summary: str  # one line for --help
    prompt: Marginal
    output: Marginal
    rank_correlation: float = 0.0  # Spearman's, of prompt and output
    most_total: int = 0  # tokens; beyond it the prompt is cut for its output; 0: no limit
    accept: Accept | None = None  # others are replaced

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Int32, Int32]:
        """[count] prompt and output tokens, each at least 1."""
        prompts, outputs = self._draw(count, rng)
        while prompts.size < count:
            more = self._draw(count, rng)
            prompts = np.concatenate([prompts, more[0]])
            outputs = np.concatenate([outputs, more[1]])
        return prompts[:count].astype(np.int32), outputs[:count].astype(np.int32)

    def _draw(self, count: int, rng: np.random.Generator) -> tuple[Float64, Float64]:
        scores, other = rng.standard_normal((2, count))
        # A Gaussian copula of correlation r has the rank correlation 6 / pi * asin(r / 2).
        r = 2 * math.sin(math.pi * self.rank_correlation / 6)
        prompts = whole(self.prompt(scores))
        outputs = whole(self.output(r * scores + math.sqrt(1 - r * r) * other))
        if self.most_total:
            prompts = np.maximum(np.minimum(prompts, self.most_total - outputs), 1.0)
        if self.accept is None:
            return prompts, outputs
        kept = self.accept(prompts, outputs)
        return prompts[kept], outputs[kept]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A measured summary, from a file in `data/`."""

    source: str
    at: tuple[float, ...]
    prompt_tokens: tuple[float, ...]
    output_tokens: tuple[float, ...]
    rank_correlation: float


@cache
def sharegpt(accept: Accept | None = None, summary: str = "") -> Lengths:
    """ShareGPT conversations: quantiles measured from a file of 10,000, at most 4,096 tokens."""
    raw = files("daemon.lab.workload").joinpath("data/sharegpt_quantiles.json").read_bytes()
    table = msgspec.json.decode(raw, type=_Table)
    return Lengths(
        summary or "ShareGPT conversations, from measured quantiles",
        Quantiles(table.at, table.prompt_tokens),
        Quantiles(table.at, table.output_tokens),
        table.rank_correlation,
        most_total=4096,
        accept=accept,
    )


def skew() -> Lengths:
    """Prompts as ShareGPT; SKEW_OUTPUT: few long answers delay many short ones."""
    return Lengths(
        "prompts as ShareGPT (or a trace's), 90 % of outputs 16-64 tokens, 10 % 800-1,500",
        sharegpt().prompt,
        SKEW_OUTPUT,
    )


def alpaca() -> Lengths:
    """EcoServe, Table 2, first row: averages, bounds and 52,000 requests."""
    return Lengths(
        "Alpaca instructions (EcoServe, Table 2): 19 in, 58 out",
        Bounded(19.31, 9, 2470, 52_000),
        Bounded(58.41, 13, 292, 52_000),
    )


def bookcorpus() -> Lengths:
    """EcoServe, Table 2, third row: prompts of 2,048 tokens, the last chunk of a book shorter.

    Last chunks are uniform from the table's minimum to 2,047; their share follows from the average
    of 1,952.11. Outputs: average, bounds and 11,000 requests.
    """
    chunk, shortest, average = 2048, 18, 1952.11
    last = (chunk - average) / (chunk - (shortest + chunk - 1) / 2)
    return Lengths(
        "BookCorpus in 2,048-token chunks (EcoServe, Table 2): 1,952 in, 681 out",
        Quantiles((0, last, last, 1), (shortest - 0.5, chunk - 0.5, chunk, chunk)),
        Bounded(681.2, 32, 1041, 11_000),
    )


def chat_1m() -> Lengths:
    """Vidur, Table 1, LMSys-Chat-1M within 4k: mean, median and p90; the rest of the shape is ours.

    Prompt and output are independent: the table does not say how they are correlated.
    """
    return Lengths(
        "LMSys-Chat-1M within 4k tokens (Vidur, Table 1): 686 in, 197 out",
        Quantiles((0, 0.25, 0.5, 0.75, 0.9, 1), (4, 150, 417, 950, 1678, 2880)),
        Quantiles((0, 0.25, 0.5, 0.75, 0.9, 1), (1, 45, 139, 290, 484, 648)),
        most_total=4096,
    )


def arxiv_4k() -> Lengths:
    """Vidur, Table 1, Arxiv-Summarization within 4k: as for chat_1m."""
    return Lengths(
        "Arxiv summaries within 4k tokens (Vidur, Table 1): 2,588 in, 291 out",
        Quantiles((0, 0.25, 0.5, 0.75, 0.9, 1), (600, 2000, 2730, 3370, 3702, 3875)),
        Quantiles((0, 0.25, 0.5, 0.75, 0.9, 0.95, 1), (20, 115, 167, 242, 372, 740, 3816)),
        most_total=4096,
    )


def bwb_4k() -> Lengths:
    """Vidur, Table 1, Bilingual-Web-Book within 4k: as for chat_1m."""
    return Lengths(
        "Bilingual-Web-Book within 4k tokens (Vidur, Table 1): 1,067 in, 1,612 out",
        Quantiles((0, 0.25, 0.5, 0.75, 0.9, 1), (400, 870, 1037, 1235, 1453, 2233)),
        Quantiles((0, 0.25, 0.5, 0.75, 0.9, 1), (600, 1370, 1601, 1870, 2149, 3033)),
        most_total=4096,
    )


def splitwise_code() -> Lengths:
    """Splitwise, section III-B: medians 1,500 and 13; the shape around them is ours."""
    return Lengths(
        "code completion (Splitwise, section III-B): medians 1,500 in, 13 out",
        Quantiles((0, 0.25, 0.5, 0.75, 0.9, 1), (3, 700, 1500, 3000, 5200, 7500)),
        Quantiles((0, 0.25, 0.5, 0.75, 0.9, 1), (1, 8, 13, 27, 60, 300)),
    )


def tetriinfer(heavy_prompt: bool, heavy_output: bool) -> Lengths:
    """TetriInfer, section 5.1: the requests of one quadrant of ShareGPT, cut at 512 and
    128 tokens.
    """

    def accept(prompts: Float64, outputs: Float64) -> npt.NDArray[np.bool_]:
        right: npt.NDArray[np.bool_] = (prompts > _HEAVY_PROMPT) == heavy_prompt
        right &= (outputs > _HEAVY_OUTPUT) == heavy_output
        return right

    into = f"prompts {'over' if heavy_prompt else 'up to'} {_HEAVY_PROMPT}"
    out = f"outputs {'over' if heavy_output else 'up to'} {_HEAVY_OUTPUT} tokens"
    return sharegpt(accept, f"ShareGPT's {into}, {out} (TetriInfer, section 5.1)")


DISTRIBUTIONS: dict[str, Callable[[], Lengths]] = {
    "sharegpt": sharegpt,
    "skew": skew,
    "alpaca": alpaca,
    "bookcorpus": bookcorpus,
    "chat-1m": chat_1m,
    "arxiv-4k": arxiv_4k,
    "bwb-4k": bwb_4k,
    "splitwise-code": splitwise_code,
    "lpld": lambda: tetriinfer(heavy_prompt=False, heavy_output=False),
    "lphd": lambda: tetriinfer(heavy_prompt=False, heavy_output=True),
    "hpld": lambda: tetriinfer(heavy_prompt=True, heavy_output=False),
    "hphd": lambda: tetriinfer(heavy_prompt=True, heavy_output=True),
}
"""By name, made on demand."""
