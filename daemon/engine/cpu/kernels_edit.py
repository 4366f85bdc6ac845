"""The CPU kernel of edits: a row's logits before sampling, as `SlotEdits` has them."""

# numba infers the types of what follows; Python's annotations mean nothing to it.
# mypy: ignore-errors

import numpy as np

from daemon.engine.cpu.numeric import exactly
from daemon.engine.cpu.team import double_pointer, float_pointer, int64_pointer
from daemon.engine.sampler.sample_columns import (
    BIAS,
    BIAS_IDS,
    EDIT_COLUMNS,
    ENDS,
    HISTORY,
    KNOWN,
    NUM_BIAS,
    NUM_ENDS,
    POSITION,
    PROMPT,
    REPETITION,
    UNTIL,
)


@exactly
def _penalise(values, was, tokens, prompt, known, penalties):
    """A token that occurs twice is changed once by all but the frequency penalty."""
    factor = np.float32(penalties[0])
    if factor != np.float32(1.0):
        for index in range(known):
            was[tokens[index]] = values[tokens[index]]
        for index in range(known):
            value = was[tokens[index]]
            if value > np.float32(0.0):
                values[tokens[index]] = value / factor
            else:
                values[tokens[index]] = value * factor
    presence = np.float32(penalties[1])
    if presence != np.float32(0.0):
        for index in range(prompt, known):
            was[tokens[index]] = values[tokens[index]]
        for index in range(prompt, known):
            values[tokens[index]] = was[tokens[index]] - presence
    frequency = np.float32(penalties[2])
    if frequency != np.float32(0.0):
        for index in range(prompt, known):
            values[tokens[index]] -= frequency


@exactly
def edit_item(a, item):
    """Penalties, bias, and no end yet, in place.

    logits float32 [T, V], V, edits int64 [T, `EDIT_COLUMNS`].
    """
    width = a[5]
    address = a[6] + 8 * EDIT_COLUMNS * item
    row = int64_pointer(address)
    values = float_pointer(a[4] + 4 * item * width)
    if row[HISTORY] != 0:
        was = np.empty(width, np.float32)
        tokens, penalties = int64_pointer(row[HISTORY]), double_pointer(address + 8 * REPETITION)
        _penalise(values, was, tokens, row[PROMPT], row[KNOWN], penalties)
    ids, bias = int64_pointer(row[BIAS_IDS]), float_pointer(row[BIAS])
    for index in range(row[NUM_BIAS]):
        values[ids[index]] += bias[index]
    if row[POSITION] < row[UNTIL]:
        ends = int64_pointer(row[ENDS])
        for index in range(row[NUM_ENDS]):
            values[ends[index]] = -np.inf


@exactly
def append(edits, item, token):
    """Append a row's sampled token to its history."""
    row = int64_pointer(edits + 8 * EDIT_COLUMNS * item)
    if row[HISTORY] != 0:
        int64_pointer(row[HISTORY])[row[KNOWN]] = token
        row[KNOWN] += 1
    row[POSITION] += 1
