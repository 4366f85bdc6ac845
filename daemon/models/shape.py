"""A model's shape: what the daemon must know of it."""

import json
from pathlib import Path
from typing import Any

import msgspec

from daemon.memory.experts import ExpertShape
from daemon.memory.layout import KVHeads
from daemon.memory.sizing import DTYPE_BYTES
from daemon.memory.state_layout import StatePart


class ModelError(ValueError):
    """A folder does not hold a model that llmd can serve; the message says why."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A model's shape, as the daemon needs it before a worker loads the model."""

    model_type: str  # as config.json names it: "llama", "opt", ...
    num_layers: int
    num_heads: int
    num_kv_heads: int  # the most of a layer
    head_dim: int  # the largest of a layer
    hidden_size: int
    vocab_size: int
    context_len: int  # tokens
    num_params: int
    dtype: str  # of the weights as stored, but for those that are packed
    packed_params: int = 0  # of them in blocks, which they stay in
    packed_bytes: int = 0  # of these blocks
    windows: tuple[int, ...] = ()  # of each layer, as configured; 0: it sees all; empty: all do
    layer_heads: tuple[KVHeads, ...] = ()  # of each layer; empty: all have the same
    layer_states: tuple[tuple[StatePart, ...], ...] = ()  # of each; empty: none is recurrent
    can_share: bool = True  # it is known which layers ranks may cut
    layer_inputs: int = 0  # numbers that each layer takes of a token beside its state
    beside: tuple["ModelShape", ...] = ()  # of a stage: the others, which count pages alike
    eos_token_ids: tuple[int, ...] = ()
    experts: ExpertShape | None = None  # None: none that host memory could hold

    @property
    def num_expert_layers(self) -> int:
        """Layers with experts that host memory could hold."""
        return self.experts.num_layers if self.experts is not None else 0

    def on_device(self, experts_on_cpu: int) -> "ModelShape":
        """The share of a device where host memory has as many experts as so many layers have."""
        experts = self.experts
        if experts is None or not experts_on_cpu:
            return self
        part = experts_on_cpu / experts.num_layers
        return msgspec.structs.replace(
            self,
            num_params=self.num_params - int(part * experts.num_params),
            packed_params=self.packed_params - int(part * experts.packed_params),
            packed_bytes=self.packed_bytes - int(part * experts.packed_bytes),
        )

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights once loaded: those in blocks as they are, all others as `dtype`."""
        return self.packed_bytes + self.plain_bytes(dtype)

    def plain_bytes(self, dtype: str) -> int:
        """Bytes of the weights that are not packed."""
        return (self.num_params - self.packed_params) * DTYPE_BYTES[dtype]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ModelError, naming the file."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path}: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object")
    return value
