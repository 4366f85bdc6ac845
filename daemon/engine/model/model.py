"""One forward pass over a flattened row of tokens."""

import torch
from torch import nn

from daemon.engine.batch.flat_batch import FlatBatch
from daemon.engine.batch.slots import Slots
from daemon.engine.batch.upload import upload_all
from daemon.engine.cpu.packed_linear import PackedLinear
from daemon.engine.kv.pool import PagedKV
from daemon.engine.layers.attention import GroupedAttention, PagedAttention
from daemon.engine.layers.decoder import Decoder
from daemon.engine.layers.forward import Alone, Differing, Programs, Repeated
from daemon.engine.layers.modules import Modules
from daemon.engine.layers.operators import operators_alone
from daemon.engine.layers.ranks import Ranks, on_all
from daemon.engine.layers.recurrent.functions import recurring
from daemon.engine.model.backend import Backend
from daemon.engine.model.linear import quantised_bytes
from daemon.engine.quantised.divided import DividedLayers
from daemon.engine.sampler.rules import DrawRules


def attention_of(batch: FlatBatch, cache: PagedKV, backend: Backend) -> PagedAttention:
    """One step's attention over all groups of layers."""
    if cache.layout is None or cache.is_direct:
        return backend.attend(batch, cache)
    groups = []
    for number, (group, view) in enumerate(zip(cache.layout.groups, cache.views, strict=True)):
        rows = batch.of_group(number)
        if group.chunked:
            rows = rows.of_chunks(group.window, cache.block_size)
        groups.append(backend.attend(rows, view))
    return GroupedAttention(groups, cache.places, cache.layout.shared)


class CausalModel:
    """A loaded causal language model; logits are computed for sampled tokens only."""

    def __init__(self, forward: Decoder | Modules, ranks: Ranks | None = None) -> None:
        """`ranks` that compute it together, where there are several."""
        self._forward = forward
        self._ranks = ranks
        self._programs: Programs | None = None
        self._alike: dict[tuple[int, int], bool] = {}  # asked of each product, so kept
        self.experts = DividedLayers(forward.products())

    @property
    def fused(self) -> bool:
        """Whether the straight decoder computes, not transformers' modules."""
        return isinstance(self._forward, Decoder)

    @property
    def decoder(self) -> Decoder | None:
        """The straight decoder; None where transformers' modules compute."""
        return self._forward if isinstance(self._forward, Decoder) else None

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights, packed copies included, shared ones counted once."""
        held = [product for product in self._forward.products() if isinstance(product, nn.Module)]
        tensors = [p for module in held for p in module.parameters(recurse=False)]
        quantised: list[object] = [*held]
        if isinstance(self._forward, Decoder):
            tensors += self._forward.small_weights()
            quantised.append(self._forward.own_embeddings)
        sizes = {tensor.data_ptr(): tensor.nbytes for tensor in tensors}
        packed = (layer.packed_bytes for layer in held if isinstance(layer, PackedLinear))
        return sum(sizes.values()) + sum(packed) + quantised_bytes(quantised)

    def compile_steps(self, backend: Backend, cache: PagedKV, slots: Slots) -> None:
        """From now on compute decode steps as compiled programs, where there are any."""
        self._programs = backend.compile(self._forward, cache, slots)

    @property
    def compiled(self) -> bool:
        """Whether there are compiled steps."""
        return self._programs is not None

    @property
    def uncompiled(self) -> "CausalModel":
        """The same without compiled steps."""
        return CausalModel(self._forward, self._ranks)

    def compiles(self, batch: FlatBatch) -> bool:
        """Whether a batch would be computed by a compiled step."""
        return self._programs is not None and self._programs.takes(batch)

    def alike(self, count: int, other: int) -> bool:
        """Whether a token gets the same logits in a step of `count` tokens as in one of `other`: to
        the bit where states are rounded, else but for the order of sums.
        """
        if (count, other) not in self._alike:
            differing = (
                product for product in self._forward.products() if isinstance(product, Differing)
            )
            same = count == other or all(product.alike(count, other) for product in differing)
            # Products may have been chosen otherwise on other ranks.
            self._alike[count, other] = on_all(self._ranks, same)
        return self._alike[count, other]

    def same_until(self, most: int) -> tuple[int, ...]:
        """Numbers of tokens, below `most`, above which a step's logits differ."""
        return tuple(count for count in range(1, most) if not self.alike(count, count + 1))

    def prepare(self) -> bool:
        """Compile one more program while idle; False where there is none left."""
        return self._programs is not None and self._programs.prepare()

    def logits(
        self, batch: FlatBatch, slots: Slots, cache: PagedKV, backend: Backend
    ) -> torch.Tensor:
        """Logits [R, vocab] of a batch's sampled tokens; overwritten by the next step."""
        if self._programs is not None and self.compiles(batch):
            return self._programs.logits(batch)
        return self.head(self.states(batch, slots, cache, backend))

    def repeated(self, batch: FlatBatch, rules: DrawRules) -> Repeated | None:
        """Tokens sampled by `rules` where a batch of decodes is computed as often as they say; None
        where no program does that.
        """
        if self._programs is None or not self.compiles(batch):
            return None
        return self._programs.repeated(batch, rules)

    def states(
        self, batch: FlatBatch, slots: Slots, cache: PagedKV, backend: Backend
    ) -> torch.Tensor:
        """The states [R, width] of a batch's sampled tokens, as `head` takes them."""
        columns = batch.positions, batch.sampled_tokens
        positions, sampled = upload_all(columns, cache.blocks.device)
        paged = attention_of(batch, cache, backend)
        if not cache.state_pages:
            return self._forward.rows(slots.inputs(batch), positions, sampled, paged)
        with recurring(backend.recur(batch, cache)):
            return self._forward.rows(slots.inputs(batch), positions, sampled, paged)

    def alone(self, batch: FlatBatch, slots: Slots, cache: PagedKV, backend: Backend) -> Alone:
        """Each operator of a batch, as a step of it would compute it; none where transformers'
        modules compute, which are one whole, and where layers keep states in steps without a
        program.
        """
        if not isinstance(self._forward, Decoder) or not len(batch.tokens):
            return {}
        if self._programs is not None and self.compiles(batch):
            found = self._programs.alone(batch)
            if found:
                return found
        if cache.state_pages:  # each call would move states on
            return {}
        (positions,) = upload_all((batch.positions,), cache.blocks.device)
        paged, num_sampled = attention_of(batch, cache, backend), len(batch.sampled_tokens)
        return operators_alone(self._forward, slots.inputs(batch), positions, num_sampled, paged)

    def head(self, states: torch.Tensor) -> torch.Tensor:
        """Logits [R, vocab] of some states [R, width]."""
        return self._forward.head(states)
