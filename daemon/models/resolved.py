"""A model's configuration as transformers resolves it, and the shape that follows from it.

A raw config.json leaves out whatever equals a default of its model type, and older ones use other
names: what it says is not what the model does.
"""

from pathlib import Path
from typing import Any

import msgspec

from daemon.memory.layout import KVHeads
from daemon.memory.state_layout import StatePart
from daemon.models.expert_shape import experts_of
from daemon.models.quantisation import read_quantisation
from daemon.models.shape import ModelError, ModelShape
from daemon.models.vocabulary import end_token_ids
from daemon.models.weights import count_weights

SLIDING = "sliding_attention"
"""transformers' name for layers with a window."""
CHUNKED = "chunked_attention"
"""Its name for layers whose queries see their own chunk of a sequence."""

RECURRENT = frozenset({"linear_attention", "conv", "hybrid"})
"""Its names for layers that keep a state of a sequence; a hybrid one attends beside that."""


class Rope(msgspec.Struct, frozen=True):
    """Rotary positions of all layers, or of those of one kind."""

    kind: str  # "default", "linear", "yarn", "llama3", "dynamic", "longrope", ...
    parameters: dict[str, Any] = {}


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A folder's config.json as transformers understands it. Sizes are 0 where it names none."""

    model_type: str
    architectures: tuple[str, ...] = ()  # as the file names them
    causal_class: str  # of transformers for this type; empty: it has none
    takes_attention: bool = True  # its code asks transformers' attention interface
    sees_ahead: bool = False  # it is configured as an encoder: tokens see those after them
    counts_from_padding: bool = False  # its first position is the one behind its padding token
    num_layers: int
    num_heads: int
    num_kv_heads: int  # the most of a layer
    head_dim: int  # the largest of a layer
    hidden_size: int
    vocab_size: int
    context_len: int  # tokens
    dtype: str  # of the weights as stored
    eos_token_ids: tuple[int, ...] = ()  # the configuration's own
    layer_kinds: tuple[str, ...] = ()  # of each layer; empty where the type has one kind alone
    window: int = 0  # tokens that some layers look back; 0: none does
    chunk: int = 0  # tokens of a chunk, of which some layers see their own; 0: none does
    layer_heads: tuple[KVHeads, ...] = ()  # of each layer's keys; empty: all have the same
    layer_states: tuple[tuple[StatePart, ...], ...] = ()  # of each; empty: none is recurrent
    can_share: bool = True  # it is known which layers ranks may cut
    ropes: tuple[Rope, ...] = ()
    by_layer: tuple[str, ...] = ()  # what differs from layer to layer
    unread: dict[str, Any] = {}  # what the file says and the type's code never asks for
    conflicts: tuple[str, ...] = ()  # what the file says twice, and not alike
    fields: dict[str, Any] = {}  # the whole configuration, defaults included

    @property
    def windows(self) -> tuple[int, ...]:
        """The window of each layer, as configured; 0: it sees all. Empty: all layers do."""
        sizes = {SLIDING: self.window, CHUNKED: self.chunk}
        if not any(sizes.values()):
            return ()
        kinds = self.layer_kinds or (SLIDING,) * self.num_layers
        found = tuple(sizes.get(kind, 0) for kind in kinds)
        return found if any(found) else ()


_SIZES = {
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "hidden_size": "hidden_size",
    "vocab_size": "vocab_size",
    "context_len": "max_position_embeddings",
}
_OF_ATTENTION = ("num_heads", "num_kv_heads", "head_dim")
CONTEXT_LEN_OF_STATES = 1 << 17
"""Tokens of the longest sequence where no layer attends, which has no bound, and none is said."""


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def read_shape(folder: Path, resolved: Resolved) -> ModelShape:
    """The shape of the model in `folder`. Raises ModelError where its files do not tell it."""
    sizes = {name: getattr(resolved, name) for name in _SIZES}
    may_lack: tuple[str, ...] = ()
    if resolved.layer_states and not resolved.num_kv_heads:
        may_lack = _OF_ATTENTION
        sizes["context_len"] = sizes["context_len"] or CONTEXT_LEN_OF_STATES
    for name, label in _SIZES.items():
        if sizes[name] < 1 and name not in may_lack:
            raise ModelError(f"{folder / 'config.json'} does not say {label}")
    return ModelShape(
        model_type=resolved.model_type,
        dtype=resolved.dtype,
        **count_weights(folder, read_quantisation(folder, resolved.fields))._asdict(),
        windows=resolved.windows,
        layer_heads=resolved.layer_heads,
        layer_states=resolved.layer_states,
        can_share=resolved.can_share,
        layer_inputs=_whole(resolved.fields.get("hidden_size_per_layer_input")),
        experts=experts_of(folder, resolved.fields),
        eos_token_ids=end_token_ids(folder, resolved.eos_token_ids, resolved.vocab_size),
        **sizes,
    )
