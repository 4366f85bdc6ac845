"""This rank's part of a model: which weights are cut, how, and what joins the parts again.

`daemon.engine.loading.rank_plans` says which layers are cut: by heads in attention, by the inner
width elsewhere, experts too: a layer of rows first, whose output nobody else needs, then one of
columns, followed by a sum. The head and the embedding are cut by tokens. What is in blocks is cut
between blocks.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import nn

from daemon.engine.layers.children import child_names
from daemon.engine.layers.ranks import (
    GatheredHead,
    Ranks,
    SharedNorm,
    SplitEmbedding,
    SummedPart,
)
from daemon.engine.loading.rank_plans import HALVES, STATES, TO_HEADS, plan_of
from daemon.engine.loading.state_shards import NetCuts, NormShare, is_shared_net, net_cuts
from daemon.engine.quantised.cut import Cut
from daemon.engine.quantised.parts import laid_below, stored_parts, target_of
from daemon.engine.quantised.place import outline
from daemon.models.rank_shares import (
    NO_PLAN,
    HeadShare,
    Range,
    even_shares,
    head_shares,
)
from daemon.models.resolved import Resolved
from daemon.models.shape import ModelError

_BY_QUERIES = {"q_proj", "o_proj", "out_proj", "dense", "query_key_value", *TO_HEADS}
_BY_KEYS = {"k_proj", "v_proj"}
_COLUMNS, _ROWS, _EXPERTS = "rowwise", "colwise", "moe_tp_experts"
_OTHERWISE = {"mla_kv_a_proj", "embedding_rowwise"}
"""Layers that are on all ranks, as others that transformers calls replicated, or that are cut with
the head."""
_SIDES = 2
"""Dimensions of a matrix; those of a convolution's weight are more."""
_ALIGNED = 8
"""Numbers of an expert's inner width that stay together: torch's product of all experts at once
takes rows of 16 bytes.
"""
_COUNTS = {
    **dict.fromkeys(("num_heads", "num_attention_heads"), "queries"),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), "keys"),
}
"""Attributes of modules of attention that count heads."""


@dataclass(frozen=True, slots=True)
class Shards:
    """A rank's part of a model."""

    ranks: Ranks
    cuts: dict[str, Cut]  # by parameter
    summed: tuple[str, ...]  # modules
    once: tuple[
        str, ...
    ]  # parameters that are added to such sums: biases, which the first rank has
    heads: dict[str, HeadShare]  # by module of attention
    embedding: str
    head: str
    tokens: tuple[Range, ...]  # of each rank
    sizes: dict[str, dict[str, int]]  # attributes of other modules, by their names
    norms: dict[str, NormShare]  # by module
    unused: frozenset[str] = frozenset()  # stored tensors that this rank does not take

    def has(self, parameter: str) -> bool:
        """Whether this rank has a parameter at all."""
        return parameter not in self.once or self.ranks.rank == 0 or "experts" in parameter

    def shrink(self, model: nn.Module) -> None:
        """Give a new model, which has no weights yet, parameters of this rank's sizes."""
        for name, cut in self.cuts.items():
            owner, own = place_of(model, name)
            whole = getattr(owner, own)
            sides = [*whole.shape]
            sides[cut.dim] = cut.size
            setattr(owner, own, nn.Parameter(whole.new_empty(sides), requires_grad=False))
            if own == "weight" and len(sides) == _SIDES:
                _count_sides(owner)
        for name in self.once:
            if not self.has(name):
                owner, own = place_of(model, name)
                setattr(owner, own, None)
        for name, counts in self.sizes.items():
            for counted, size in counts.items():
                setattr(model.get_submodule(name), counted, size)
        for name, share in self.heads.items():
            module = model.get_submodule(name)
            for counted, part in _COUNTS.items():
                if hasattr(module, counted):
                    setattr(module, counted, getattr(share, part).size)
            if hasattr(module, "num_key_value_groups"):
                module.num_key_value_groups = share.queries.size // share.keys.size

    def join(self, model: nn.Module) -> None:
        """Put around each part of a loaded model what joins it with the others."""
        for name in self.once:
            if self.has(name) and self.ranks.rank:
                owner, own = place_of(model, name)
                setattr(owner, own, nn.Parameter(torch.zeros_like(getattr(owner, own)), False))
        own_tokens = self.tokens[self.ranks.rank]
        widths = [each.size for each in self.tokens]
        joined: dict[str, Callable[[Any], nn.Module]] = {
            **dict.fromkeys(self.summed, lambda inner: SummedPart(inner, self.ranks)),
            self.head: lambda inner: GatheredHead(inner, self.ranks, widths),
            self.embedding: lambda inner: SplitEmbedding(
                inner, self.ranks, own_tokens.first, own_tokens.size
            ),
        }
        for name, share in self.norms.items():
            group = share.group, share.num_groups, share.group_size
            owner, own = place_of(model, name)
            setattr(owner, own, SharedNorm(getattr(owner, own), self.ranks, *group))
        for name, make in joined.items():
            owner, own = place_of(model, name)
            setattr(owner, own, make(getattr(owner, own)))


def place_of(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    """The module that holds a part of a model, and its name there."""
    parent, _, own = name.rpartition(".")
    return model.get_submodule(parent), own


def _count_sides(module: Any) -> None:
    """Have a module say how large its weight is now."""
    rows, columns = module.weight.shape
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = rows, columns
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.padding_idx = rows, None


class RankShare(Protocol):
    """A rank's part of a model, cut from each layer or of whole layers."""

    @property
    def unused(self) -> frozenset[str]:
        """The stored tensors that the rank does not take."""

    def shrink(self, model: nn.Module) -> None:
        """Take from a new model, which has no weights yet, what other ranks have."""

    def join(self, model: nn.Module) -> None:
        """Put around the parts of a loaded model what joins them with those of others."""


def with_share(model_class: Any, share: RankShare) -> Any:
    """A model class whose models have this rank's part alone."""

    class Sharded(model_class):
        """transformers' class, with smaller layers."""

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            share.shrink(self)

    for said in ("__name__", "__qualname__", "__module__"):
        setattr(Sharded, said, getattr(model_class, said))
    return Sharded


def shards_of(
    model_class: Any,
    config: Any,
    resolved: Resolved,
    ranks: Ranks,
    stored: Mapping[str, tuple[int, ...]],
    block_lens: Mapping[str, int],
) -> tuple[Shards, dict[str, Cut]]:
    """This rank's part of a model, and the cuts of a folder's tensors, by their names.

    `stored`: the sides of these tensors; `block_lens`: the numbers of a block, where it is stored
    in blocks. Raises ModelError, naming what cannot be split.
    """
    model = outline(model_class, config)
    plan = plan_of(config)
    if not plan:
        raise _cannot(resolved, NO_PLAN)
    parts = StoredParts(model, stored)
    lens = dict[str, int]()
    for name, length in block_lens.items():
        parameter = parts.parameters[name]
        lens[parameter] = max(length, lens.get(parameter, 1))
    shards = _Planner(model, resolved, ranks, plan, lens).shards()
    unused = {name for name, parameter in parts.parameters.items() if not shards.has(parameter)}
    return replace(shards, unused=frozenset(unused)), parts.cuts(shards.cuts)


def _is_latent(resolved: Resolved) -> bool:
    return any(heads.latent for heads in resolved.layer_heads)


def _cannot(resolved: Resolved, why: str) -> ModelError:
    return ModelError(f"{resolved.model_type} cannot be split over ranks yet: {why}")


class _Planner:
    """Finds the cuts of a model without weights."""

    def __init__(
        self,
        model: Any,
        resolved: Resolved,
        ranks: Ranks,
        plan: Mapping[str, str],
        block_lens: Mapping[str, int],
    ) -> None:
        """`block_lens`: by parameter, where it is stored in blocks."""
        self._model, self._resolved, self._ranks = model, resolved, ranks
        self._block_lens = block_lens
        self._world_size = ranks.world_size
        counts = resolved.num_heads, resolved.num_kv_heads
        self._share = head_shares(*counts, self._world_size)[ranks.rank]
        if _is_latent(resolved):  # keys are made for each head
            self._share = HeadShare(self._share.queries, self._share.queries)
        inner = model.base_model if model.base_model is not model else model.model
        prefix = next(f"{name}." for name, module in model.named_modules() if module is inner)
        parts = [*inner.named_modules(), *inner.named_parameters()]
        self._kinds = {
            f"{prefix}{name}": kind
            for name, _ in parts
            if (kind := plan.get(re.sub(r"(?<=\.)\d+(?=\.)", "*", name), "replicated"))
            and not kind.startswith("replicated")
            and kind not in _OTHERWISE
        }
        if not self._kinds:
            raise _cannot(resolved, "transformers' plan names no layer that it has")
        self._cuts = dict[str, Cut]()
        self._summed, self._once = list[str](), list[str]()
        self._heads = dict[str, HeadShare]()
        self._net_cuts = dict[str, NetCuts]()
        self._nets = {
            name: module for name, module in model.named_modules() if is_shared_net(module)
        }

    def shards(self) -> Shards:
        """All cuts. Raises ModelError."""
        for name, net in self._nets.items():
            self._net(name, net)
        modules = dict(self._model.named_modules())
        for name, kind in self._kinds.items():
            parent, _, own = name.rpartition(".")
            if parent in self._nets or kind == STATES:
                continue
            if kind in (_ROWS, _COLUMNS, HALVES) and name in modules:
                self._layer(parent, own, kind)
            elif kind == _EXPERTS:
                self._experts(name)
            elif self._kinds.get(parent) != _EXPERTS:
                raise _cannot(self._resolved, f"{name} is {kind!r} in transformers' plan")
        for name, parameter in self._model.named_parameters():
            if name.rpartition(".")[2] == "sinks" and len(parameter) == self._resolved.num_heads:
                self._cuts[name] = Cut(0, (self._share.queries,))
        head, embedding = self._model.get_output_embeddings(), self._model.get_input_embeddings()
        names = {module: name for name, module in self._model.named_modules()}
        if not isinstance(head, nn.Linear) or not isinstance(embedding, nn.Embedding):
            raise _cannot(self._resolved, "its embedding or its head is of another kind")
        tokens = even_shares(head.out_features, self._world_size)
        rows = Cut(0, (tokens[self._ranks.rank],))
        if embedding.num_embeddings != head.out_features:
            raise _cannot(self._resolved, "its embedding and its head have unlike tokens")
        for module in (embedding, head):
            self._cuts[f"{names[module]}.weight"] = rows
        if head.bias is not None:
            self._cuts[f"{names[head]}.bias"] = rows
        return Shards(
            self._ranks,
            self._cuts,
            tuple(self._summed),
            tuple(self._once),
            self._heads,
            names[embedding],
            names[head],
            tokens,
            {name: cuts.sizes for name, cuts in self._net_cuts.items()},
            {
                f"{name}.{cuts.shared_norm.norm}": cuts.shared_norm
                for name, cuts in self._net_cuts.items()
                if cuts.shared_norm is not None
            },
        )

    def _net(self, name: str, net: Any) -> None:
        """Cut a recurrent layer by its heads, or by channels."""
        found = net_cuts(net, self._ranks.rank, self._world_size)
        self._net_cuts[name] = found
        self._cuts |= {f"{name}.{own}": cut for own, cut in found.cuts.items()}
        for own in found.summed:
            weight = f"{name}.{own}.weight"
            self._cuts[weight] = self._between_blocks(weight, found.inner_size, found.inner)
            self._summed.append(f"{name}.{own}")
            if getattr(net, own).bias is not None:
                self._once.append(f"{name}.{own}.bias")

    def _layer(self, parent: str, own: str, kind: str) -> None:
        """Cut a linear layer."""
        name = f"{parent}.{own}"
        layer = self._model.get_submodule(name)
        if not isinstance(layer, nn.Linear):
            raise _cannot(self._resolved, f"{name} is a {type(layer).__name__}")
        beside = child_names(self._model.get_submodule(parent))
        in_attention = "attn" in parent or "attention" in parent or "q_proj" in beside
        side = layer.in_features if kind == _COLUMNS else layer.out_features
        side //= 2 if kind == HALVES else 1
        cut = self._by_heads(parent, own, side) if in_attention else self._by_width(parent, side)
        if kind != _COLUMNS:
            ranges = (cut, Range(side + cut.first, side + cut.last)) if kind == HALVES else (cut,)
            self._cuts[f"{name}.weight"] = Cut(0, ranges)
            if layer.bias is not None:
                self._cuts[f"{name}.bias"] = Cut(0, ranges)
            return
        self._cuts[f"{name}.weight"] = self._between_blocks(f"{name}.weight", side, cut)
        self._summed.append(name)
        if layer.bias is not None:
            self._once.append(f"{name}.bias")

    def _by_heads(self, parent: str, own: str, side: int) -> Range:
        """The rows or columns of this rank's heads."""
        self._heads[parent] = self._share
        resolved = self._resolved
        if own in _BY_KEYS:
            heads, num_heads = self._share.keys, resolved.num_kv_heads
        elif own in _BY_QUERIES:
            heads, num_heads = self._share.queries, resolved.num_heads
        else:
            raise _cannot(resolved, f"{own} of its attention is not known")
        fused = own == "query_key_value" and resolved.num_kv_heads != resolved.num_heads
        if side % num_heads or fused:
            raise _cannot(resolved, f"{parent}.{own} does not have equal rows for each head")
        return heads.times(side // num_heads)

    def _by_width(self, parent: str, side: int) -> Range:
        """The rows or columns of this rank's part of an inner width."""
        second = [name for name, kind in self._kinds.items() if kind == _COLUMNS]
        behind = [name for name in second if name.rpartition(".")[0] == parent]
        layers = [self._model.get_submodule(name) for name in behind]
        if len(layers) != 1 or layers[0].in_features != side:
            raise _cannot(self._resolved, f"the layers of {parent} are not of one inner width")
        unit = self._block_lens.get(f"{behind[0]}.weight", 1)
        return even_shares(side, self._world_size, unit)[self._ranks.rank]

    def _between_blocks(self, parameter: str, side: int, own: Range) -> Cut:
        """Columns of a weight. Raises ModelError where they begin or end within a block."""
        length = self._block_lens.get(parameter, 1)
        if own.first % length or (own.last % length and own.last != side):
            said = f"{parameter} is in blocks of {length}, and a head's columns are no whole ones"
            raise _cannot(self._resolved, said)
        return Cut(1, (own,))

    def _experts(self, name: str) -> None:
        """Cut the experts of a layer by their inner width."""
        experts: Any = self._model.get_submodule(name)
        held = {own for own, _ in experts.named_parameters()}
        biases = {"gate_up_proj_bias", "down_proj_bias"}
        is_gated = "gate_up_proj" in held
        both = {"gate_up_proj" if is_gated else "up_proj", "down_proj"}
        if not both <= held <= both | (biases if is_gated else set()):
            raise _cannot(self._resolved, f"{name} holds its weights in another way")
        is_transposed = is_gated and are_transposed(experts)
        inner = 1 if is_transposed else 2
        width = experts.down_proj.shape[inner]
        unit = self._block_lens.get(f"{name}.down_proj", 1)
        if width >= _ALIGNED * self._world_size:
            unit = max(unit, _ALIGNED)
        own = even_shares(width, self._world_size, unit)[self._ranks.rank]
        self._cuts[f"{name}.down_proj"] = Cut(inner, (own,))
        self._summed.append(name)
        if not is_gated:
            self._cuts[f"{name}.up_proj"] = Cut(1, (own,))
            return
        halves = (own, Range(own.first + width, own.last + width))
        gates = halves if getattr(experts, "is_concatenated", True) else (own.times(2),)
        self._cuts[f"{name}.gate_up_proj"] = Cut(2 if is_transposed else 1, gates)
        if biases <= held:
            self._cuts[f"{name}.gate_up_proj_bias"] = Cut(1, gates)
            self._once.append(f"{name}.down_proj_bias")


def _within(cut: Cut, rows: Range) -> Cut:
    """The part of a cut of rows that is some of them, which are stored by themselves."""
    common = (
        Range(max(own.first, rows.first), min(own.last, rows.last))
        for own in cut.ranges
        if own.first < rows.last and rows.first < own.last
    )
    return Cut(cut.dim, tuple(Range(p.first - rows.first, p.last - rows.first) for p in common))


def are_transposed(experts: Any) -> bool:
    """Whether each of some experts holds its matrices as columns times rows."""
    inner = experts.down_proj.shape[1]
    return bool(experts.gate_up_proj.shape[2] == 2 * inner)


class StoredParts:
    """Which parameters a folder's tensors become, as a whole or as parts: of experts."""

    def __init__(self, model: Any, stored: Mapping[str, tuple[int, ...]]) -> None:
        self._stored = stored
        found = stored_parts(model, stored)
        self._of_experts = {
            name: part.below for parts in found.values() for part, name in parts.items()
        }
        in_parts = {name: to for to, parts in found.items() for name in parts.values()}
        self._offsets = dict[str, int]()
        for to, names in laid_below(model, stored).items():
            rows = [0, *accumulate(stored[name][0] for name in names)]
            self._offsets |= dict(zip(names, rows, strict=False))
            in_parts |= dict.fromkeys(names, to)
        rename = target_of(model)
        self.parameters = {name: in_parts.get(name) or rename(name) for name in stored}
        self._apart = {self.parameters[name] for name, below in self._of_experts.items() if below}
        self._transposed = {
            name
            for name, module in model.named_modules()
            if hasattr(module, "gate_up_proj")
            and isinstance(module.gate_up_proj, nn.Parameter)
            and are_transposed(module)
        }

    def cuts(self, cuts: Mapping[str, Cut]) -> dict[str, Cut]:
        """The cuts of tensors by those of parameters: an expert's matrix is cut as all of them
        are, and so is each of two that lie below each other. Raises ModelError.
        """
        found = dict[str, Cut]()
        for name, sides in self._stored.items():
            parameter = self.parameters[name]
            cut = cuts.get(parameter)
            if cut is None:
                continue
            if name in self._of_experts:
                cut = self._of_expert(parameter, cut)
            elif name in self._offsets:
                first = self._offsets[name]
                cut = _within(cut, Range(first, first + sides[0]))
            elif len(sides) <= cut.dim:
                raise ModelError(f"{name} has {len(sides)} sides, and is not cut as {parameter} is")
            found[name] = cut
        return found

    def _of_expert(self, parameter: str, cut: Cut) -> Cut:
        """The cut of an expert's matrix, which is stored as rows times columns, or of one of two
        that lie below each other, or whose rows take turns in the parameter.
        """
        dim = cut.dim - 1
        if parameter.rpartition(".")[0] in self._transposed:
            dim = 1 - dim
        if parameter not in self._apart:
            return Cut(dim, cut.ranges)
        first, *others = cut.ranges
        return Cut(dim, (first if others else Range(first.first // 2, first.last // 2),))
