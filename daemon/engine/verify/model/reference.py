"""transformers' own forward of a loaded model: its attention, its mask, whole sequences.

Two of them for each sequence. `exact` computes in float32 whatever the weights are stored as.
`rounded` rounds wherever serving rounds: it computes in the dtype that serves, and its attention
sees keys and values as an 8-bit cache would give them back. How far the two are apart is what
rounding does to this model; what is served may not be much further from `exact`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.nn.functional import softmax
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, eager_mask

from daemon.engine.kv.eight_bit import quantise
from daemon.engine.layers.latent import projection_of, stored_rows
from daemon.engine.layers.modules import counted
from daemon.engine.quantised.linear import QuantisedLinear, quantised_layers
from daemon.engine.verify.model import by_layers
from daemon.engine.verify.model.script import WaveSequence
from daemon.models.shape import ModelError

_ROUNDED = "llmd_rounded"


def logits_of(
    model: Any, tried: Sequence[WaveSequence], between: Callable[[], None], side_by_side: bool
) -> list[torch.Tensor]:
    """Logits float32 [n, vocab] of sequences, on the host; of attention as it is set.

    `side_by_side`: all of them go through one layer after the other. `between` is called behind
    each layer or sequence.
    """
    passes = [partial(_logits, model, sequence) for sequence in tried]
    if side_by_side:
        return by_layers.computed(model, passes, between)
    return [by_layers.told(each, between) for each in passes]


def _logits(model: Any, tried: WaveSequence) -> torch.Tensor:
    device = model.device
    tokens = torch.from_numpy(tried.tokens).to(device).unsqueeze(0)
    positions: dict[str, Any] = {}
    if tried.first:  # else positions are transformers' own affair
        shifted = torch.arange(tried.first, tried.first + len(tried.tokens), device=device)
        positions = {"position_ids": shifted.unsqueeze(0), **counted(model, shifted)}
    output = model(input_ids=tokens, use_cache=False, **positions)
    logits: torch.Tensor = output.logits[0].float().cpu()
    return logits


@contextmanager
def attention(model: Any, name: str) -> Iterator[None]:
    """Have the model attend in another way for a while. Raises ModelError where it cannot."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        if model.config._attn_implementation != name:
            raise ModelError(f"{type(model).__name__} has no {name} attention to be tried against")
        yield
    finally:
        model.set_attn_implementation(before)


@contextmanager
def rounding_products(model: Any) -> Iterator[None]:
    """Products over quantised weights round the states that they take."""
    layers = [layer for _, layer in quantised_layers(model) if isinstance(layer, QuantisedLinear)]
    try:
        for layer in layers:
            layer.rounds = True
        yield
    finally:
        for layer in layers:
            layer.rounds = False


@contextmanager
def rounding(model: Any, kv_dtype: torch.dtype) -> Iterator[None]:
    """The model attends to keys and values as an 8-bit cache of `kv_dtype` would hold them."""
    AttentionInterface.register(_ROUNDED, partial(_rounded_attention, kv_dtype=kv_dtype))
    AttentionMaskInterface.register(_ROUNDED, eager_mask)
    with attention(model, _ROUNDED), stored_rows(partial(_stored, kv_dtype=kv_dtype)):
        yield


def _rounded_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    *,
    kv_dtype: torch.dtype,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **_ignored: Any,
) -> tuple[torch.Tensor, None]:
    """Plain attention, [1, heads, T, head_dim] in, [1, T, heads, head_dim] out."""
    groups = query.shape[1] // key.shape[1]
    if projection_of(module) is None:  # else they are made of rounded rows
        key, value = (_stored(states, kv_dtype) for states in (key, value))
    key, value = (states.repeat_interleave(groups, 1) for states in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = query @ key.transpose(2, 3) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is not None:
        scores = scores + attention_mask
    if s_aux is not None:
        sinks = s_aux.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sinks), -1)
    weights = softmax(scores, -1, dtype=torch.float32).to(query.dtype)[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2), None


def _stored(states: torch.Tensor, kv_dtype: torch.dtype) -> torch.Tensor:
    """`states` as an 8-bit cache gives them back."""
    stored, scales = quantise(states, kv_dtype)
    return (stored.float() * scales.unsqueeze(-1)).to(states.dtype)
