"""A GGUF file read a second time, by another reader, to check the weights that llmd reads.

The `gguf` package says under which name a file has a model's weight, where it lies and which
numbers it has; how rows were moved when the file was written is said here. Places are compared of
all tensors, numbers of some rows of the first and the last one of each kind.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch

from daemon.engine.quantised.files import GgufWeights
from daemon.engine.quantised.stored import LoadMeter
from daemon.models.gguf_index import GgufIndex, IndexedTensor
from daemon.models.shape import ModelError

_NUM_ROWS = 8
"""Rows of a tensor, spread over it, whose numbers are compared."""
_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
_JOINT = ".ffn_gate_up_exps.weight"
_LAYER = re.compile(r"\.layers\.(\d+)\.|\.h\.(\d+)\.")
_KIND = re.compile(r"\d+")
_BELOW = re.compile(r".*\.layers\.(\d+)\.shared_mlp\.input_linear\.weight:([01])")
_MOVES_VALUES = ("qwen35", "qwen35moe")
"""Architectures in whose files heads of values that share one of keys lie apart."""
_TURNS_NEIGHBOURS = (
    "arcee",
    "deci",
    "granite",
    "granitehybrid",
    "granitemoe",
    "llama",
    "mistral3",
    "smollm3",
)
"""Architectures in whose files neighbours turn together, where a model turns halves of a head."""


def compare(
    source: Path,
    folder: Path,
    index: GgufIndex,
    config: Any,
    architecture: str,
    tensors: Iterable[Any],
) -> None:
    """Raise ModelError, naming the tensor, where the folder's index reads of `source` anything that
    the `gguf` package does not.

    `tensors`: of that package.
    """
    _Reading(source, folder, index, config, architecture, tensors).compare()


class _Reading:
    """A file's weights, by both readers."""

    def __init__(
        self,
        source: Path,
        folder: Path,
        index: GgufIndex,
        config: Any,
        architecture: str,
        tensors: Iterable[Any],
    ) -> None:
        self._source, self._index, self._config = source, index, config
        self._architecture = architecture
        numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
        number = numbers.get(self._architecture)
        layers = int(config.num_hidden_layers)
        self._map = None if number is None else gguf.get_tensor_name_map(number, layers)
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._weights = GgufWeights(folder, torch.device("cpu"), torch.float32)
        self._weights.tells(LoadMeter(0, lambda _share: None))

    def compare(self) -> None:
        chosen = self._sample()
        for indexed in self._index.tensors:
            name, expert = self._named(indexed.name)
            if name not in self._tensors:
                if name:
                    raise self._differs(indexed, f"the file has no {name}")
                continue  # the package does not know what this model calls it
            tensor = self._tensors[name]
            whole = np.asarray(tensor.data)
            part = whole if expert is None else whole[expert]
            begin = int(tensor.data_offset) + (0 if expert is None else expert * part.nbytes)
            if name.endswith(_JOINT):  # gates, and what they gate below them
                half = len(part) // 2
                is_second = indexed.name.endswith("up_proj.weight")
                begin += part[:half].nbytes if is_second else 0
                part = part[half:] if is_second else part[:half]
            if (indexed.start, indexed.size_bytes) != (begin, part.nbytes):
                said = f"{name} lies at {begin} and has {part.nbytes} bytes"
                raise self._differs(
                    indexed, f"{said}, not at {indexed.start} with {indexed.size_bytes}"
                )
            if indexed.name in chosen:
                self._compare_rows(indexed, part, tensor.tensor_type)

    def _sample(self) -> set[str]:
        """The first and the last tensor of each kind."""
        first, last = dict[str, str](), dict[str, str]()
        for tensor in self._index.tensors:
            kind = _KIND.sub("#", tensor.name)
            first.setdefault(kind, tensor.name)
            last[kind] = tensor.name
        return {*first.values(), *last.values()}

    def _named(self, name: str) -> tuple[str, int | None]:
        """A weight's name in the file, and which expert's it is; empty where it is unknown."""
        if found := _EXPERT.fullmatch(name):
            layer = _LAYER.search(name)
            number = "" if layer is None else layer[1] or layer[2]
            stack = f"blk.{number}.ffn_{found[3]}_exps.weight"
            if stack not in self._tensors and found[3] != "down":
                stack = f"blk.{number}{_JOINT}"
            return stack, int(found[2])
        if found := _BELOW.fullmatch(name):
            part = f"blk.{found[1]}.ffn_{('gate', 'up')[int(found[2])]}"
            return self._for_all(f"{part}_shexp.weight"), None
        base, _, end = name.removesuffix("_bias").rpartition(".")
        if name.endswith("_bias"):  # of scores, which are no module
            base, end = f"{base}.{end}", "bias"
        older = base.replace(".forget_gate.", ".")  # as checkpoints of Kimi have it
        own = None if self._map is None else self._map.get_name(older)
        return (self._for_all(f"{own}.{end}") if own else ""), None

    def _for_all(self, name: str) -> str:
        """The name of a layer that all tokens take: Granite's without experts have another."""
        alone = name.replace("_shexp", "")
        return alone if name not in self._tensors and alone in self._tensors else name

    def _compare_rows(
        self, tensor: IndexedTensor, data: npt.NDArray[Any], kind: gguf.GGMLQuantizationType
    ) -> None:
        count = tensor.shape[0] if len(tensor.shape) > 1 else 1
        rows = np.unique(np.linspace(0, count - 1, _NUM_ROWS).astype(np.int64))
        if tensor.name in self._weights.packed:
            ours = self._weights.packed[tensor.name]().pick(torch.from_numpy(rows)).numbers()
            theirs = gguf.dequantize(data[self._order(tensor)[rows]], kind)
        else:
            ours = self._plain(tensor.name)
            theirs = gguf.dequantize(data, kind)[self._order(tensor)]
        if tensor.name.endswith(".out_proj.weight"):
            theirs = theirs[:, self._values(tensor.shape[1])]
        if not np.array_equal(ours.float().numpy(), theirs.astype(np.float32), equal_nan=True):
            raise self._differs(tensor, "its numbers are others")

    def _plain(self, name: str) -> torch.Tensor:
        """A tensor in plain numbers; of gates and what they gate, which are joined, one half."""
        weight, joined, half = name.partition(":")
        numbers = self._weights.plain[weight][...]
        return numbers.chunk(2)[int(half)] if joined else numbers

    def _order(self, tensor: IndexedTensor) -> npt.NDArray[np.int64]:
        """The file's row for each row of the model."""
        rows = np.arange(tensor.shape[0])
        kind = tensor.name.split(".")[-2]
        if kind == "in_proj_qkv":
            heads = self._config.linear_num_key_heads * self._config.linear_key_head_dim
            values = rows[2 * heads :]
            return np.concatenate((rows[: 2 * heads], 2 * heads + self._values(len(values))))
        if kind in ("in_proj_z", "in_proj_a", "in_proj_b", "dt_bias"):
            return self._values(len(rows))
        parts = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        field = parts.get(kind)
        if field is None or self._architecture not in _TURNS_NEIGHBOURS:
            return rows
        heads = getattr(self._config, field)
        written = rows.reshape(heads, 2, -1).swapaxes(1, 2).ravel()  # as a converter writes them
        return np.argsort(written)

    def _values(self, count: int) -> npt.NDArray[np.int64]:
        """The file's row or column for each one that a delta net's heads of values have."""
        rows = np.arange(count)
        if self._architecture not in _MOVES_VALUES:
            return rows
        keys, values = self._config.linear_num_key_heads, self._config.linear_num_value_heads
        written = rows.reshape(keys, values // keys, -1).swapaxes(0, 1).ravel()
        return np.argsort(written)

    def _differs(self, tensor: IndexedTensor, said: str) -> ModelError:
        read = f"{tensor.name}, read a second time, is not what was read first"
        return ModelError(f"{self._source}: {read}: {said}")
