"""What share of answers would keep their promises: for instances that do both, and for splits.

Mixed: who draws has every prompt of its instance between its steps, a prompt has every draw. Apart:
prompts wait for prompts alone, draws for draws alone, and keys and values go from one to the other.
"""

import math
from typing import NamedTuple

import msgspec

from daemon.roles.load import OfferedLoad
from daemon.roles.queueing import Drawing, Waiting, below, drawing, waiting, waiting_for_room
from daemon.scheduler.step import LEAST_SHARE
from daemon.state.slo import Slo

BENT = (1.0, 0.5, LEAST_SHARE)
"""Of a step's budget, what prompts are tried with where they may have less."""

Kept = tuple[float, float]
"""(share that keeps a promise, the mean in seconds)."""


class Costs(msgspec.Struct, frozen=True):
    """What a step takes: its base, and what each thing in it adds."""

    base_s: float
    decode_s: float  # a row that draws
    context_s: float  # a token that rows which draw attend to
    prompt_s: float  # a prompt's token
    pair_s: float  # a pair of them; see `StepWork.prompts`

    def prompt_work_s(self, tokens: float) -> float:
        """What a whole prompt adds to the steps that compute it."""
        return self.prompt_s * tokens + self.pair_s * tokens * tokens


class Fleet(msgspec.Struct, frozen=True):
    """Instances that are alike."""

    costs: Costs  # of steps with rows that draw
    alone: Costs  # of steps with prompts alone
    kv_tokens: int  # that the pool of one holds
    max_running: int  # sequences of one
    budget_tokens: int  # of a step
    chunk_tokens: int  # of one prompt in a step
    transfer_s: float = 0.0  # of a prompt's KV to another instance, on average
    bends: bool = False  # steps have less of prompts where promises ask for it (`prompt_room.py`)


class Split(msgspec.Struct, frozen=True, order=True):
    """So many instances for prompts and so many for draws; none for prompts: all do both."""

    prefill: int
    decode: int

    @property
    def together(self) -> bool:
        """Whether prompts and draws share their instances."""
        return not self.prefill

    def __str__(self) -> str:
        return "mixed" if self.together else f"{self.prefill}:{self.decode}"


class Handoff(NamedTuple):
    """What an answer waits beyond the steps of its tokens, as it goes on at another instance."""

    sure_s: float  # the mean of what each waits
    deviation_s: float  # of that
    chance: float  # that it waits for another prompt too
    beside_s: float  # and for how long


NO_HANDOFF = Handoff(0.0, 0.0, 0.0, 0.0)


class Forecast(msgspec.Struct, frozen=True):
    """What is to be expected of a choice. Times are means; -1: more comes than can be done."""

    choice: str  # a `Split`
    attainment: float  # share of answers that keep both promises
    ttft_kept: float
    tpot_kept: float
    ttft_s: float
    tpot_s: float
    kv_share: float  # of the pools where tokens are drawn


def forecast(load: OfferedLoad, fleet: Fleet, slo: Slo, split: Split) -> Forecast:
    """Of one choice."""
    prompts = load.computed_prompts
    if split.together:
        return _together(load, fleet, slo, split, prompts)
    return _apart(load, fleet, slo, split, prompts)


def _together(
    load: OfferedLoad, fleet: Fleet, slo: Slo, split: Split, prompts: tuple[float, ...]
) -> Forecast:
    costs, count = fleet.costs, split.decode
    rate = load.rate_rps / count
    work, squares = _moments([costs.prompt_work_s(one) for one in prompts])
    busy = rate * work
    if busy >= 1.0:
        return _hopeless(split)
    # Prompts take their share of the time; the rest is left to steps of those who draw.
    row_s = costs.decode_s + costs.context_s * load.drawn_context
    drawn = drawing(
        load.answer_rate,
        load.answer_tokens,
        costs.base_s / (1.0 - busy),
        row_s / (1.0 - busy),
        count,
    )
    if drawn.step_s == math.inf:
        return _hopeless(split)
    rows = drawn.num / count
    fixed_s = costs.base_s + rows * row_s
    chunk_noise = rate * drawn.step_s * squares
    freely = _tpot(load, drawn, chunk_noise, NO_HANDOFF, slo.tpot_s)

    def with_chunks(share: float) -> tuple[Kept, Kept]:
        """TTFT and TPOT where steps have this share of their budget for prompts."""
        room = max(1.0, share * fleet.budget_tokens - rows)
        chunk = min(room, share * fleet.chunk_tokens)
        line = _line(prompts, costs, fixed_s, room, rate, 1)
        residual_s = drawn.step_s / 2.0
        ttft = _ttft(prompts, costs, fixed_s, chunk, line, residual_s, slo.ttft_s)
        longest_s = fixed_s + costs.prompt_work_s(chunk)
        bounded = below(slo.tpot_s, longest_s, drawn.per_one_s * drawn.deviation)
        return ttft, (max(freely[0], bounded), freely[1])

    if not fleet.bends:
        return _told(split, load, fleet, slo, drawn, *with_chunks(1.0))
    return _told(split, load, fleet, slo, drawn, *_bent([with_chunks(share) for share in BENT]))


def _bent(found: list[tuple[Kept, Kept]]) -> tuple[Kept, Kept]:
    """TTFT and TPOT where each step has the chunk that it needs: half way from the best one chunk
    for all to long ones for first tokens and short ones for those that draw, as simulations are.
    """
    (first, freely), (_, bounded) = found[0], found[-1]
    ttft, tpot = max(found, key=lambda one: one[0][0] * one[1][0])
    return ((ttft[0] + first[0]) / 2.0, ttft[1]), ((tpot[0] + bounded[0]) / 2.0, freely[1])


def _apart(
    load: OfferedLoad, fleet: Fleet, slo: Slo, split: Split, prompts: tuple[float, ...]
) -> Forecast:
    alone, costs = fleet.alone, fleet.costs
    room, chunk = float(fleet.budget_tokens), float(fleet.chunk_tokens)
    line = _line(prompts, alone, alone.base_s, room, load.rate_rps, split.prefill)
    work, _ = _moments([alone.base_s + alone.prompt_work_s(one) for one in prompts])
    # One that comes while a step runs waits for its end first.
    busy = min(1.0, load.rate_rps * work / split.prefill)
    residual_s = busy * work / 2.0
    ttft = _ttft(prompts, alone, alone.base_s, chunk, line, residual_s, slo.ttft_s)
    row_s = costs.decode_s + costs.context_s * load.drawn_context
    drawn = drawing(load.answer_rate, load.answer_tokens, costs.base_s, row_s, split.decode)
    if drawn.step_s == math.inf:
        return _hopeless(split)
    handoff = _handoff(fleet, sum(prompts) / len(prompts), line.chance, drawn.step_s)
    tpot = _tpot(load, drawn, 0.0, handoff, slo.tpot_s)
    return _told(split, load, fleet, slo, drawn, ttft, tpot)


def _handoff(fleet: Fleet, prompt_tokens: float, queued: float, step_s: float) -> Handoff:
    """Where the prompt was computed, a step more, which has the next prompt beside it where one is
    `queued`; then the transfer, and what is left of the step that runs where it goes.
    """
    alone = fleet.alone
    beside_s = alone.prompt_work_s(min(prompt_tokens, float(fleet.chunk_tokens)))
    sure_s = alone.base_s - step_s + fleet.transfer_s + step_s / 2.0
    return Handoff(sure_s, step_s / math.sqrt(12.0), queued, beside_s)


def _line(
    prompts: tuple[float, ...], costs: Costs, fixed_s: float, room: float, rate: float, servers: int
) -> Waiting:
    """Before prompts are computed. Those in line share steps, so that each has a part of a step's
    fixed time.
    """
    works = [fixed_s * one / room + costs.prompt_work_s(one) for one in prompts]
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
    """(share within the limit, mean): a step that runs, the line, and a prompt's own steps."""
    if line.mean_s == math.inf:
        return 0.0, -1.0
    own = [math.ceil(one / room) * fixed_s + costs.prompt_work_s(one) for one in prompts]
    kept = sum(line.within(limit_s - residual_s - one) for one in own) / len(own)
    return kept, residual_s + line.overall_s + sum(own) / len(own)


def _tpot(
    load: OfferedLoad, drawn: Drawing, noise: float, handoff: Handoff, limit_s: float
) -> Kept:
    """(share within the limit, mean) of answers; `noise` is the variance of a step's time, each
    step for itself.
    """
    lengths, chance = load.few_lengths, handoff.chance
    kept = 0.0
    for one in lengths:
        gaps = one - 1.0
        if gaps < 1.0:
            kept += 1.0
            continue
        wander_s = drawn.deviation_s(gaps * drawn.step_s)
        deviation_s = math.hypot(wander_s, handoff.deviation_s / gaps, math.sqrt(noise / gaps))
        left_s = limit_s - handoff.sure_s / gaps
        alone = below(left_s, drawn.step_s, deviation_s)
        beside = below(left_s - handoff.beside_s / gaps, drawn.step_s, deviation_s)
        kept += alone + chance * (beside - alone)
    once_s = handoff.sure_s + chance * handoff.beside_s
    return kept / len(lengths), drawn.step_s + once_s / max(1.0, load.answer_tokens - 1.0)


def _told(
    split: Split,
    load: OfferedLoad,
    fleet: Fleet,
    slo: Slo,
    drawn: Drawing,
    ttft: Kept,
    tpot: Kept,
) -> Forecast:
    """With what memory allows: who finds no room waits for it, before the first token where prompts
    are computed beside, else before the next one.
    """
    each = load.drawn_context
    places = split.decode * min(fleet.kv_tokens / each, float(fleet.max_running))
    room = waiting_for_room(places, drawn.num, load.answer_tokens * drawn.step_s)
    left_s = slo.ttft_s - ttft[1]
    if not split.together:
        left_s = (slo.tpot_s - tpot[1]) * max(0.0, load.answer_tokens - 1.0)
    fits = room.within(left_s)
    kv_share = min(9.99, drawn.num * each / (split.decode * fleet.kv_tokens))
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
    return sum(values) / len(values), sum(one * one for one in values) / len(values)
