"""A whole decode step of a few sequences as one program of compiled calls.

Between two calls the threads wait for each other for less than a microsecond, where every torch
operation wakes them anew: with few tokens that waking, and Python, cost as much as the products.
"""

import numpy as np
import torch

from daemon.engine.cpu import calls
from daemon.engine.cpu.calls import Constants, Contexts, Places
from daemon.engine.cpu.choose_linear import reads_in_turn
from daemon.engine.cpu.quantised import QuantisedProduct, can_multiply
from daemon.engine.cpu.quantised_calls import unpacked
from daemon.engine.cpu.team import Call, Team, table_of
from daemon.engine.decoder import Decoder, DecoderLayer, Layer
from daemon.engine.embeddings import Embeddings, QuantisedRows
from daemon.engine.kv_cache import PagedKV
from daemon.engine.linear import PackedLinear
from daemon.engine.metadata import FlatBatch
from daemon.engine.ops import Norm
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.engine.slots import Slots

MAX_ROWS = 32
"""Up to so many sequences a program beats torch's products."""


class DecodePrograms:
    """Programs of a decoder, one for each number of sequences up to `MAX_ROWS`."""

    def __init__(
        self, decoder: Decoder, cache: PagedKV, slots: Slots, team: Team, constants: Constants
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._slots = slots
        self._team = team
        self._constants = constants
        self._counts = {count for count in range(1, MAX_ROWS + 1) if _in_calls(decoder, count)}
        self._programs: dict[int, _Program] = {}

    def takes(self, batch: FlatBatch) -> bool:
        """Whether a batch is a few sequences, each at one token, all sampled."""
        num_rows = len(batch.counts)
        single = len(batch.tokens) == len(batch.sampled_tokens) == num_rows
        return single and num_rows in self._counts

    def logits(self, batch: FlatBatch) -> torch.Tensor:
        """Logits [T, vocab] of a batch that it takes; they are overwritten by the next step."""
        count = len(batch.tokens)
        program = self._programs.get(count)
        if program is None:
            in_turn = count == 1 and self._reads_in_turn()
            parts = self._decoder, self._cache, self._constants
            program = _Program(count, *parts, self._slots.block_table.shape[1], in_turn)
            self._programs[count] = program
        program.prepare(self._slots.inputs(batch), batch)
        self._team.run_program(program.table)
        return program.logits

    def prepare(self) -> bool:
        """A program is written in no time."""
        return False

    def _reads_in_turn(self) -> bool:
        """Whether plain weights are read column by column for one sequence: measured once."""
        layers = (one for one in self._decoder.products() if isinstance(one, PackedLinear))
        plain = [layer.plain for layer in layers if layer.plain is not None]
        return bool(plain) and reads_in_turn(plain, self._team)


def possible(decoder: Decoder) -> bool:
    """Whether every product can be computed by calls, at least of one sequence."""
    return _in_calls(decoder, 1)


def _in_calls(decoder: Decoder, count: int) -> bool:
    """Whether a step of so many sequences is calls alone."""
    return all(_is_called(product, count) for product in decoder.products())


def _is_called(product: Layer, count: int) -> bool:
    if isinstance(product, QuantisedProduct):
        return product.in_calls(count)
    return (
        isinstance(product, PackedLinear)
        and product.plain is not None
        and product.plain.dtype is torch.float32
    )


def _looked_up(embeddings: Embeddings) -> QuantisedWeight | None:
    """The weight that a call looks tokens up in; None where torch does."""
    if not isinstance(embeddings, QuantisedRows) or embeddings.weight.order is not None:
        return None
    return embeddings.weight if can_multiply(embeddings.weight) else None


class _Program:
    """The calls for one number of sequences, and the buffers that they name."""

    def __init__(
        self,
        count: int,
        decoder: Decoder,
        cache: PagedKV,
        constants: Constants,
        num_blocks: int,
        in_turn: bool,
    ) -> None:
        """`num_blocks`: of a sequence, at most."""
        width = decoder.embeddings.width
        self._in_turn = in_turn
        self._decoder = decoder
        self._cache = cache
        self._constants = constants
        self._states, self._normed = torch.empty(2, count, width)
        self._tokens = torch.zeros(count, dtype=torch.int32)
        self._blocks, self._offsets, self._lens = np.zeros((3, count), np.int32)
        self._rows = np.arange(count, dtype=np.int32)
        self._tables = np.zeros((count, num_blocks), np.int32)
        self._contexts = Contexts.of(self._tables, self._rows, self._lens, count)
        self._angles = decoder.rotary.angles(torch.zeros(count, dtype=torch.int64))
        self._buffers: dict[str, torch.Tensor] = {}
        self._looked_up = _looked_up(decoder.embeddings)
        self.logits, listed = self._write()
        self.table = table_of(listed)

    def prepare(self, tokens: torch.Tensor, batch: FlatBatch) -> None:
        """Fill the buffers for one step of `tokens` int64 [T]."""
        if self._looked_up is None:
            self._states.copy_(self._decoder.embeddings(tokens))
        else:
            self._tokens.copy_(tokens)
        self._decoder.rotary.fill(self._angles, torch.from_numpy(batch.positions))
        self._blocks[:] = batch.blocks
        self._offsets[:] = batch.offsets
        np.add(batch.starts, 1, out=self._lens)
        self._tables[:, : batch.block_tables.shape[1]] = batch.block_tables

    def _write(self) -> tuple[torch.Tensor, list[Call]]:
        """Where the logits will be, and all calls in order."""
        decoder, listed = self._decoder, list[Call]()
        if self._looked_up is not None:
            rows = range(len(self._tokens))
            listed.append(unpacked(self._looked_up, rows, self._states, self._tokens))
        added: torch.Tensor | None = None
        for index, layer in enumerate(decoder.layers):
            listed.append(self._norm(self._states, added, layer.input_norm, self._normed))
            attended = self._attend(listed, index, layer)
            output = self._product(listed, layer.output, attended, "output")
            listed.append(self._norm(self._states, output, layer.mlp_norm, self._normed))
            gate_up = self._product(listed, layer.gate_up, self._normed, "gate_up")
            inner = self._buffer("inner", gate_up.shape[1] // 2)
            listed.append(calls.silu_mul(gate_up, inner))
            added = self._product(listed, layer.down, inner, "down")
        listed.append(self._norm(self._states, added, decoder.norm, self._normed))
        return self._product(listed, decoder.head, self._normed, "logits"), listed

    def _attend(self, listed: list[Call], index: int, layer: DecoderLayer) -> torch.Tensor:
        heads, kv_heads = layer.heads.num_heads, layer.heads.num_kv_heads
        head_dim = layer.heads.head_dim
        projected = self._product(listed, layer.query_key_value, self._normed, "projected")
        projected = projected.view(-1, heads + 2 * kv_heads, head_dim)
        query, key, value = projected.split((heads, kv_heads, kv_heads), 1)
        for part, norm in ((query, layer.heads.query_norm), (key, layer.heads.key_norm)):
            if norm is not None:
                listed.append(self._norm(part, None, norm, part))
        listed.append(calls.rotate(projected[:, : heads + kv_heads], *self._angles))
        places = Places.of(self._blocks, self._offsets)
        listed.append(calls.store(self._cache, index, key, value, places))
        output = self._buffer("attended", heads * head_dim)
        scale = self._constants.address(layer.heads.scale)
        listed.append(calls.attend(self._cache, index, query, self._contexts, scale, output))
        return output

    def _product(
        self, listed: list[Call], product: Layer, states: torch.Tensor, name: str
    ) -> torch.Tensor:
        assert isinstance(product, PackedLinear | QuantisedProduct)
        output = self._buffer(name, product.out_features)
        if isinstance(product, QuantisedProduct):
            listed += product.calls(states, output) or ()
        else:
            assert product.plain is not None
            plain = product.plain
            listed.append(calls.linear(plain, product.bias, states, output, self._in_turn))
        return output

    def _norm(
        self,
        states: torch.Tensor,
        added: torch.Tensor | None,
        norm: Norm,
        output: torch.Tensor,
    ) -> Call:
        epsilon = self._constants.address(norm.epsilon)
        return calls.norm(states, added, norm.weight, epsilon, output)

    def _buffer(self, name: str, width: int) -> torch.Tensor:
        """A dense [T, width], the same for every layer: the nearest cache then holds it."""
        if name not in self._buffers:
            self._buffers[name] = torch.empty(len(self._states), width)
        return self._buffers[name]
