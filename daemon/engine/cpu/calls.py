"""Writes the calls that `kernels` runs, from float32 tensors; their arrays must outlive the run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from daemon.engine.cpu import kernels
from daemon.engine.cpu.kernels_linear import COLUMNS_AT_ONCE, COLUMNS_IN_TURN
from daemon.engine.cpu.numeric import TOKENS_AT_ONCE
from daemon.engine.cpu.team import Call
from daemon.engine.kv.eight_bit import FP8
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import FULL, AttentionVariant
from daemon.engine.layers.ops import Activation, Angles, Norm
from daemon.engine.sampler.noise import UInts
from daemon.engine.sampler.rules import Float64
from daemon.wire.columns import Int32, Int64

_CAPPED_AT_ONCE = 4096
"""Numbers in one item of a cap."""


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@dataclass(slots=True)
class Constants:
    """Numbers that kernels read from memory, kept alive, one of each value."""

    arrays: dict[tuple[float, ...], tuple[np.ndarray, int]]

    def address(self, *values: float) -> int:
        """The address of float32 of these values."""
        if values not in self.arrays:
            array = np.array(values, np.float32)
            self.arrays[values] = (array, _address(array))
        return self.arrays[values][1]


@dataclass(frozen=True, slots=True)
class Places:
    """Destinations of T tokens: the addresses of int32 blocks and offsets [T]."""

    blocks: int
    offsets: int

    @classmethod
    def of(cls, blocks: Int32, offsets: Int32) -> "Places":
        """The addresses of two columns."""
        return cls(_address(blocks), _address(offsets))


@dataclass(frozen=True, slots=True)
class Contexts:
    """Contexts of B single-token rows: addresses of int32 columns, and a table's width."""

    tables: int  # [B, width]
    width: int
    tokens: int  # [B]
    lens: int  # [B]
    num_rows: int

    @classmethod
    def of(cls, tables: Int32, tokens: Int32, lens: Int32, num_rows: int) -> "Contexts":
        """The addresses of the columns."""
        addresses = _address(tables), tables.shape[1], _address(tokens), _address(lens)
        return cls(*addresses, num_rows)


def norm(
    states: torch.Tensor,
    added: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: int,
    output: torch.Tensor,
    of_added: tuple[int, int] = (0, 0),
) -> Call:
    """Norm of `states` [T, width], or of each head of [T, heads, width]; `epsilon` is an address.

    `added` (dense, only with 2-d states) is added first, in place; its norm, where `of_added` has
    the addresses of a weight and an epsilon.
    """
    together = states.shape[1] if states.dim() == 3 else 1
    num_rows = states.shape[0] * together
    return (
        -(-num_rows // TOKENS_AT_ONCE),
        kernels.NORM,
        states.data_ptr(),
        states.stride(0),
        together,
        0 if added is None else added.data_ptr(),
        num_rows,
        states.shape[-1],
        weight.data_ptr(),
        epsilon,
        output.data_ptr(),
        output.stride(0),
        *of_added,
    )


def norm_of(
    constants: Constants,
    states: torch.Tensor,
    added: torch.Tensor | None,
    by: Norm,
    output: torch.Tensor,
    of_added: Norm | None = None,
) -> Call:
    """The call of a norm; see `Ops.norm`."""
    epsilon, added_norm = constants.address(by.epsilon), (0, 0)
    if added is not None and of_added is not None:
        added_norm = of_added.weight.data_ptr(), constants.address(of_added.epsilon)
    return norm(states, added, by.weight, epsilon, output, added_norm)


def rotate(states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Call:
    """Rotary positions of `states` [T, heads, head_dim] in place, each head's numbers dense; `cos`
    [T, rotary_dim], dense.
    """
    count, heads, _ = states.shape
    return (
        -(-count // TOKENS_AT_ONCE),
        kernels.ROTATE,
        states.data_ptr(),
        states.stride(0),
        count,
        heads,
        states.stride(1),
        cos.shape[-1],
        cos.data_ptr(),
        sin.data_ptr(),
    )


@dataclass(frozen=True, slots=True)
class SampleColumns:
    """How rows sample, and their tokens; columns are `daemon.engine.sampler.sample_columns`'s."""

    rules: Float64  # [T, RULE_COLUMNS]
    keys: UInts  # [T]
    drawn: Int32  # [T]
    broken: Int32  # [T]: 1 where the logits leave no token
    tokens: Int32  # [T]: the sampled tokens again, as the next step's
    edits: Int64 | None = None  # [T, EDIT_COLUMNS]


def edit(logits: torch.Tensor, edits: Int64) -> Call:
    """Changes of `logits` float32 [T, V], dense, in place, before sampling."""
    count, width = logits.shape
    return (count, kernels.EDIT, logits.data_ptr(), width, _address(edits))


def sample(logits: torch.Tensor, drawing: SampleColumns) -> Call:
    """Samples from `logits` float32 [T, V], dense."""
    count, width = logits.shape
    columns = drawing.drawn, drawing.broken, drawing.tokens, drawing.rules, drawing.keys
    edits = 0 if drawing.edits is None else _address(drawing.edits)
    addresses = (_address(column) for column in columns)
    return (count, kernels.SAMPLE, logits.data_ptr(), width, *addresses, edits)


def moved(groups: Sequence[tuple[Contexts, Places]]) -> Int64:
    """The addresses that `advance` takes of each group of layers [G, 2]."""
    return np.array([(contexts.tables, places.blocks) for contexts, places in groups], np.int64)


def turned(kinds: Sequence[tuple[Angles, Angles]]) -> Int64:
    """The addresses that `advance` takes of each kind of angles [K, 5]."""
    found = [
        (*(table.data_ptr() for table in (*of_all, *of_rows)), of_all[0].shape[1])
        for of_all, of_rows in kinds
    ]
    return np.array(found, np.int64)


def advance(
    contexts: Contexts, places: Places, block_size: int, moves: Int64, turns: Int64
) -> Call:
    """Move rows of one token a position on: any group's lengths and offsets, all groups' blocks
    (`moved`) and all angles (`turned`).
    """
    return (
        contexts.num_rows,
        kernels.ADVANCE,
        contexts.lens,
        places.offsets,
        block_size,
        contexts.width,
        _address(moves),
        len(moves),
        _address(turns),
        len(turns),
    )


def gated(
    states: torch.Tensor, output: torch.Tensor, activation: Activation = Activation.SILU
) -> Call:
    """`output` [T, width] from `states` [T, 2 * width], both dense."""
    count, width = output.shape
    items = -(-count // TOKENS_AT_ONCE)
    opcode = kernels.SILU_MUL if activation is Activation.SILU else kernels.GELU_MUL
    return (items, opcode, states.data_ptr(), count, width, output.data_ptr())


def scale(states: torch.Tensor, factor: int) -> Call:
    """`states` [T, width], dense, times the number at an address, in place."""
    count, width = states.shape
    items = -(-count // TOKENS_AT_ONCE)
    return (items, kernels.SCALE, states.data_ptr(), count, width, factor)


def cap(states: torch.Tensor, limit: int) -> Call:
    """`states`, dense, kept within the number at an address, in place: see `AttentionVariant`."""
    count = states.numel()
    items = -(-count // _CAPPED_AT_ONCE)
    return (items, kernels.CAP, states.data_ptr(), count, _CAPPED_AT_ONCE, limit)


def linear(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor,
    output: torch.Tensor,
    waited_longest: bool = False,
) -> Call:
    """`output` [T, N] of `states` [T, K] and `weight` [N, K], all dense.

    `in_turn`: column by column, of one token.
    """
    num_columns, width = weight.shape
    opcode, at_once = (
        (kernels.IN_TURN, COLUMNS_IN_TURN) if waited_longest else (kernels.LINEAR, COLUMNS_AT_ONCE)
    )
    return (
        -(-num_columns // at_once),
        opcode,
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        states.data_ptr(),
        len(states),
        width,
        num_columns,
        output.data_ptr(),
    )


def store(
    cache: PagedKV, layer: int, key: torch.Tensor, value: torch.Tensor, places: Places
) -> Call:
    """Write `key` and `value` [T, kv_heads, head_dim], of one row stride, to their pages; a pool of
    latent rows takes these as both.
    """
    count, heads, head_dim = key.shape
    width = heads * head_dim
    common = (
        key.data_ptr(),
        value.data_ptr(),
        key.stride(0),
        cache.blocks.data_ptr(),
        cache.row_shift(layer, False) * width,
        cache.blocks.stride(0),
        0 if cache.latent else cache.block_size,  # rows from a key to its value
        places.blocks,
        places.offsets,
        count,
    )
    items = -(-count // TOKENS_AT_ONCE)
    if cache.scales is None:
        return (items, kernels.STORE, *common, width)
    opcode = kernels.STORE_FP8 if cache.kv_dtype is FP8 else kernels.STORE_INT8
    return (items, opcode, *common, heads, head_dim, cache.scales[0, layer].data_ptr())


def attend(
    cache: PagedKV,
    layer: int,
    query: torch.Tensor,
    contexts: Contexts,
    scale_and_cap: int,
    output: torch.Tensor,
    variant: AttentionVariant = FULL,
) -> Call:
    """Attention of single-token rows: `query` [T, heads, head_dim] to `output`, dense.

    `scale_and_cap` is an address; the variant's sinks are float32.
    """
    num_kv_heads, head_dim = cache.blocks.shape[4:]
    common = (
        query.data_ptr(),
        query.stride(0),
        cache.blocks.data_ptr(),
        cache.row_shift(layer, False) * num_kv_heads * head_dim,
        cache.blocks.stride(0),
        cache.block_size,
        contexts.tables,
        contexts.width,
        contexts.tokens,
        contexts.lens,
        num_kv_heads,
        query.shape[1] // num_kv_heads,
        head_dim,
        scale_and_cap,
        output.data_ptr(),
    )
    sinks = 0 if variant.sinks is None else variant.sinks.data_ptr()
    items = contexts.num_rows * num_kv_heads
    if cache.scales is None:
        return (items, kernels.ATTEND, *common, variant.window, sinks)
    opcode = kernels.ATTEND_FP8 if cache.kv_dtype is FP8 else kernels.ATTEND_INT8
    scales = cache.scales[0, layer].data_ptr()
    return (items, opcode, *common, scales, variant.window, sinks)
