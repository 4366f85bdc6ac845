"""A whole step of a few tokens as one program of compiled calls.

Between two calls the threads wait for each other for less than a microsecond, where every torch
operation wakes them anew: with few tokens that waking, and Python, cost as much as the products. A
row of several tokens, a short prompt, is computed as several rows of one, each behind the other.
"""

import numpy as np
import numpy.typing as npt
import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.multi_step import MOST_TIMES
from daemon.engine.batch.slots import Slots
from daemon.engine.cpu import calls
from daemon.engine.cpu.blocks import CHUNK_LEN
from daemon.engine.cpu.calls import Constants, Contexts, DrawColumns, Places
from daemon.engine.cpu.choose_linear import reads_in_turn
from daemon.engine.cpu.mixtures import MixtureCalls, is_called, mixture_buffers
from daemon.engine.cpu.packed_linear import PackedLinear
from daemon.engine.cpu.quantised import QuantisedProduct, StateBuffers, can_multiply
from daemon.engine.cpu.quantised_calls import unpacked
from daemon.engine.cpu.team import Call, Team, table_of
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.decoder import Decoder, DecoderLayer
from daemon.engine.layers.embeddings import Embeddings, PlainEmbeddings, QuantisedRows
from daemon.engine.layers.forward import Repeated
from daemon.engine.layers.mlp import GatedMlp, Layer, Mixture
from daemon.engine.layers.ops import Norm
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.engine.sampler.draw_columns import EDIT_COLUMNS, RULE_COLUMNS
from daemon.engine.sampler.rules import DrawRules
from daemon.models.formats import FORMATS

MAX_TOKENS = 128
"""Most tokens for which a program beats torch's products."""

MAX_PLAIN = 32
"""Most tokens where weights are plain float32: torch multiplies more of them faster."""

MAX_SAMPLED = 32
"""Most tokens that are sampled: their logits stay in memory."""

MAX_PAIRS = MAX_TOKENS * (MAX_TOKENS + 1) // 2
"""Most pairs of a prompt's token and a token that it attends to: beyond, torch is faster, which
reads keys and values once for all.
"""

MOST_PROGRAMS = 64
"""Programs that are kept: the last used."""


class StepPrograms:
    """Programs of a decoder, one for each number of tokens and of sampled ones among them."""

    def __init__(
        self, decoder: Decoder, cache: PagedKV, slots: Slots, team: Team, constants: Constants
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._slots = slots
        self._team = team
        self._constants = constants
        called = (count for count in range(1, MAX_TOKENS + 1) if _in_calls(decoder, count))
        self._counts = {0, *called}  # 0: none is sampled
        self._picks = decoder.embeddings.width % CHUNK_LEN == 0
        self._programs: dict[tuple[int, int], _Program] = {}
        self._buffers = _Buffers(decoder, slots.block_table.shape[1])

    def takes(self, batch: FlatBatch) -> bool:
        """Whether a batch has few tokens, few of them sampled, and no long prompt."""
        count, sampled = len(batch.tokens), len(batch.sampled_tokens)
        if (sampled < count and not self._picks) or sampled > MAX_SAMPLED:
            return False
        if count not in self._counts or sampled not in self._counts:
            return False
        return not len(batch.chunk_rows) or _num_pairs(batch) <= MAX_PAIRS

    def logits(self, batch: FlatBatch) -> torch.Tensor:
        """Logits [R, vocab] of a batch that it takes; they are overwritten by the next step."""
        program = self._prepared(batch)
        self._team.run_program(program.table)
        return program.logits

    def repeated(self, batch: FlatBatch, rules: DrawRules) -> Repeated | None:
        """See `Programs`; None where calls look no tokens up."""
        times = rules.times
        if _looked_up(self._decoder.embeddings) is None or len(batch.chunk_rows):
            return None
        program = self._prepared(batch)
        used = int(batch.positions.max() + times - 1) // self._cache.block_size + 1
        tables = self._slots.block_table[batch.slots, :used]
        self._buffers.tables[: len(tables), :used] = tables
        self._buffers.fill(rules)
        self._team.run_program(program.repeated(times))
        drawn, broken = self._buffers.draws[:, :times, : len(batch.slots)]
        return Repeated(drawn.T.copy(), broken.T.astype(np.bool_))

    def _prepared(self, batch: FlatBatch) -> "_Program":
        """The program of a batch, its buffers filled."""
        key = len(batch.tokens), len(batch.sampled_tokens)
        program = self._programs.pop(key, None)
        if program is None:
            waited_longest = key[0] == 1 and self._reads_in_turn()
            parts = self._decoder, self._cache, self._constants, self._buffers
            program = _Program(key, *parts, waited_longest)
            if len(self._programs) == MOST_PROGRAMS:
                del self._programs[next(iter(self._programs))]
        self._programs[key] = program
        program.prepare(self._slots.inputs(batch), batch)
        return program

    def prepare(self) -> bool:
        """Nothing to prepare: a program is written when it is needed."""
        return False

    def _reads_in_turn(self) -> bool:
        """Whether plain weights are read column by column for one token: measured once."""
        layers = (layer for layer in self._decoder.products() if isinstance(layer, PackedLinear))
        plain = [layer.plain for layer in layers if layer.plain is not None]
        return bool(plain) and reads_in_turn(plain, self._team)


def _num_pairs(batch: FlatBatch) -> int:
    """Pairs of a token in a row of several and a token that it attends to."""
    rows = batch.chunk_rows
    counts, starts = batch.counts[rows].astype(np.int64), batch.starts[rows]
    return int((counts * starts + counts * (counts + 1) // 2).sum())


def possible(decoder: Decoder) -> bool:
    """Whether every product can be computed by calls, at least of one token."""
    return _in_calls(decoder, 1)


def _in_calls(decoder: Decoder, count: int) -> bool:
    """Whether a step of `count` tokens is calls alone."""
    products: list[object] = [decoder.head]
    for layer in decoder.layers:
        products += [layer.query_key_value, layer.output]
        if isinstance(layer.mlp, GatedMlp):
            products += layer.mlp.products()
        elif not is_called(layer.mlp):
            return False
    return all(_is_called(product, count) for product in products)


def _is_called(product: object, count: int) -> bool:
    if isinstance(product, QuantisedProduct):
        return product.in_calls(count)
    return (
        isinstance(product, PackedLinear)
        and count <= MAX_PLAIN
        and product.plain is not None
        and product.plain.dtype is torch.float32
    )


def _looked_up(embeddings: Embeddings) -> QuantisedWeight | None:
    """The weight that a call looks tokens up in; None where torch does."""
    if isinstance(embeddings, QuantisedRows):
        weight = embeddings.weight
    elif isinstance(embeddings, PlainEmbeddings) and embeddings.weight.dtype is torch.float32:
        weight = _plain_rows(embeddings.weight)
    else:
        return None
    return weight if weight.order is None and can_multiply(weight) else None


def _plain_rows(rows: torch.Tensor) -> QuantisedWeight:
    """Dense float32 [N, K] as a weight whose rows calls pick."""
    return QuantisedWeight(FORMATS["F32"], rows.view(torch.uint8), rows.shape[1])


class _Buffers:
    """Buffers of a decoder's programs: each has the first rows of the same buffers.

    Rows that no program used yet take no memory.
    """

    def __init__(self, decoder: Decoder, num_blocks: int) -> None:
        """`num_blocks`: of a sequence, at most."""
        self.tokens, self.sampled = torch.zeros(2, MAX_TOKENS, dtype=torch.int32)
        self.blocks, self.offsets, self.lens = np.zeros((3, MAX_TOKENS), np.int32)
        self.rows = np.arange(MAX_TOKENS, dtype=np.int32)
        self.tables = np.zeros((MAX_TOKENS, num_blocks), np.int32)
        self.angles = decoder.rotary.angles(torch.zeros(MAX_TOKENS, dtype=torch.int64))
        self.products = StateBuffers(MAX_TOKENS)
        self.mixtures = mixture_buffers([layer.mlp for layer in decoder.layers], MAX_TOKENS)
        self.draws = np.zeros((2, MOST_TIMES, MAX_SAMPLED), np.int32)  # tokens, and broken rows
        self.rules = np.zeros((MAX_SAMPLED, RULE_COLUMNS))
        self.keys = np.zeros((MOST_TIMES, MAX_SAMPLED), np.uint64)
        self.edits = np.zeros((MAX_SAMPLED, EDIT_COLUMNS), np.int64)
        self._floats: dict[str, torch.Tensor] = {}

    def fill(self, rules: DrawRules) -> None:
        """Fill in how the rows of a step sample."""
        count = len(rules.rules)
        self.rules[:count], self.edits[:count] = rules.rules, rules.edits
        self.keys[: rules.times, :count] = rules.keys
        self.draws[1, : rules.times, :count] = 1  # until it is sampled

    def drawing(self, time: int) -> DrawColumns:
        """How rows sample in the `time`-th step."""
        drawn, broken = self.draws[:, time]
        columns = drawn, broken, self.tokens.numpy(), self.edits
        return DrawColumns(self.rules, self.keys[time], *columns)

    def floats(self, name: str, count: int, width: int) -> torch.Tensor:
        """A dense float32 [count, width], the same for every layer: the nearest cache holds it."""
        if name not in self._floats:
            self._floats[name] = torch.empty(MAX_TOKENS, width)
        return self._floats[name][:count]


class _Program:
    """The calls for a number of tokens, and of sampled ones among them."""

    def __init__(
        self,
        counts: tuple[int, int],
        decoder: Decoder,
        cache: PagedKV,
        constants: Constants,
        buffers: _Buffers,
        waited_longest: bool,
    ) -> None:
        """`counts`: of tokens, and of sampled ones."""
        count, width = counts[0], decoder.embeddings.width
        self._count, self._num_sampled = counts
        self._in_turn = waited_longest
        self._decoder = decoder
        self._cache = cache
        self._constants = constants
        self._buffers = buffers
        self._states, self._normed = (
            buffers.floats(name, count, width) for name in ("states", "normed")
        )
        cos, sin = buffers.angles
        self._angles = cos[:count], sin[:count]
        self._contexts = Contexts.of(buffers.tables, buffers.rows, buffers.lens, count)
        self._looked_up = _looked_up(decoder.embeddings)
        self._mixtures = MixtureCalls(count, buffers.mixtures)
        self.logits, listed = self._write()
        self.table = table_of(listed)
        self._repeated: dict[int, npt.NDArray[np.int64]] = {}

    def prepare(self, tokens: torch.Tensor, batch: FlatBatch) -> None:
        """Fill the buffers for one step of `tokens` int64 [T]."""
        buffers, count = self._buffers, self._count
        if self._looked_up is None:
            self._states.copy_(self._decoder.embeddings(tokens))
        else:
            buffers.tokens[:count].copy_(tokens)
        self._decoder.rotary.fill(self._angles, torch.from_numpy(batch.positions))
        buffers.blocks[:count] = batch.blocks
        buffers.offsets[:count] = batch.offsets
        np.add(batch.positions, 1, out=buffers.lens[:count], casting="same_kind")
        tables = batch.block_tables
        if len(tables) < count:
            tables = np.repeat(tables, batch.counts, axis=0)
        buffers.tables[:count, : tables.shape[1]] = tables
        if self._num_sampled < count:
            sampled = torch.from_numpy(batch.sampled_tokens)
            buffers.sampled[: self._num_sampled].copy_(sampled)

    def repeated(self, times: int) -> npt.NDArray[np.int64]:
        """The program `times` times, each followed by sampling and a move to the next position."""
        if times not in self._repeated:
            buffers = self._buffers
            places = Places.of(buffers.blocks, buffers.offsets)
            angles = self._decoder.rotary.tables, self._angles
            further = calls.advance(self._contexts, places, self._cache.block_size, *angles)
            edit, parts = calls.edit(self.logits, buffers.edits), []
            for time in range(times):
                draw = calls.draw(self.logits, buffers.drawing(time))
                between = [edit, draw, further] if time + 1 < times else [edit, draw]
                parts += [self.table, table_of(between)]
            self._repeated[times] = np.concatenate(parts)
        return self._repeated[times]

    def _write(self) -> tuple[torch.Tensor, list[Call]]:
        """The tensor that the logits go to, and all calls in order."""
        decoder, listed = self._decoder, list[Call]()
        if self._looked_up is not None:
            tokens = self._buffers.tokens[: self._count]
            listed.append(unpacked(self._looked_up, range(self._count), self._states, tokens))
        added: torch.Tensor | None = None
        for index, layer in enumerate(decoder.layers):
            listed.append(self._norm(self._states, added, layer.input_norm, self._normed))
            attended = self._attend(listed, index, layer)
            output = self._product(listed, layer.output, attended, "output")
            listed.append(self._norm(self._states, output, layer.mlp_norm, self._normed))
            added = self._mlp(listed, layer.mlp)
        listed.append(self._norm(self._states, added, decoder.norm, self._normed))
        sampled = self._sampled(listed)
        logits = self._product(listed, decoder.head, sampled, "logits")
        return logits, listed

    def _mlp(self, listed: list[Call], mlp: GatedMlp | Mixture) -> torch.Tensor:
        if isinstance(mlp, Mixture):
            output = self._buffers.floats("down", *self._normed.shape)
            listed += self._mixtures.calls(mlp, self._normed, output)
            return output
        gate_up = self._product(listed, mlp.gate_up, self._normed, "gate_up")
        inner = self._buffers.floats("inner", self._count, gate_up.shape[1] // 2)
        listed.append(calls.silu_mul(gate_up, inner))
        return self._product(listed, mlp.down, inner, "down")

    def _sampled(self, listed: list[Call]) -> torch.Tensor:
        """The states of sampled tokens."""
        count = self._num_sampled
        if count == self._count:
            return self._normed
        found = self._buffers.floats("sampled", count, self._normed.shape[1])
        rows, indices = _plain_rows(self._normed), self._buffers.sampled[:count]
        listed.append(unpacked(rows, range(count), found, indices))
        return found

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
        places = Places.of(self._buffers.blocks, self._buffers.offsets)
        listed.append(calls.store(self._cache, index, key, value, places))
        output = self._buffers.floats("attended", self._count, heads * head_dim)
        scale = self._constants.address(layer.heads.scale)
        listed.append(calls.attend(self._cache, index, query, self._contexts, scale, output))
        return output

    def _product(
        self, listed: list[Call], product: Layer, states: torch.Tensor, name: str
    ) -> torch.Tensor:
        assert isinstance(product, PackedLinear | QuantisedProduct)
        output = self._buffers.floats(name, len(states), product.out_features)
        if isinstance(product, QuantisedProduct):
            listed += product.calls(states, output, self._buffers.products) or ()
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
