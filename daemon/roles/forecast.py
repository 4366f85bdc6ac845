"""Forecasts of SLO attainment: for mixed instances, and for splits.

Mixed: decodes have every prompt of their instance between their steps, and prompts every decode.
Split: prompts wait for prompts alone, decodes for decodes alone, and KV goes from one to the other.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from daemon.roles.load import OfferedLoad
from daemon.roles.queueing import Decoding, Waiting, below, decoding, waiting, waiting_for_room
from daemon.scheduler.step import LEAST_SHARE
from daemon.state.slo import Slo

BENT = (1.0, 0.5, LEAST_SHARE)
"""The shares of a step's budget tried for prompts, where they may have less."""

Kept = tuple[float, float]
"""(share of answers that meet an SLO, the mean in seconds)."""


class Costs(msgspec.Struct, frozen=True):
    """The time of a step: its base, and what each thing in it adds."""

    base_s: float
    decode_s: float  # a decode
    context_s: float  # a token that decodes attend to
    prompt_s: float  # a prompt's token
    pair_s: float  # a pair of them; see `StepWork.prompts`

    def prompt_work_s(self, tokens: float) -> float:
        """The time that a whole prompt adds to the steps that compute it."""
        return self.prompt_s * tokens + self.pair_s * tokens * tokens


class Fleet(msgspec.Struct, frozen=True):
    """The instances, all with the same limits of a step."""

    costs: Costs  # of steps with decodes
    alone: Costs  # of steps of prompts alone
    kv_tokens: int  # of one instance's pool
    max_running: int  # sequences of one instance
    budget_tokens: int  # of a step
    chunk_tokens: int  # of one prompt in a step
    transfer_s: float = 0.0  # of a prompt's KV to another instance, on average
    bends: bool = False  # steps take fewer prompt tokens where the SLO needs it (`prompt_room.py`)


class Split(msgspec.Struct, frozen=True, order=True):
    """The number of prefill and of decode instances; no prefill: all are mixed."""

    prefill: int
    decode: int

    @property
    def together(self) -> bool:
        """Whether prompts and decodes share their instances."""
        return not self.prefill

    def __str__(self) -> str:
        return "mixed" if self.together else f"{self.prefill}:{self.decode}"


class Handoff(NamedTuple):
    """The wait of an answer that migrates, beyond the steps of its tokens."""

    sure_s: float  # the mean wait of each
    deviation_s: float  # of that mean
    chance: float  # that it also waits for another prompt
    beside_s: float  # for how long then


NO_HANDOFF = Handoff(0.0, 0.0, 0.0, 0.0)


class Forecast(msgspec.Struct, frozen=True):
    """The forecast of a choice. Times are means; -1: overloaded."""

    choice: str  # a `Split`
    attainment: float  # share of answers that meet both SLOs
    ttft_kept: float
    tpot_kept: float
    ttft_s: float
    tpot_s: float
    kv_share: float  # of the pools of decoding instances


def forecast(load: OfferedLoad, fleet: Fleet, slo: Slo, split: Split) -> Forecast:
    """Forecast one choice."""
    prompts = load.computed_prompts
    if split.together:
        return _together(load, fleet, slo, split, prompts)
    return _apart(load, fleet, slo, split, prompts)


def mean_forecast(
    load: OfferedLoad, fleets: Sequence[tuple[Fleet, int]], slo: Slo, split: Split
) -> Forecast:
    """Forecast one choice where steps have unlike limits: the mean over fleets of each kind, with
    the number of instances of it. Load is shared evenly, and any may compute prompts.
    """
    forecasts = [(forecast(load, fleet, slo, split), num) for fleet, num in fleets]
    if len(forecasts) == 1:
        return forecasts[0][0]
    total = sum(num for _, num in forecasts)

    def mean(name: str) -> float:
        values = [(getattr(each, name), num) for each, num in forecasts]
        overloaded = any(value < 0.0 for value, _ in values)
        return -1.0 if overloaded else sum(value * num for value, num in values) / total

    names = (name for name in Forecast.__struct_fields__ if name != "choice")
    return Forecast(str(split), **{name: mean(name) for name in names})


def _together(
    load: OfferedLoad, fleet: Fleet, slo: Slo, split: Split, prompts: tuple[float, ...]
) -> Forecast:
    costs, count = fleet.costs, split.decode
    rate = load.rate_rps / count
    work, squares = _moments([costs.prompt_work_s(prompt) for prompt in prompts])
    busy = rate * work
    if busy >= 1.0:
        return _hopeless(split)
    # Prompts take their share of the time; the rest is left to decode steps.
    row_s = costs.decode_s + costs.context_s * load.decode_context
    decodes = decoding(
        load.answer_rate,
        load.answer_tokens,
        costs.base_s / (1.0 - busy),
        row_s / (1.0 - busy),
        count,
    )
    if decodes.step_s == math.inf:
        return _hopeless(split)
    rows = decodes.num / count
    fixed_s = costs.base_s + rows * row_s
    chunk_noise = rate * decodes.step_s * squares
    freely = _tpot(load, decodes, chunk_noise, NO_HANDOFF, slo.tpot_s)

    def with_chunks(share: float) -> tuple[Kept, Kept]:
        """TTFT and TPOT where steps give this share of their budget to prompts."""
        room = max(1.0, share * fleet.budget_tokens - rows)
        chunk = min(room, share * fleet.chunk_tokens)
        line = _line(prompts, costs, fixed_s, room, rate, 1)
        residual_s = decodes.step_s / 2.0
        ttft = _ttft(prompts, costs, fixed_s, chunk, line, residual_s, slo.ttft_s)
        longest_s = fixed_s + costs.prompt_work_s(chunk)
        bounded = below(slo.tpot_s, longest_s, decodes.per_one_s * decodes.deviation)
        return ttft, (max(freely[0], bounded), freely[1])

    if not fleet.bends:
        return _with_room(split, load, fleet, slo, decodes, *with_chunks(1.0))
    return _with_room(
        split, load, fleet, slo, decodes, *_bent([with_chunks(share) for share in BENT])
    )


def _bent(found: list[tuple[Kept, Kept]]) -> tuple[Kept, Kept]:
    """TTFT and TPOT where each step has the chunk that it needs: half way from the best single
    chunk size to long chunks for first tokens and short chunks for decodes, as simulations show.
    """
    (first, freely), (_, bounded) = found[0], found[-1]
    ttft, tpot = max(found, key=lambda kept: kept[0][0] * kept[1][0])
    return ((ttft[0] + first[0]) / 2.0, ttft[1]), ((tpot[0] + bounded[0]) / 2.0, freely[1])


def _apart(
    load: OfferedLoad, fleet: Fleet, slo: Slo, split: Split, prompts: tuple[float, ...]
) -> Forecast:
    alone, costs = fleet.alone, fleet.costs
    room, chunk = float(fleet.budget_tokens), float(fleet.chunk_tokens)
    line = _line(prompts, alone, alone.base_s, room, load.rate_rps, split.prefill)
    work, _ = _moments([alone.base_s + alone.prompt_work_s(prompt) for prompt in prompts])
    # A prompt that arrives while a step runs waits for its end first.
    busy = min(1.0, load.rate_rps * work / split.prefill)
    residual_s = busy * work / 2.0
    ttft = _ttft(prompts, alone, alone.base_s, chunk, line, residual_s, slo.ttft_s)
    row_s = costs.decode_s + costs.context_s * load.decode_context
    decodes = decoding(load.answer_rate, load.answer_tokens, costs.base_s, row_s, split.decode)
    if decodes.step_s == math.inf:
        return _hopeless(split)
    handoff = _handoff(fleet, sum(prompts) / len(prompts), line.chance, decodes.step_s)
    tpot = _tpot(load, decodes, 0.0, handoff, slo.tpot_s)
    return _with_room(split, load, fleet, slo, decodes, ttft, tpot)


def _handoff(fleet: Fleet, prompt_tokens: float, queued: float, step_s: float) -> Handoff:
    """The handoff: a further step at the source, which includes the next prompt where one is
    `queued`; then the transfer, and the rest of the step that runs at the target.
    """
    alone = fleet.alone
    beside_s = alone.prompt_work_s(min(prompt_tokens, float(fleet.chunk_tokens)))
    sure_s = alone.base_s - step_s + fleet.transfer_s + step_s / 2.0
    return Handoff(sure_s, step_s / math.sqrt(12.0), queued, beside_s)


def _line(
    prompts: tuple[float, ...], costs: Costs, fixed_s: float, room: float, rate: float, servers: int
) -> Waiting:
    """The wait before prompts are computed. Prompts in line share steps, so each takes a part of a
    step's fixed time.
    """
    works = [fixed_s * prompt / room + costs.prompt_work_s(prompt) for prompt in prompts]
    return waiting(rate, *_moments(works), servers)


def _ttft(
    prompts: tuple[float, ...],
    costs: Costs,
    fixed_s: float,
    room: float,
    line: Waiting,
    residual_s: float,
    limit_s: float,
) -> Kept:
    """(share within the limit, mean): the running step, the line, a prompt's own steps."""
    if line.mean_s == math.inf:
        return 0.0, -1.0
    own = [math.ceil(prompt / room) * fixed_s + costs.prompt_work_s(prompt) for prompt in prompts]
    kept = sum(line.within(limit_s - residual_s - own_s) for own_s in own) / len(own)
    return kept, residual_s + line.overall_s + sum(own) / len(own)


def _tpot(
    load: OfferedLoad, decodes: Decoding, noise: float, handoff: Handoff, limit_s: float
) -> Kept:
    """(share within the limit, mean) of answers; `noise` is the variance of one step's time."""
    lengths, chance = load.few_lengths, handoff.chance
    kept = 0.0
    for length in lengths:
        gaps = length - 1.0
        if gaps < 1.0:
            kept += 1.0
            continue
        wander_s = decodes.deviation_s(gaps * decodes.step_s)
        deviation_s = math.hypot(wander_s, handoff.deviation_s / gaps, math.sqrt(noise / gaps))
        left_s = limit_s - handoff.sure_s / gaps
        alone = below(left_s, decodes.step_s, deviation_s)
        beside = below(left_s - handoff.beside_s / gaps, decodes.step_s, deviation_s)
        kept += alone + chance * (beside - alone)
    once_s = handoff.sure_s + chance * handoff.beside_s
    return kept / len(lengths), decodes.step_s + once_s / max(1.0, load.answer_tokens - 1.0)


def _with_room(
    split: Split,
    load: OfferedLoad,
    fleet: Fleet,
    slo: Slo,
    decodes: Decoding,
    ttft: Kept,
    tpot: Kept,
) -> Forecast:
    """The forecast with what memory allows: an answer without room waits for it, before its first
    token on mixed instances, else before its second.
    """
    each = load.decode_context
    places = split.decode * min(fleet.kv_tokens / each, float(fleet.max_running))
    room = waiting_for_room(places, decodes.num, load.answer_tokens * decodes.step_s)
    left_s = slo.ttft_s - ttft[1]
    if not split.together:
        left_s = (slo.tpot_s - tpot[1]) * max(0.0, load.answer_tokens - 1.0)
    fits = room.within(left_s)
    kv_share = min(9.99, decodes.num * each / (split.decode * fleet.kv_tokens))
    attainment = ttft[0] * tpot[0] * fits
    return Forecast(
        choice=str(split),
        attainment=attainment,
        ttft_kept=ttft[0],
        tpot_kept=tpot[0],
        ttft_s=ttft[1],
        tpot_s=tpot[1],
        kv_share=kv_share,
    )


def _hopeless(split: Split) -> Forecast:
    return Forecast(
        choice=str(split),
        attainment=0.0,
        ttft_kept=0.0,
        tpot_kept=0.0,
        ttft_s=-1.0,
        tpot_s=-1.0,
        kv_share=9.99,
    )


def _moments(values: list[float]) -> tuple[float, float]:
    """(mean, mean square)."""
    return sum(values) / len(values), sum(value * value for value in values) / len(values)
