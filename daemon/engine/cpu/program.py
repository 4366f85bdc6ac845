"""A whole step of a few tokens as one program of compiled calls.

Between two calls the threads wait for each other for less than a microsecond, where every torch
operation wakes them anew: with few tokens that waking, and Python, cost as much as the products. A
row of several tokens, a short prompt, is computed as several rows of one, each behind the other.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.slots import Slots
from daemon.engine.cpu import calls, latent, mixer_calls
from daemon.engine.cpu.blocks import CHUNK_LEN
from daemon.engine.cpu.calls import Constants
from daemon.engine.cpu.choose_linear import reads_in_turn
from daemon.engine.cpu.mixer_calls import MixerCalls
from daemon.engine.cpu.mixtures import MixtureCalls, is_called
from daemon.engine.cpu.packed_linear import PackedLinear
from daemon.engine.cpu.quantised import QuantisedProduct, can_multiply
from daemon.engine.cpu.quantised_calls import unpacked
from daemon.engine.cpu.rank_calls import RanksInCalls, ranks_of
from daemon.engine.cpu.recurrent_calls import StateCalls
from daemon.engine.cpu.step_buffers import MAX_SAMPLED, MAX_TOKENS, StepBuffers
from daemon.engine.cpu.team import Call, Team, table_of
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.decoder import Decoder, DecoderLayer
from daemon.engine.layers.embeddings import Embeddings, PlainEmbeddings, QuantisedRows
from daemon.engine.layers.forward import Alone, Repeated
from daemon.engine.layers.latent import LatentProjection
from daemon.engine.layers.latent_heads import LatentHeads
from daemon.engine.layers.mixers import StateMixer
from daemon.engine.layers.mlp import DenseMlp, Layer, Mixture
from daemon.engine.layers.ops import Heads, Norm
from daemon.engine.layers.parallel_heads import ParallelHeads, SummedOutputs, products_of
from daemon.engine.layers.ranks import GatheredHead, RankPart, Ranks, SummedPart, bare
from daemon.engine.layers.stages import StageHead
from daemon.engine.quantised.weight import QuantisedWeight
from daemon.engine.sampler.rules import DrawRules
from daemon.models.formats import FORMATS

MAX_PLAIN = 32
"""Most tokens where weights are plain float32: torch multiplies more of them faster."""

MAX_PAIRS = MAX_TOKENS * (MAX_TOKENS + 1) // 2
"""Most pairs of a prompt's token and a token that it attends to: beyond, torch is faster, which
reads keys and values once for all.
"""

_OPERATORS = {"projected": "query_key_value", "query": "query_key_value", "logits": "head"}
"""The operator of a product whose buffer is called otherwise."""

_EXPERTS = "experts"
"""The operator of a mixture as a whole."""

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
        called = [_in_calls(decoder, count) for count in range(1, MAX_TOKENS + 1)]
        self._ranks = _ranks_of(decoder)
        if self._ranks is not None:
            called = _on_all(self._ranks, called)
        able = (count for count, is_called in enumerate(called, 1) if is_called)
        self._counts = {0, *able}  # 0: none is sampled
        self._picks = decoder.embeddings.width % CHUNK_LEN == 0
        self._programs: dict[tuple[int, int, int], _Program] = {}
        self._buffers = StepBuffers(decoder, cache, slots.block_table.shape[1])

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
        if self._ranks is not None:
            self._ranks.check()
        if not isinstance(self._decoder.vocabulary, StageHead):
            return program.logits
        if (behind := self._decoder.behind) is not None:
            behind.send(program.states)
        return self._decoder.vocabulary.shared(program.logits)

    def repeated(self, batch: FlatBatch, rules: DrawRules) -> Repeated | None:
        """See `Programs`; None where calls look no tokens up."""
        times = rules.times
        if _looked_up(self._decoder.embeddings) is None or len(batch.chunk_rows):
            return None
        if isinstance(self._decoder.vocabulary, StageHead):  # another stage samples
            return None
        program = self._prepared(batch)
        used = int(batch.positions.max() + times - 1) // self._cache.block_size + 1
        for group, tables in enumerate(self._buffers.tables[: self._cache.num_groups]):
            first = group * tables.shape[1]
            cells = self._slots.block_table[batch.slots, first : first + used]
            tables[: len(cells), :used] = cells
        self._buffers.fill(rules)
        self._team.run_program(program.repeated(times))
        drawn, broken = self._buffers.draws[:, :times, : len(batch.slots)]
        return Repeated(drawn.T.copy(), broken.T.astype(np.bool_))

    def _prepared(self, batch: FlatBatch) -> "_Program":
        """The program of a batch, its buffers filled."""
        key = len(batch.tokens), len(batch.sampled_tokens), _num_rows(batch)
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

    def alone(self, batch: FlatBatch) -> Alone:
        """See `Programs`."""
        tables = self._prepared(batch).alone()
        return {name: partial(self._team.run_program, table) for name, table in tables.items()}

    def prepare(self) -> bool:
        """Nothing to prepare: a program is written when it is needed."""
        return False

    def _reads_in_turn(self) -> bool:
        """Whether plain weights are read column by column for one token: measured once."""
        layers = (layer for layer in self._decoder.products() if isinstance(layer, PackedLinear))
        plain = [layer.plain for layer in layers if layer.plain is not None]
        return bool(plain) and reads_in_turn(plain, self._team)


def _ranks_of(decoder: Decoder) -> RanksInCalls | None:
    """The ranks that share a decoder; None where it is one's alone."""
    head = decoder.vocabulary
    return ranks_of(head) if isinstance(head, RankPart) else None


def _on_all(ranks: Ranks, own: Sequence[bool]) -> list[bool]:
    """Which of some things hold on all ranks: products may have been chosen otherwise on each."""
    rows = torch.tensor([own], dtype=torch.int64)
    found = ranks.gather(rows, [len(own)] * ranks.world_size)
    return found.view(ranks.world_size, -1).bool().all(0).tolist()


def _num_rows(batch: FlatBatch) -> int:
    """The rows that a batch's program has: a few numbers of them, where some have several tokens,
    so that there are few programs.
    """
    count = len(batch.counts)
    return min(1 << (count - 1).bit_length(), MAX_TOKENS) if len(batch.chunk_rows) else count


def _num_pairs(batch: FlatBatch) -> int:
    """Pairs of a token in a row of several and a token that it attends to."""
    rows = batch.chunk_rows
    counts, starts = batch.counts[rows].astype(np.int64), batch.starts[rows]
    return int((counts * starts + counts * (counts + 1) // 2).sum())


def possible(decoder: Decoder, cache: PagedKV) -> bool:
    """Whether every product can be computed by calls, at least of one token, and each layer has one
    place for keys and values of its own.
    """
    own = cache.layout is None or not cache.layout.shared
    whole = all(len(places) == 1 for places in cache.places.values())
    read = all(not view.latent or latent.can_read(view) for view in cache.views)
    head = decoder.vocabulary
    joins = not isinstance(head, RankPart) or isinstance(head.ranks, RanksInCalls)
    return own and whole and read and joins and _in_calls(decoder, 1)


def _in_calls(decoder: Decoder, count: int) -> bool:
    """Whether a step of `count` tokens is calls alone."""
    products: list[object] = [] if decoder.behind is not None else [decoder.vocabulary]
    for layer in decoder.layers:
        inner = layer.heads.products()
        products += [layer.query_key_value, *products_of(layer.output)]
        products += [product for product in inner if not isinstance(product, LatentProjection)]
        mlp = layer.mlp
        if mlp is None or isinstance(mlp, DenseMlp):
            products += mlp.products() if mlp else []
        elif is_called(mlp):
            products += mlp.shared.products() if mlp.shared else []
            products += [mlp.shared_share] if mlp.shared_share else []
        else:
            return False
    return all(_is_called(product, count) for product in products)


def _is_called(product: object, count: int) -> bool:
    product = bare(product)
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


class _Calls:
    """The calls of a program in order, and those of each operator."""

    def __init__(self) -> None:
        self.listed: list[Call] = []
        self.by_operator: dict[str, list[Call]] = {}

    def add(self, operator: str, *written: Call) -> None:
        """Append calls of an operator."""
        self.listed += written
        self.by_operator.setdefault(operator, []).extend(written)


class _Program:
    """The calls for a number of tokens, and of sampled ones among them."""

    def __init__(
        self,
        counts: tuple[int, int, int],
        decoder: Decoder,
        cache: PagedKV,
        constants: Constants,
        buffers: StepBuffers,
        waited_longest: bool,
    ) -> None:
        """`counts`: of tokens, of sampled ones, and of rows."""
        count, width = counts[0], decoder.embeddings.width
        self._count, self._num_sampled, self._num_rows = counts
        self._in_turn = waited_longest
        self._decoder = decoder
        self._cache = cache
        self._constants = constants
        self._buffers = buffers
        self.states, self._normed = (
            buffers.floats(name, count, width) for name in ("states", "normed")
        )
        self._angles = [(cos[:count], sin[:count]) for cos, sin in buffers.angles]
        self._contexts = buffers.contexts(count)
        tables = (rotary.tables for rotary in decoder.rotary)
        self._turned = calls.turned(list(zip(tables, self._angles, strict=True)))
        groups = list(zip(self._contexts, buffers.places, strict=True))
        self._moved = calls.moved(groups[: cache.num_groups])
        self._looked_up = _looked_up(decoder.embeddings)
        self._mixtures = MixtureCalls(count, buffers.mixtures)
        self.logits, written = self._write()
        self.table = table_of(written.listed)
        self._repeated: dict[int, npt.NDArray[np.int64]] = {}

    def prepare(self, tokens: torch.Tensor, batch: FlatBatch) -> None:
        """Fill the buffers for one step of `tokens` int64 [T]."""
        buffers, count = self._buffers, self._count
        if self._looked_up is None:
            self.states.copy_(self._decoder.embeddings(tokens))
        else:
            buffers.tokens[:count].copy_(tokens)
        positions = torch.from_numpy(batch.positions)
        for rotary, angles in zip(self._decoder.rotary, self._angles, strict=True):
            rotary.fill(angles, positions)
        buffers.offsets[:count] = batch.offsets
        np.add(batch.positions, 1, out=buffers.lens[:count], casting="same_kind")
        groups = (batch.blocks, batch.block_tables), *batch.further
        for group, (blocks, tables) in enumerate(groups):
            each = np.repeat(tables, batch.counts, axis=0) if len(tables) < count else tables
            buffers.blocks[group, :count] = blocks
            buffers.tables[group, :count, : each.shape[1]] = each
        if buffers.state_rows is not None:
            buffers.state_rows.fill(batch)
        if self._num_sampled < count:
            sampled = torch.from_numpy(batch.sampled_tokens)
            buffers.sampled[: self._num_sampled].copy_(sampled)

    def repeated(self, times: int) -> npt.NDArray[np.int64]:
        """The program `times` times, each followed by sampling and a move to the next position."""
        if times not in self._repeated:
            buffers = self._buffers
            place = self._contexts[0], buffers.places[0], self._cache.block_size
            further = calls.advance(*place, self._moved, self._turned)
            edit, parts = calls.edit(self.logits, buffers.edits), []
            for time in range(times):
                draw = calls.sample(self.logits, buffers.drawing(time))
                between = [edit, draw, further] if time + 1 < times else [edit, draw]
                parts += [self.table, table_of(between)]
            self._repeated[times] = np.concatenate(parts)
        return self._repeated[times]

    def alone(self) -> dict[str, npt.NDArray[np.int64]]:
        """A program for each operator, of its calls in all layers."""
        _, written = self._write()
        return {operator: table_of(listed) for operator, listed in written.by_operator.items()}

    def _write(self) -> tuple[torch.Tensor, "_Calls"]:
        """The tensor that the logits go to, and all calls in order."""
        decoder, written = self._decoder, _Calls()
        if self._looked_up is not None:
            tokens = self._buffers.tokens[: self._count]
            picked = unpacked(self._looked_up, range(self._count), self.states, tokens)
            written.add("embedding", picked)
            if decoder.embeddings.scale != 1:
                factor = self._constants.address(decoder.embeddings.scale)
                written.add("embedding", calls.scale(self.states, factor))
        added: torch.Tensor | None = None
        of_added: Norm | None = None
        for layer in decoder.layers:
            written.add("norm", self._added(added, of_added, layer.input_norm))
            added = self._mix(written, layer)
            of_added = layer.output_norm
            if layer.mlp is not None and layer.mlp_norm is not None:
                written.add("norm", self._added(added, of_added, layer.mlp_norm))
                added, of_added = self._mlp(written, layer.mlp), layer.mlp_output_norm
            if layer.scale != 1.0:
                written.add("norm", calls.scale(self.states, self._constants.address(layer.scale)))
        written.add("norm", self._added(added, of_added, decoder.norm))
        if decoder.behind is not None:
            return self.states[: self._num_sampled, :0], written
        sampled = self._sampled(written)
        logits = self._product(written, decoder.vocabulary, sampled, "logits")
        if isinstance(decoder.vocabulary, GatheredHead):
            logits = self._gathered(written, decoder.vocabulary, logits)
        if decoder.cap:
            written.add("head", calls.cap(logits, self._constants.address(decoder.cap)))
        return logits, written

    def _mlp(self, written: "_Calls", mlp: DenseMlp | Mixture) -> torch.Tensor:
        if isinstance(mlp, Mixture):
            shared, share = None, None
            if mlp.shared is not None:
                shared = self._of_two(written, mlp.shared, True)
            if mlp.shared_share is not None:
                share = self._product(written, mlp.shared_share, self._normed, "share", _EXPERTS)
            output = self._buffers.floats("down", *self._normed.shape)
            beside = shared, share
            written.add(_EXPERTS, *self._mixtures.calls(mlp, self._normed, output, beside))
            return output
        return self._of_two(written, mlp)

    def _of_two(self, written: "_Calls", mlp: DenseMlp, shared: bool = False) -> torch.Tensor:
        """An MLP of two products; `shared`: one beside experts, a part of their operator."""
        named = "shared " if shared else ""
        of = (_EXPERTS,) * 3 if shared else ("gate_up", "activation", "down")
        gate_up = self._product(written, mlp.gate_up, self._normed, f"{named}gate_up", of[0])
        if mlp.factors is not None:
            written.add(of[1], mixer_calls.weighed(gate_up, mlp.factors))
        width = mlp.activation.width(gate_up.shape[1])
        inner = self._buffers.floats(f"{named}inner", self._count, width)
        written.add(of[1], mixer_calls.activated(gate_up, inner, mlp.activation))
        down = self._product(written, mlp.down, inner, f"{named}down", of[2])
        if mlp.scale != 1.0:
            written.add(of[2], calls.scale(down, self._constants.address(mlp.scale)))
        return down

    def _sampled(self, written: "_Calls") -> torch.Tensor:
        """The states of sampled tokens."""
        count = self._num_sampled
        if count == self._count:
            return self._normed
        found = self._buffers.floats("sampled", count, self._normed.shape[1])
        rows, indices = _plain_rows(self._normed), self._buffers.sampled[:count]
        written.add("head", unpacked(rows, range(count), found, indices))
        return found

    def _mix(self, written: "_Calls", layer: DecoderLayer) -> torch.Tensor:
        """The states that a layer's mixer of tokens, or both of them, give, projected."""
        own, index = layer.heads, layer.number
        projected = self._product(written, layer.query_key_value, self._normed, "projected")
        if isinstance(own, ParallelHeads):
            return self._mix_twice(written, layer, own, projected)
        if isinstance(own, LatentHeads):
            attended = self._attend_to_rows(written, index, own, projected)
        elif isinstance(own, StateMixer):
            attended = self._go_on(written, index, own, projected)
        else:
            attended = self._attend(written, layer, own, projected)
        return self._product(written, layer.output, attended, "output")

    def _mix_twice(
        self, written: "_Calls", layer: DecoderLayer, own: ParallelHeads, projected: torch.Tensor
    ) -> torch.Tensor:
        """See `ParallelHeads.attend` and `SummedOutputs`."""
        output = layer.output
        assert isinstance(output, SummedOutputs)
        written.add("query_key_value", mixer_calls.weighed(projected, own.factors))
        of_mixer, of_heads = projected.split(own.sizes, 1)
        mixed = self._go_on(written, layer.number, own.mixer, of_mixer)
        first, second = output.layers
        added = self._product(written, first, mixed, "output")
        attended = self._attend(written, layer, own.heads, of_heads)
        beside = self._product(written, second, attended, "output beside", "output")
        scales = self._constants.address(*output.scales)
        written.add("output", mixer_calls.summed(added, beside, scales))
        return added

    def _attend(
        self, written: "_Calls", layer: DecoderLayer, own: Heads, projected: torch.Tensor
    ) -> torch.Tensor:
        """See `Heads.attend`."""
        index = layer.number
        whole = projected
        if own.gated:
            projected = self._buffers.floats("parted", self._count, own.width + own.sizes[1])
            written.add("attention", mixer_calls.part_heads(own, whole, projected))
        heads, kv_heads, head_dim = own.num_heads, own.num_kv_heads, own.head_dim
        projected = projected.view(-1, heads + 2 * kv_heads, head_dim)
        query, key, value = projected.split((heads, kv_heads, kv_heads), 1)
        norms = own.query_norm, own.key_norm, own.value_norm
        for part, norm in zip((query, key, value), norms, strict=True):
            if norm is not None:
                written.add("norm", calls.norm_of(self._constants, part, None, norm, part))
        turning = projected[:, : heads + kv_heads]
        written.add("rope", calls.rotate(turning, *self._angles[layer.rotary]))
        group, number = self._place(index)
        cache, places = self._cache.views[group], self._buffers.places[group]
        written.add("attention", calls.store(cache, number, key, value, places))
        output = self._buffers.floats("attended", self._count, own.width)
        address = self._constants.address(own.scale, own.variant.cap)
        place = cache, number, query, self._contexts[group]
        written.add("attention", calls.attend(*place, address, output, own.variant))
        if own.gated:
            written.add("attention", mixer_calls.gate_heads(own, whole, output))
        return output

    def _go_on(
        self, written: "_Calls", index: int, mixer: StateMixer, projected: torch.Tensor
    ) -> torch.Tensor:
        """See `attend` of mixers."""
        rows = self._buffers.state_rows
        assert rows is not None, "a pool for layers with states has pages of them"
        states = StateCalls(rows, self._num_rows)
        mixing = MixerCalls(states, self._constants, self._buffers.floats, self._joined)
        output, listed = mixing.of(index, mixer, projected)
        written.add("states", *listed)
        return output

    def _place(self, index: int) -> tuple[int, int]:
        """A layer's group, and its number there."""
        (group, number), *_ = self._cache.places.get(index) or ((0, index),)
        return group, number

    def _attend_to_rows(
        self, written: "_Calls", index: int, own: LatentHeads, projected: torch.Tensor
    ) -> torch.Tensor:
        """See `LatentHeads.attend`."""
        made, buffers, count = own.projection, self._buffers, self._count
        states, row = projected.split((projected.shape[1] - made.width, made.width), 1)
        if own.query is not None and own.query_norm is not None:
            inner = buffers.floats("inner query", *states.shape)
            written.add("norm", calls.norm_of(self._constants, states, None, own.query_norm, inner))
            states = self._product(written, own.query, inner, "query")
        query, row = states.unflatten(1, (made.num_heads, -1)), row.unsqueeze(1)
        part = row[..., : made.rank]
        written.add("norm", calls.norm_of(self._constants, part, None, own.row_norm, part))
        turned, turn = query[..., made.own :], latent.turn if own.in_pairs else calls.rotate
        (angles,) = self._angles
        written.add("rope", turn(turned, *angles), turn(row[..., made.rank :], *angles))
        group, number = self._place(index)
        cache, places = self._cache.views[group], buffers.places[group]
        absorbed, means = (
            buffers.floats(name, count, made.num_heads * made.rank).view(count, -1, made.rank)
            for name in ("absorbed", "means")
        )
        output = buffers.floats("attended", count, own.width)
        scale = self._constants.address(own.scale)
        written.add(
            "attention",
            calls.store(cache, number, row, row, places),
            latent.absorb(made, query, absorbed),
            latent.attend(cache, number, (absorbed, turned), self._contexts[group], scale, means),
            latent.emit(made, means, output),
        )
        return output

    def _product(
        self,
        written: "_Calls",
        product: Layer,
        states: torch.Tensor,
        name: str,
        operator: str = "",
    ) -> torch.Tensor:
        """`name`: of the buffer, and unless one is given of the operator."""
        output, listed = self._multiplied(bare(product), states, name)
        written.add(operator or _OPERATORS.get(name, name), *listed)
        if isinstance(product, SummedPart):
            written.add("ranks", ranks_of(product).sum_call(output))
        return output

    def _joined(
        self, product: Layer, states: torch.Tensor, name: str
    ) -> tuple[torch.Tensor, list[Call]]:
        """As `_multiplied`, with the sum where ranks have parts of the product."""
        output, listed = self._multiplied(bare(product), states, name)
        if isinstance(product, SummedPart):
            listed = [*listed, ranks_of(product).sum_call(output)]
        return output, listed

    def _multiplied(
        self, product: Layer, states: torch.Tensor, name: str
    ) -> tuple[torch.Tensor, list[Call]]:
        """A product in the buffer of a name, and the calls that make it of dense states."""
        assert isinstance(product, PackedLinear | QuantisedProduct)
        output = self._buffers.floats(name, len(states), product.out_features)
        if isinstance(product, QuantisedProduct):
            return output, product.calls(states, output, self._buffers.products) or []
        assert product.plain is not None
        in_turn = self._in_turn and len(states) > 0  # of one token, and none may be sampled
        return output, [calls.linear(product.plain, product.bias, states, output, in_turn)]

    def _gathered(
        self, written: "_Calls", head: GatheredHead, logits: torch.Tensor
    ) -> torch.Tensor:
        """The logits of all ranks."""
        whole = self._buffers.floats("all logits", len(logits), sum(head.widths))
        written.add("ranks", ranks_of(head).gather_call(logits, head.widths, whole))
        return whole

    def _added(self, added: torch.Tensor | None, of_added: Norm | None, norm: Norm) -> Call:
        """The states with something, or its norm, added; and their own norm."""
        parts = self.states, added, norm, self._normed, of_added
        return calls.norm_of(self._constants, *parts)
