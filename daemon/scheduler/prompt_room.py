"""Prompt room: the prompt tokens of a step beside decodes, so that both meet their SLOs.

A pipeline's steps have as many each, so that its stages take as long.

Streams bound the step's time: until the next token of the tightest one is due. Prompts bound its
tokens: enough that each waiting prompt gets its first token in time. Where both cannot be met,
prompts win: a stream makes up for one long step, and a first token comes once.

Mixed instances were best with chunks of 128, 256 or 512 tokens, by SLO and load. To
choose one for a load takes a forecast of each, hysteresis and a state. A chunk for each step keeps
at least as much, since the tightest stream and the queue differ from step to step.
"""

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np

from daemon.scheduler.order import Order
from daemon.scheduler.policies.base import MIXED
from daemon.scheduler.slots import SlotTable
from daemon.scheduler.step import LEAST_SHARE
from daemon.state.sequence import Sequence
from daemon.state.slo import Slo
from daemon.wire.columns import Slots

AIM = 0.95
"""The share of the TPOT SLO that streams are kept to, as step times err."""
MOST_WAITING = 8
"""Most waiting sequences that are looked at."""


def prompt_room(
    order: Order, most: int, decodes: Slots, prompts: Slots, slo: Slo, now: float
) -> int:
    """Prompt tokens of the next step, `most` at most, beside these decodes; prompts that have begun
    are in order. Before step times are known it is `most`.
    """
    table, step_time = order.slots, order.step_time
    first = table.member(int(prompts[0])) if prompts.size else order.waiting.first
    token_s = step_time.chunk_s(first.num_known_tokens) / first.num_known_tokens
    if most <= 1 or token_s <= 0.0 or order.policy.filler != MIXED or order.policy.whole_prompts:
        return most
    fixed_s = step_time.decode_s(decodes.size, int(table.known[decodes].sum()))
    spare_s = _spare_s(table, decodes, slo.tpot_s, fixed_s, now)
    if spare_s >= fixed_s + most * token_s:
        return most
    room = max(1.0, most * LEAST_SHARE, (spare_s - fixed_s) / token_s)
    due_s = now - slo.ttft_s  # prompts that arrived then are due now
    needed = _needed(order, prompts, due_s, fixed_s, token_s, most)
    return int(min(most, max(room, needed)))


def even_room(
    order: Order, most: int, decodes: Slots, prompts: Slots, before: int, num_stages: int
) -> int:
    """Prompt tokens of a pipeline's next step, `most` at most: as many as other steps have, since a
    stage waits where the one before it takes longer than itself (DistServe 4.3).

    `before`: those of the step planned before, if it is in flight. The tokens to compute become n
    steps, which pass in n + `num_stages` - 1 steps' time: more steps fill the stages sooner, and
    each takes its fixed time.
    """
    table, step_time = order.slots, order.step_time
    pending = int((table.known[prompts] - table.computed[prompts]).sum())
    pending += order.waiting.num_uncomputed_tokens
    if order.policy.whole_prompts or pending <= 1 or most <= 1:
        return most
    fixed_s = step_time.decode_s(decodes.size, int(table.known[decodes].sum()))
    computed_s = step_time.chunk_s(pending)
    best = math.sqrt((num_stages - 1) * computed_s / fixed_s) if fixed_s > 0.0 else 1.0
    size = max(pending / max(best, 1.0), before)
    num_steps = max(round(pending / size), -(-pending // most), 1)
    return -(-pending // num_steps)


def _spare_s(table: SlotTable, decodes: Slots, tpot_s: float, fixed_s: float, now: float) -> float:
    """The longest time of the step. Streams that would break their SLO though all their steps were
    decodes alone are ignored.
    """
    first_s = table.first_s[decodes]
    since_s = np.where(first_s < 0.0, 0.0, now - first_s)
    outputs = table.known[decodes] - table.prompt[decodes]
    left = (table.likely_end[decodes] - table.known[decodes]).clip(0)
    may_keep = tpot_s * (outputs + left - 1) - since_s >= left * fixed_s
    if not may_keep.any():
        return np.inf
    spare_s = (AIM * tpot_s * outputs - since_s)[may_keep]
    return max(AIM * tpot_s, float(spare_s.min()))


def _needed(
    order: Order, prompts: Slots, due_s: float, fixed_s: float, token_s: float, most: int
) -> float:
    """Tokens that each step needs for prompts to be in time, one after the other, after a long step
    that may be running. A prompt that cannot be in time with the longest steps is ignored.
    """
    before, needed, long_s = 0, 0.0, fixed_s + most * token_s
    for tokens, sequence in _in_line(order, prompts):
        before += tokens * sequence.prompt_cost
        spare_s = sequence.arrived_s - due_s - before * token_s
        fewest_s = before * fixed_s / most
        if spare_s > fewest_s and not sequence.num_output_tokens:
            needed = max(needed, before * fixed_s / max(fewest_s, spare_s - long_s))
    return needed


def _in_line(order: Order, prompts: Slots) -> Iterator[tuple[int, Sequence]]:
    """(tokens left to compute, sequence) of prompts that have begun, then of the first waiting
    ones.
    """
    table = order.slots
    for slot in prompts.tolist():
        yield int(table.known[slot] - table.computed[slot]), table.member(slot)
    for sequence in islice(order.waiting, MOST_WAITING):
        yield sequence.num_known_tokens, sequence
