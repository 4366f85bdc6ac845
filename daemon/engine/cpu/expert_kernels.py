"""The CPU kernels of a mixture: which experts take which tokens, and their products as one call.

Rows are the tokens of one expert after those of another. How many rows an expert has is known only
when a step computes, so that kernels write it to a table that others read: `GROUPS_HEAD` numbers
(how many experts have rows, and how many rows there are), then `GROUP` numbers of each such expert
(which one, its first row, its rows).

Called by address, as the kernels of `quantised_kernels`.
"""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

import math
from functools import cache

import numpy as np
from numba import njit

from daemon.engine.cpu.dots import stack
from daemon.engine.cpu.numeric import exp
from daemon.engine.cpu.quantised_kernels import ITEM
from daemon.engine.cpu.team import call_item, float_pointer, int32_pointer, int64_pointer

GROUPS_HEAD, GROUP = 2, 3

LEAST_SHARES = 1e-20
"""The least divisor of shares, as in `daemon.engine.layers.routers`."""
MOST_GROUPS = 63
"""Groups of experts that a token may choose from."""

_ARGUMENTS_BYTES = 8 * 15
_inner = njit(cache=True, error_model="numpy", inline="always")


@cache
def routed():
    """The kernel that chooses a token's experts: the k likeliest, of equal ones the first.

    logits [T, E], E, k, whether their shares add up to 1, chosen (int32 [T, k]), shares [T, k].
    """

    @ITEM
    def item(a, token):
        logits = float_pointer(a[5] + 4 * token * a[6])
        chosen = int32_pointer(a[9] + 4 * token * a[7])
        shares = float_pointer(a[10] + 4 * token * a[7])
        largest = logits[0]
        for expert in range(a[6]):
            largest = max(largest, logits[expert])
        total = np.float32(0.0)
        for expert in range(a[6]):
            total += np.float32(math.exp(logits[expert] - largest))
        before, last = np.float32(np.inf), 0
        together = np.float32(0.0)
        for place in range(a[7]):
            best, found = np.float32(-np.inf), place  # of what are no numbers, any
            for expert in range(a[6]):
                here = logits[expert]
                further = here < before or (here == before and expert > last)
                if further and here > best:
                    best, found = here, expert
            before, last = best, found
            chosen[place] = found
            shares[place] = np.float32(math.exp(best - largest)) / total
            together += shares[place]
        if a[8] != 0:
            for place in range(a[7]):
                shares[place] /= together

    return item


@cache
def routed_by_scores():
    """The kernel that chooses a token's experts by scores that groups or corrections change.

    logits [T, E], which become scores, E, k, whether shares add up to 1, chosen (int32 [T, k]),
    shares [T, k], whether scores are sigmoids, corrections [E] or 0, groups, kept groups, the scale
    of all shares and what is added to their divisor (float32 [2]).
    """

    @ITEM
    def item(a, token):
        scores = float_pointer(a[5] + 4 * token * a[6])
        chosen = int32_pointer(a[9] + 4 * token * a[7])
        shares = float_pointer(a[10] + 4 * token * a[7])
        _score(scores, a[6], a[11])
        better = float_pointer(a[12])
        kept, of_group = np.int64(-1), a[6] // a[13]
        if a[14] < a[13]:
            kept = _kept_groups(scores, better, a[12], a[13], of_group, a[14])
        before, last, together = np.float32(np.inf), 0, np.float32(0.0)
        for place in range(a[7]):
            best, found = np.float32(-np.inf), place  # of what are no numbers, any
            for expert in range(a[6]):
                if (kept >> (expert // of_group)) & 1 == 0:
                    continue
                here = scores[expert]
                if a[12] != 0:
                    here += better[expert]
                further = here < before or (here == before and expert > last)
                if further and here > best:
                    best, found = here, expert
            before, last = best, found
            chosen[place], shares[place] = found, scores[found]
            together += scores[found]
        scale = float_pointer(a[15])[0]
        if a[8] != 0:
            together += float_pointer(a[15])[1]
            scale /= max(together, np.float32(LEAST_SHARES))
        for place in range(a[7]):
            shares[place] *= scale

    return item


@_inner
def _score(scores, count, sigmoid):
    """Turn logits into scores, in place."""
    if sigmoid != 0:
        for expert in range(count):
            scores[expert] = np.float32(1.0 / (1.0 + math.exp(-scores[expert])))
        return
    largest, total = scores[0], np.float32(0.0)
    for expert in range(count):
        largest = max(largest, scores[expert])
    for expert in range(count):
        scores[expert] = np.float32(math.exp(scores[expert] - largest))
        total += scores[expert]
    for expert in range(count):
        scores[expert] /= total


@_inner
def _kept_groups(scores, better, corrected, groups, of_group, most):
    """int64: a bit for each group that is kept, those whose two best experts are the best."""
    kept = np.int64(0)
    for _ in range(most):
        best, found = np.float32(-np.inf), -1
        for group in range(groups):
            if (kept >> group) & 1:
                continue
            first, second = np.float32(-np.inf), np.float32(-np.inf)
            for expert in range(group * of_group, (group + 1) * of_group):
                here = scores[expert]
                if corrected != 0:
                    here += better[expert]
                if here > first:
                    first, second = here, first
                elif here > second:
                    second = here
            if found < 0 or first + second > best:
                best, found = first + second, group
        kept |= np.int64(1) << found
    return kept


@cache
def arranged():
    """The kernel that gives each token a row with each of its experts.

    chosen (int32 [T * k]), T * k, k, E, the multiple at which an expert's rows begin, groups, the
    tokens of rows (int32), the rows of tokens (int32 [T * k]), rows of experts (int32 [E]).
    """

    @ITEM
    def item(a, _number):
        chosen, groups, counts = int32_pointer(a[5]), int64_pointer(a[10]), int32_pointer(a[13])
        tokens, rows = int32_pointer(a[11]), int32_pointer(a[12])
        for expert in range(a[8]):
            counts[expert] = 0
        for pair in range(a[6]):
            counts[chosen[pair]] += 1
        row, number = 0, 0
        for expert in range(a[8]):
            count = counts[expert]
            if count > 0:
                at = GROUPS_HEAD + GROUP * number
                groups[at], groups[at + 1], groups[at + 2] = expert, row, count
                number += 1
                counts[expert] = row
                row += (count + a[9] - 1) // a[9] * a[9]
        groups[0], groups[1] = number, row
        for between in range(row):
            tokens[between] = 0  # no token's: its results are not used
        for pair in range(a[6]):
            row = counts[chosen[pair]]
            counts[chosen[pair]] = row + 1
            tokens[row] = pair // a[7]
            rows[pair] = row

    return item


@cache
def grouped():
    """The kernel of products of all experts: each item is one of the product of an expert's rows.

    kernel, addresses of weights (int64 [E]), bytes of a row, N, K, states, bytes of a row of
    states, output, its stride, tokens of a record, groups, items of a product.
    """

    @ITEM
    def item(a, number):
        groups, at = int64_pointer(a[15]), GROUPS_HEAD + GROUP * (number // a[16])
        if number // a[16] < groups[0]:
            expert, first, count = groups[at], groups[at + 1], groups[at + 2]
            own = int64_pointer(stack(_ARGUMENTS_BYTES))
            own[5] = int64_pointer(a[6])[expert]
            own[6], own[7], own[8] = a[7], a[8], a[9]
            own[9], own[10] = a[10] + first * a[11], count
            own[11], own[12], own[13] = a[12] + 4 * first * a[13], a[13], 0
            own[14] = a[14]
            call_item(a[5], own, number % a[16])

    return item


@cache
def biased():
    """The kernel that adds its expert's bias to each row: each item is an expert's rows.

    states [rows, N], N, biases [E, N], groups.
    """

    @ITEM
    def item(a, number):
        groups, at = int64_pointer(a[8]), GROUPS_HEAD + GROUP * number
        if number < groups[0]:
            expert, first, count = groups[at], groups[at + 1], groups[at + 2]
            bias = float_pointer(a[7] + 4 * expert * a[6])
            for row in range(first, first + count):
                states = float_pointer(a[5] + 4 * row * a[6])
                for column in range(a[6]):
                    states[column] += bias[column]

    return item


@cache
def clamped():
    """The kernel of gpt-oss's gate (`daemon.engine.quantised.experts.ClampedGate`), a row an item.

    states [rows, 2 * N], N, output [rows, N], limit and alpha float32 [2], whether gates and ups
    take turns, or all ups come behind all gates.
    """

    @ITEM
    def item(a, row):
        states = float_pointer(a[5] + 8 * row * a[6])
        output = float_pointer(a[7] + 4 * row * a[6])
        limit, alpha = float_pointer(a[8])[0], float_pointer(a[8])[1]
        step, behind = (2, 1) if a[9] != 0 else (1, a[6])
        for column in range(a[6]):
            gate = min(states[step * column], limit)
            up = max(min(states[step * column + behind], limit), -limit)
            share = np.float32(1.0) / (np.float32(1.0) + exp(-alpha * gate))
            output[column] = gate * share * (up + np.float32(1.0))

    return item


@cache
def joined():
    """The kernel that adds up the outputs of a token's experts, and of an MLP beside them.

    made [rows, K], K, rows of tokens (int32 [T, k]), shares [T, k], k, output [T, K], the MLP's
    output [T, K] or 0, logits of its share [T] or 0.
    """

    @ITEM
    def item(a, token):
        rows = int32_pointer(a[7] + 4 * token * a[9])
        shares = float_pointer(a[8] + 4 * token * a[9])
        output = float_pointer(a[10] + 4 * token * a[6])
        if a[11] == 0:
            for column in range(a[6]):
                output[column] = np.float32(0.0)
        else:
            beside, share = float_pointer(a[11] + 4 * token * a[6]), np.float32(1.0)
            if a[12] != 0:
                share = np.float32(1.0 / (1.0 + math.exp(-float_pointer(a[12])[token])))
            for column in range(a[6]):
                output[column] = share * beside[column]
        for place in range(a[9]):
            made, share = float_pointer(a[5] + 4 * rows[place] * a[6]), shares[place]
            for column in range(a[6]):
                output[column] += share * made[column]

    return item
