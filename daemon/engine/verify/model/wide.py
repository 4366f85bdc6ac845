"""A loaded model computed in float32, with its own weights, to find faults that rounding hides.

A fault of a few percent far out is smaller than what bfloat16 rounds. In float32 it stands alone.

So where serving rounds, the modules and the fused decoder are first computed unrounded, over a
small float32 pool, and must agree with `exact` as float32 does. A seventh more on queries behind
position 300 of a bfloat16 model is found this way alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from daemon.engine.layers.decoder import Decoder
from daemon.engine.layers.embeddings import PlainEmbeddings
from daemon.engine.layers.fuse import fuse
from daemon.engine.layers.mlp import Layer, Mixture
from daemon.engine.layers.ops import Norm, Ops
from daemon.engine.layers.stages import ReceivedRows
from daemon.engine.quantised.linear import PIECE_ELEMENTS, QuantisedEmbedding, QuantisedLinear
from daemon.engine.quantised.weight import Unpack
from daemon.models.formats import WeightFormat


@contextmanager
def widened(model: nn.Module) -> Iterator[None]:
    """Have the model compute in float32 for a while, with its own weights.

    Only the module that computes holds wide weights, a large product a piece of them at a time.
    """
    undo = []
    parents = {child: parent for parent in model.modules() for child in parent.children()}
    try:
        for module in model.modules():
            if isinstance(module, QuantisedEmbedding):
                undo.append(module.register_forward_hook(_widen_output).remove)
            narrow = [
                parameter for parameter in module.parameters(recurse=False) if _narrow(parameter)
            ]
            if not narrow:
                continue
            if type(module) is nn.Linear:
                module.forward = partial(_wide_linear, module)
                undo.append(partial(delattr, module, "forward"))
            elif type(module) is nn.Embedding:
                undo.append(module.register_forward_hook(_widen_output).remove)
            else:
                # Some modelling code reads a child's parameters in the parent's own forward.
                users = [user for user in (module, parents.get(module)) if user is not None]
                undo += _widen_while_they_compute(users, narrow)
        yield
    finally:
        for step in undo:
            step()


def _narrow(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype != torch.float32


def _wide_linear(module: nn.Linear, states: torch.Tensor) -> torch.Tensor:
    rows = max(1, PIECE_ELEMENTS // module.in_features)
    bias = module.bias
    products = [linear(states.float(), piece.float(), None) for piece in module.weight.split(rows)]
    product = torch.cat(products, -1)
    return product if bias is None else product + bias.float()


def _widen_output(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output.float()


def _widen_while_they_compute(users: list[nn.Module], narrow: list[nn.Parameter]) -> list[Any]:
    """Hooks that widen parameters before any of some modules, and put the narrow ones back after.

    The modules may compute within each other.
    """
    kept = [parameter.data for parameter in narrow]
    depth = 0

    def widen(_module: nn.Module, _inputs: Any) -> None:
        nonlocal depth
        depth += 1
        if depth == 1:
            for parameter in narrow:
                parameter.data = parameter.data.float()

    def restore(_module: nn.Module, _inputs: Any, _output: Any) -> None:
        nonlocal depth
        depth -= 1
        if not depth:
            for parameter, data in zip(narrow, kept, strict=True):
                parameter.data = data

    undo = []
    for user in users:
        undo.append(user.register_forward_pre_hook(widen).remove)
        undo.append(user.register_forward_hook(restore, always_call=True).remove)
    return undo


class Remembering:
    """Unpacks quantised weights, and keeps the numbers of as many as it may: a trial computes with
    them again and again.
    """

    def __init__(self, unpack: Unpack, most_bytes: int, all_bytes: int = 0) -> None:
        """`all_bytes`: of the numbers of all weights, where all passes may go through one layer
        after the other. Where they are more than may be kept, those of a layer are kept while it
        computes.
        """
        self._unpack = unpack
        self._most_bytes = self._left_bytes = most_bytes
        self.by_layers = 0 < most_bytes < all_bytes
        # With the blocks: freed memory may soon hold other weights.
        self._kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, form: WeightFormat, data: torch.Tensor) -> torch.Tensor:
        """See `Unpack`; the result may not be changed."""
        key = data.data_ptr(), data.nbytes
        if key in self._kept:
            return self._kept[key][1]
        numbers = self._unpack(form, data)
        if numbers.nbytes <= self._left_bytes and data.is_contiguous():
            self._left_bytes -= numbers.nbytes
            self._kept[key] = data, numbers
        return numbers

    def end_layer(self) -> None:
        """A layer has computed, and comes no more before all others have."""
        if self.by_layers:
            self._kept.clear()
            self._left_bytes = self._most_bytes

    def forget(self) -> None:
        """Drop the kept numbers, and keep none from now on."""
        self._kept.clear()
        self._most_bytes = self._left_bytes = 0


class WideOps(Ops):
    """In float32, whatever the weights are."""

    def norm(
        self,
        states: torch.Tensor,
        added: torch.Tensor | None,
        norm: Norm,
        of_added: Norm | None = None,
    ) -> torch.Tensor:
        """See `Ops`."""
        return super().norm(states, added, _wide_norm(norm), of_added)

    def norm_heads(self, states: torch.Tensor, norm: Norm) -> None:
        """See `Ops`."""
        super().norm_heads(states, _wide_norm(norm))


def _wide_norm(norm: Norm) -> Norm:
    return Norm(norm.weight.float(), norm.epsilon)


def wide_decoder(
    model: Any, num_positions: int, vocabulary: torch.Tensor, windows: tuple[int, ...] = ()
) -> Decoder | None:
    """The straight decoder in float32; None where `fuse` makes none, and where the block of a
    mixture, which stays as it is, holds narrow numbers.

    Its token i is the model's `vocabulary[i]` (int64 [n]): no more embeddings are widened.
    """
    decoder = fuse(
        model, WideOps(), _wide_product, num_positions, lambda block, _: block, windows=windows
    )
    if decoder is None:
        return None
    mixtures = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, Mixture)]
    held = [part for mixture in mixtures for part in mixture.products()]
    modules = [part for part in held if isinstance(part, nn.Module)]
    if any(_narrow(parameter) for module in modules for parameter in module.parameters()):
        return None
    embeddings = decoder.embeddings
    if isinstance(embeddings, ReceivedRows):  # which the first stage has looked up so
        return decoder
    rows = embeddings.rows(vocabulary.to(model.device)).float()
    return replace(decoder, embeddings=PlainEmbeddings(rows, embeddings.scale))


def _wide_product(layer: Any) -> Layer:
    """A quantised layer computes in the type of its states anyway."""
    return layer if isinstance(layer, QuantisedLinear) else partial(_wide_linear, layer)
