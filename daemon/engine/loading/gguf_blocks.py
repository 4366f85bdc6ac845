"""Makes the index of a GGUF file: which of its tensors a model wants as they are, and where.

How a file's names and numbers become a model's is transformers' knowledge. It is asked of every
tensor what it does to the numbers of its rows: where it leaves them or moves them as a whole, the
tensor stays in the file. All others are computed here, in float32. A tensor that the model does
not take, and a weight that no tensor gives, are refused by name.
"""

import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from transformers import modeling_gguf_pytorch_utils as reading

from daemon.engine.loading.gguf_rope import FACTORS
from daemon.models.formats import FORMATS, PLAIN
from daemon.models.gguf_index import GgufIndex, IndexedTensor, row_order
from daemon.models.shape import ModelError

_OF_ROWS = ("TensorProcessor", "LlamaTensorProcessor")
_OF_VECTORS = ("Gemma2TensorProcessor", "NemotronTensorProcessor", "Qwen2MoeTensorProcessor")
"""Processors of transformers that move whole rows, or nothing; and that change vectors alone."""
_TAKEN_ELSEWHERE = frozenset({FACTORS})
"""Tensors that the configuration says."""
_EXPERTS = re.compile(r"blk\.\d+\.ffn_(gate|up|down)_exps\.weight")


class Indexer:
    """One file's tensors for one model; `model` is on no device."""

    def __init__(self, source: Path, model: Any) -> None:
        self._source = source
        self.reader = gguf.GGUFReader(source)
        architecture = reading.read_field(self.reader, "general.architecture")[0]
        config = model.config.to_dict()
        maker = reading.TENSOR_PROCESSORS.get(architecture, reading.TensorProcessor)
        self._processor = maker(config=config)
        self._names: dict[str, str] = reading.get_gguf_hf_weights_map(model, self._processor)
        self._config = config
        self._heads = (config.get("num_attention_heads"), config.get("num_key_value_heads"))
        self._model = model

    def index(self) -> tuple[GgufIndex, dict[str, torch.Tensor]]:
        """The index, and what is not in it, computed. Raises ModelError for an unknown format."""
        self._check_formats()
        kept, computed = list[IndexedTensor](), dict[str, torch.Tensor]()
        for tensor in self.reader.tensors:
            if not self._take(tensor, kept, computed) and tensor.name not in _TAKEN_ELSEWHERE:
                kind = self._model.config.model_type
                said = f"a {kind} of transformers has no place for the tensor {tensor.name}"
                raise ModelError(f"{self._source}: {said}")
        self._check_complete(kept, computed)
        size_bytes = self._source.stat().st_size
        return GgufIndex(size_bytes, bool(computed), tuple(kept)), computed

    def _take(
        self, tensor: Any, kept: list[IndexedTensor], computed: dict[str, torch.Tensor]
    ) -> bool:
        """Index or compute a tensor; whether the model has a place for it. Raises ModelError."""
        try:
            if indexed := self._indexed(tensor):
                kept += indexed
                return True
            return self._compute(tensor, computed)
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            if tensor.name not in self._names:
                return False
            shape = list(map(int, reversed(tensor.shape)))
            said = f"the tensor {tensor.name} is {shape}, which its fields do not make it"
            raise ModelError(f"{self._source}: {said}") from None

    def _check_complete(self, kept: list[IndexedTensor], computed: dict[str, torch.Tensor]) -> None:
        """Raise ModelError unless each of the model's weights is there, and of its size."""
        shapes = {tensor.name: tensor.shape for tensor in kept}
        shapes |= {name: tuple(tensor.shape) for name, tensor in computed.items()}
        files = {name: file for file, name in self._names.items()}
        wanted = self._model.state_dict()
        for name, tied in (getattr(self._model, "_tied_weights_keys", None) or {}).items():
            if getattr(self._model.config, "tie_word_embeddings", False) and tied in shapes:
                shapes.setdefault(name, shapes[tied])
        for name, parameter in wanted.items():
            if name not in shapes:
                if self._of_experts(name, shapes):
                    continue
                if self._zero_bias(name, shapes):
                    computed[name] = torch.zeros(parameter.shape)
                    continue
                file = files.get(name, name)
                raise ModelError(f"{self._source} lacks the tensor {file}, which its model needs")
            if shapes[name] != tuple(parameter.shape):
                said = f"is {list(shapes[name])}, and its fields ask for {list(parameter.shape)}"
                raise ModelError(f"{self._source}: the tensor {files.get(name, name)} {said}")

    def _zero_bias(self, name: str, shapes: dict[str, tuple[int, ...]]) -> bool:
        """Whether a layer without a bias has one because others of its kind do."""
        if not name.endswith(".bias") or name.removesuffix("bias") + "weight" not in shapes:
            return False
        kind = name.split(".")[-3] if name.count(".") > 2 else ""
        flag = {"self_attn": "attention_bias", "mlp": "mlp_bias"}.get(kind, "")
        return bool(flag) and bool(getattr(self._model.config, flag, False))

    def _of_experts(self, name: str, shapes: dict[str, tuple[int, ...]]) -> bool:
        """Whether a stack of experts is there, each expert's rows by their own names."""
        owner, _, kind = name.rpartition(".")
        parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(kind)
        if parts is None or not owner.endswith(".experts"):
            return False
        count, rows, columns = self._model.state_dict()[name].shape
        each = (rows // len(parts), columns)
        return all(
            shapes.get(f"{owner}.{expert}.{part}.weight") == each
            for expert in range(count)
            for part in parts
        )

    def _check_formats(self) -> None:
        for tensor in self.reader.tensors:
            name = tensor.tensor_type.name
            if name not in FORMATS:
                known = ", ".join(form for form in FORMATS if "/" not in form)
                said = f"{tensor.name} is stored as {name}, and llmd reads {known}"
                raise ModelError(f"{self._source}: {said}")

    def _indexed(self, tensor: Any) -> list[IndexedTensor]:
        """Places of the model's tensors in the file; none where one is not there as it should be.

        Experts are one tensor in the file, and as many as there are in a checkpoint, by whose names
        the model takes them.
        """
        name = self._names.get(tensor.name)
        shape = tuple(int(side) for side in reversed(tensor.shape))
        form, start = tensor.tensor_type.name, int(tensor.data_offset)
        kind = type(self._processor).__name__
        if kind == "Qwen2MoeTensorProcessor" and (experts := _EXPERTS.fullmatch(tensor.name)):
            owner = self._names[tensor.name.removesuffix(".weight")].rpartition(".")[0]
            names = (f"{owner}.{expert}.{experts[1]}_proj.weight" for expert in range(shape[0]))
            all_bytes = IndexedTensor("", form, shape, start).size_bytes
            starts = range(start, start + all_bytes, all_bytes // shape[0])
            places = zip(names, starts, strict=True)
            return [IndexedTensor(name, form, shape[1:], at) for name, at in places]
        as_they_are = kind in _OF_ROWS or (kind in _OF_VECTORS and len(shape) == 2)
        if name is None or not as_they_are or len(shape) > 2:
            return []
        found = self._moved(tensor.name, IndexedTensor(name, form, shape, start))
        return [found] if found else []

    def _moved(self, name: str, indexed: IndexedTensor) -> IndexedTensor | None:
        """A tensor with the order of its rows; None where that is none that llmd knows."""
        shape = indexed.shape
        if type(self._processor).__name__ in _OF_VECTORS:
            return indexed
        rows = np.arange(shape[0], dtype=np.float64)
        found = self._process(name, rows.reshape(-1, *(1 for _ in shape[1:]))).ravel()
        if np.array_equal(found, rows):
            return indexed
        if len(shape) == 1 and indexed.format not in PLAIN:
            return None  # its numbers cannot be moved one by one
        for heads in {num for num in self._heads if num and shape[0] % (2 * num) == 0}:
            if np.array_equal(found, row_order(shape[0], heads)):
                return IndexedTensor(*_fields(indexed), heads)
        return None

    def _compute(self, tensor: Any, computed: dict[str, torch.Tensor]) -> bool:
        """Add what transformers makes of a tensor to `computed`, by the model's names; it may join
        several tensors, part after part. Returns whether it makes anything of it.
        """
        parsed: dict[str, Any] = {"tensors": computed, "config": self._config}
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
        made = self._processor.process(
            numbers, tensor.name, tensor_key_mapping=self._names, parsed_parameters=parsed
        )
        if made.name in self._names:
            computed[self._names[made.name]] = torch.from_numpy(np.copy(made.weights))
        return made.name is None or made.name in self._names

    def _process(self, name: str, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        made = self._processor.process(
            rows, name, tensor_key_mapping=self._names, parsed_parameters={"tensors": {}}
        )
        return np.asarray(made.weights)


def _fields(indexed: IndexedTensor) -> tuple[str, str, tuple[int, ...], int]:
    return indexed.name, indexed.format, indexed.shape, indexed.start
