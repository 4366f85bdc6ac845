"""Edits of logits before sampling, for whole batches on the device.

`edit_logits`: penalties, logit bias and ends held back, a program per row, over the few tokens that
they touch; `forbid`: what a grammar's bitmask does not allow. The order of edits, and each rounding
on the way, is that of `daemon.engine.sampler.edits`.
"""

# Triton code is not typed, and names compile-time constants in capitals.
# mypy: disable-error-code="no-untyped-def,misc"
# ruff: noqa: N803

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from daemon.engine.cuda.triton.rows import row_stride

_TILE = 1024
_CHUNK = 4096

_FIELDS = tl.constexpr(9)
_PLACE = tl.constexpr(0)
_ROW = tl.constexpr(1)
_SLOT = tl.constexpr(2)
_POSITION = tl.constexpr(3)
_KNOWN = tl.constexpr(4)
_PROMPT = tl.constexpr(5)
_REPETITION = tl.constexpr(6)
_PRESENCE = tl.constexpr(7)
_FREQUENCY = tl.constexpr(8)


@dataclass(frozen=True, slots=True)
class SlotTables:
    """Tables on the device of the slots whose logits are edited: a row per slot."""

    history: torch.Tensor  # int32 [S, H]: the tokens known, prompt first
    ids: torch.Tensor  # int32 [S, W]: tokens with a bias, then ends; -1: none
    amounts: torch.Tensor  # float32 [S, W]: what is added to their logits; -infinity for ends
    untils: torch.Tensor  # int32 [S, W]: the first position at which it no longer is


def edit_logits(
    copy: torch.Tensor, logits: torch.Tensor, tables: SlotTables, rows: torch.Tensor
) -> None:
    """Edit rows of `copy` float32 [C, V], contiguous, as yet equal to those of `logits` [R, V].

    `rows` float64 [E, 9] on the device: a row's place in `copy` and in `logits`, its slot, the
    position of the token to be sampled, the number of known tokens (0 where no penalty counts them)
    and of prompt tokens; repetition, presence and frequency penalty. Raises ValueError if the
    logits of a row do not lie together.
    """
    if len(rows):
        _edit[(len(rows),)](
            copy, logits, tables.history, tables.ids, tables.amounts, tables.untils, rows,
            tables.history.shape[1], tables.ids.shape[1],
            VOCAB=copy.shape[1], STRIDE=row_stride(logits), TILE=_TILE,
            # One rounding for each operation, as on a CPU.
            enable_fp_fusion=False,
        )  # fmt: skip


def forbid(logits: torch.Tensor, rows: torch.Tensor, masks: torch.Tensor) -> None:
    """Set what is not allowed to minus infinity in `rows` int64 [G] of float32 logits [R, V].

    `logits` is contiguous and changed in place. `masks` int32 [G, W] on the device: bit t % 32 of
    word t // 32 allows token t; 32 * W >= V.
    """
    vocab = logits.shape[1]
    grid = (-(-vocab // _CHUNK), len(rows))
    _forbid[grid](logits, rows, masks, masks.shape[1], VOCAB=vocab, CHUNK=_CHUNK)


@triton.jit(do_not_specialize=["history_room", "nudge_room"])
def _edit(
    copy_ptr, logits_ptr, history_ptr, ids_ptr, amounts_ptr, untils_ptr, rows_ptr,
    history_room, nudge_room,
    VOCAB: tl.constexpr, STRIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Edit a row. Barriers separate writes to the same tokens."""
    field = rows_ptr + tl.program_id(0) * _FIELDS
    place, row = tl.load(field + _PLACE).to(tl.int64), tl.load(field + _ROW).to(tl.int64)
    slot = tl.load(field + _SLOT).to(tl.int64)
    position = tl.load(field + _POSITION).to(tl.int32)
    known = tl.load(field + _KNOWN).to(tl.int32)
    prompt = tl.minimum(tl.load(field + _PROMPT).to(tl.int32), known)
    repetition = tl.load(field + _REPETITION).to(tl.float32)
    presence = tl.load(field + _PRESENCE).to(tl.float32)
    frequency = tl.load(field + _FREQUENCY).to(tl.float32)
    copy, logits = copy_ptr + place * VOCAB, logits_ptr + row * STRIDE
    history = history_ptr + slot * history_room
    # From the logits themselves: a token that occurs twice writes the same value twice.
    _penalise(copy, logits, history, 0, prompt, repetition, 0.0, VOCAB, TILE)
    tl.debug_barrier()
    _penalise(copy, logits, history, prompt, known, repetition, presence, VOCAB, TILE)
    tl.debug_barrier()
    if frequency != 0:
        for first in range(prompt, known, TILE):
            token, mask = _tokens(history, first, known, VOCAB, TILE)
            # Equal amounts: their sum is the same in any order.
            tl.atomic_add(
                copy + token, -frequency + tl.zeros([TILE], tl.float32), mask=mask, sem="relaxed"
            )
    tl.debug_barrier()
    for first in range(0, nudge_room, TILE):
        nudge = first + tl.arange(0, TILE)
        cell = slot * nudge_room + nudge
        token = tl.load(ids_ptr + cell, mask=nudge < nudge_room, other=-1)
        until = tl.load(untils_ptr + cell, mask=token >= 0, other=0)
        live = (token >= 0) & (position < until)
        amount = tl.load(amounts_ptr + cell, mask=live, other=0.0)
        added = live & (amount > float("-inf"))
        value = tl.load(copy + token, mask=added, other=0.0)
        tl.store(copy + token, value + amount, mask=added)
        tl.debug_barrier()
        tl.store(copy + token, amount, mask=live & (amount == float("-inf")))
        tl.debug_barrier()


@triton.jit
def _tokens(history, first, end, VOCAB: tl.constexpr, TILE: tl.constexpr):
    """A tile of known tokens, and a mask of those that exist."""
    place = first + tl.arange(0, TILE)
    token = tl.load(history + place, mask=place < end, other=-1)
    return token, (token >= 0) & (token < VOCAB)


@triton.jit
def _penalise(
    copy, logits, history, begin, end, repetition, presence,
    VOCAB: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Repetition and presence penalty of the tokens known from `begin` to `end`."""
    for first in range(begin, end, TILE):
        token, mask = _tokens(history, first, end, VOCAB, TILE)
        value = tl.load(logits + token, mask=mask, other=0.0).to(tl.float32)
        factor = repetition + tl.zeros([TILE], tl.float32)
        value = tl.where(value > 0, tl.math.div_rn(value, factor), value * factor)
        tl.store(copy + token, value - presence, mask=mask)


@triton.jit(do_not_specialize=["words"])
def _forbid(logits_ptr, rows_ptr, masks_ptr, words, VOCAB: tl.constexpr, CHUNK: tl.constexpr):
    """A chunk of one row."""
    token = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    bound = tl.program_id(1).to(tl.int64)
    row = tl.load(rows_ptr + bound)
    word = tl.load(masks_ptr + bound * words + token // 32, mask=token < VOCAB, other=0)
    forbidden = ((word >> (token % 32)) & 1) == 0
    target = logits_ptr + row * VOCAB + token
    tl.store(target, tl.full([CHUNK], float("-inf"), tl.float32), mask=forbidden & (token < VOCAB))
