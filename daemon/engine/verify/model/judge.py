"""Whether what was computed is right, but for rounding.

Errors are in spreads of a position's logits. The median of each chunk, and of each sequence's
decoded tokens, counts, and no float32 logit may be far off alone. A kernel that computes only the
last token of each chunk wrongly shows in the group of chunks' ends.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from daemon.engine.verify.model.served import Part
from daemon.wire.columns import Int32

FLOOR = 3e-4
"""Tolerance of most float32 logits: a hundred times what was observed."""
ALONE = 1e-2
"""Tolerance of a single logit: at rare positions a model amplifies rounding a thousandfold."""
TIMES = 2.0
"""How much further from exact than transformers' own rounding a served result may be; it was seen
to be 0.8 to 1.3 times as far."""
ROUTED_TIMES = 4.0
"""The same for a mixture: a near tie of experts that rounding decides the other way changes the
token and all behind it. It was seen to be 0.5 to 2.1 times as far.
"""


class Expected(NamedTuple):
    """Logits of a sequence as transformers computes them, float32 [n, vocab] on the host.

    `rounded` is None where serving rounds nothing that the exact forward does not. `assumed`: how
    far rounding is taken to lead where there was no memory for an exact forward; `times`: how much
    further a served result may be.
    """

    exact: torch.Tensor
    rounded: torch.Tensor | None
    assumed: float = 0.0
    times: float = TIMES


class Finding(NamedTuple):
    """How far off the worst part was, in spreads of its logits."""

    error: float
    limit: float
    where: str

    @property
    def wrong(self) -> bool:
        """Whether it is more than rounding; no number at all is."""
        return not self.error <= self.limit

    def __str__(self) -> str:
        """In words, for a log or a refusal."""
        return (
            f"{self.where}, its logits are {self.error:.1e} of their spread from transformers' "
            f"own, and rounding explains {self.limit:.1e}"
        )


def judge(parts: Sequence[Part], expected: Sequence[Expected], block_size: int) -> list[Finding]:
    """A finding for each group of a wave's tokens.

    A group is a chunk, or all single tokens of a sequence. Where serving rounds, medians alone
    count, since rounding may choose another expert at any token. So that no kind of token hides
    among others, those that begin or end a chunk or a block are groups, too.
    """
    noise = [_noise(each) for each in expected]
    known = [part for part in noise if part is not None]
    overall = _middle(torch.cat(known or [torch.zeros(1)]))
    times = max(each.times for each in expected)
    found = []
    for group in _groups(parts):
        errors, own = _errors(group, expected, noise)
        where = _where(group)
        found.append(_finding(errors, own, overall, times, where))
        if own is None or not bool(errors.isfinite().all()):
            found.append(Finding(float(errors.max()), ALONE, f"once {where}"))
    for where, group in _kinds(parts, block_size):
        errors, own = _errors(group, expected, noise)
        if own is not None and len(errors) > 1:  # one alone may be the rare one
            found.append(_finding(errors, own, overall, times, where))
    return found


def _finding(
    errors: torch.Tensor, own: torch.Tensor | None, overall: float, times: float, where: str
) -> Finding:
    more = 0.0 if own is None else times * max(_middle(own), overall)
    return Finding(_middle(errors), FLOOR + more, where)


def _errors(
    group: Sequence[Part], expected: Sequence[Expected], noise: Sequence[torch.Tensor | None]
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """How far off each token of a group is, and how far its rounding leads."""
    errors, own = [], []
    for part in group:
        span = slice(part.start, part.start + len(part.logits))
        errors.append(distances(part.logits, expected[part.sequence].exact[span]))
        rounding = noise[part.sequence]
        if rounding is not None:
            own.append(rounding[span])
    return torch.cat(errors), torch.cat(own) if own else None


def far_finding(
    compiled: torch.Tensor, plain: torch.Tensor, expected: Sequence[Expected]
) -> Finding:
    """Compare compiled steps [n, vocab] far out with the same uncompiled."""
    noise = [part for part in map(_noise, expected) if part is not None]
    times = max(each.times for each in expected)
    limit = ALONE + (times * _middle(torch.cat(noise)) if noise else 0.0)
    error = float(distances(compiled, plain).max())
    return Finding(error, limit, "in compiled steps behind the longest contexts")


def repeated_finding(repeated: Int32, single: Int32) -> Finding:
    """Compare tokens [R, times] sampled in a multi-step program with those of single steps."""
    error = 0.0 if np.array_equal(repeated, single) else np.inf
    return Finding(error, ALONE, "in compiled steps that are repeated")


def worst(found: Iterable[Finding]) -> Finding:
    """The finding with the largest error relative to its limit."""
    return max(found, key=lambda finding: np.nan_to_num(finding.error / finding.limit, nan=np.inf))


def distances(logits: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The largest difference of each row [n, vocab], in spreads of what is exact there."""
    spread = (exact - exact.mean(-1, keepdim=True)).abs().amax(-1)
    apart = (logits - exact).abs().amax(-1) / spread.clamp(min=torch.finfo(torch.float32).tiny)
    return torch.nan_to_num(apart, nan=torch.inf, posinf=torch.inf)


def _noise(expected: Expected) -> torch.Tensor | None:
    if expected.rounded is None:
        return None
    return distances(expected.rounded, expected.exact) + expected.assumed


def _middle(values: torch.Tensor) -> float:
    """The lower median: a single near tie may go either way."""
    return float(values.median())


def _groups(parts: Iterable[Part]) -> list[list[Part]]:
    """Each chunk alone; single tokens together, by sequence and by how they were computed."""
    groups: dict[tuple[int, int, bool], list[Part]] = {}
    for part in parts:
        chunk = part.start if len(part.logits) > 1 else -1
        groups.setdefault((part.sequence, chunk, part.compiled), []).append(part)
    return list(groups.values())


def _kinds(parts: Iterable[Part], block_size: int) -> list[tuple[str, list[Part]]]:
    """Single tokens of all sequences by what sets them apart, in words."""
    kinds = defaultdict[str, list[Part]](list)
    for part in parts:
        how = "in compiled steps, " if part.compiled else ""
        count = len(part.logits)
        of = "single tokens" if count == 1 else "tokens of chunks"
        for at in range(count):
            token = part._replace(start=part.start + at, logits=part.logits[at : at + 1])
            if count > 1 and at == 0:
                kinds[f"{how}at the beginnings of chunks"].append(token)
            if count > 1 and at == count - 1:
                kinds[f"{how}at the ends of chunks"].append(token)
            if token.start and token.start % block_size == 0:
                kinds[f"{how}in {of} that begin a block"].append(token)
            if token.start % block_size == block_size - 1:
                kinds[f"{how}in {of} that end a block"].append(token)
    return list(kinds.items())


def _where(group: list[Part]) -> str:
    first, last = group[0], group[-1]
    how = "in compiled steps, " if first.compiled else ""
    if len(first.logits) > 1:
        return f"{how}in a chunk of {len(first.logits)} tokens behind {first.start}"
    return f"{how}in single tokens behind {first.start} to {last.start}"
