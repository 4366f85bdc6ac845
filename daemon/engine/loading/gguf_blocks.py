"""Makes the index of a GGUF file: which of its tensors a model wants as they are, and where.

How a file's names and numbers become a model's is transformers' knowledge. It is asked of every
tensor what it does to the numbers of its rows: where it leaves them or moves them as a whole, the
tensor stays in the file. All others are computed here, in float32. A tensor that the model does
not take, and a weight that no tensor gives, are refused by name.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import numpy.typing as npt
import torch
from transformers import modeling_gguf_pytorch_utils as reading

from daemon.engine.loading.gguf_architectures import processor_of
from daemon.engine.loading.gguf_fields import num_foretelling
from daemon.engine.loading.gguf_moves import NOTHING, undo
from daemon.engine.loading.gguf_rope import BY_LENGTH, FACTORS
from daemon.engine.quantised.experts import ExpertLayout, layout_of
from daemon.models.formats import FORMATS, PLAIN
from daemon.models.gguf_header import GgufHeader, part_paths
from daemon.models.gguf_index import (
    GgufIndex,
    IndexedTensor,
    file_order,
    halves,
    joined_shapes,
    part_name,
)
from daemon.models.shape import ModelError

_OF_ROWS = ("TensorProcessor", "LlamaTensorProcessor", "MiniMaxM2TensorProcessor")
_OF_VECTORS = ("Gemma2TensorProcessor", "NemotronTensorProcessor", "Qwen2MoeTensorProcessor")
"""Processors of transformers that move whole rows, or nothing; and that change vectors alone."""
_TAKEN_ELSEWHERE = frozenset({FACTORS, *BY_LENGTH})
"""Tensors that the configuration says."""
_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down|gate_up)_exps\.(weight|bias)")
_LAYER = re.compile(r"blk\.(\d+)\.")
_PROJECTED = re.compile(r"blk\.(\d+)\.attn_([kv])_b\.weight")
"""The parts for keys and for values of a layer's projection from latent rows."""
_BETAS_AND_DECAYS = re.compile(r"blk\.(\d+)\.ssm_ba\.weight")
"""Qwen3-Next's projections to betas and to decays: for each head of keys those of its values."""
_BELOW = re.compile(r"blk\.(\d+)\.ffn_(gate|up)(_shexp)?\.weight")
"""The rows of a joint layer that Granite's models have for what all tokens take."""
_PART_OF_CONVOLUTION = re.compile(r"blk\.(\d+)\.ssm_conv1d_([qkv])\.weight")
"""The convolutions of queries, of keys and of values, which are one in a model."""
_OF_SHARED = re.compile(r"blk\.(\d+)\.attn_(k|v|k_norm)\.weight")
"""Tensors that a layer does not need that has its keys and values from another one."""
_OWN_NAMES = (
    (r"model\.layers\.(\d+)\.self_attn\.forget_gate\.dt_bias", "blk.{}.ssm_dt.bias"),
    (r"model\.layers\.(\d+)\.self_attn\.forget_gate\.A_log", "blk.{}.ssm_a"),
    (r"model\.layers\.(\d+)\.self_attn\.forget_gate\.f_a_proj\.weight", "blk.{}.ssm_f_a.weight"),
    (r"model\.layers\.(\d+)\.self_attn\.forget_gate\.f_b_proj\.weight", "blk.{}.ssm_f_b.weight"),
    (r"model\.layers\.(\d+)\.layer_scalar", "blk.{}.layer_output_scale.weight"),
    (r"model\.layers\.(\d+)\.router\.scale", "blk.{}.ffn_gate_inp.scale"),
    (r"model\.layers\.(\d+)\.router\.per_expert_scale", "blk.{}.ffn_down_exps.scale"),
    (r"(?:model|backbone)\.layers\.(\d+)\.\w+\.dt_bias", "blk.{}.ssm_dt.bias"),
    (r"model\.layers\.(\d+)\.pre_ff_layernorm\.weight", "blk.{}.ffn_norm"),
    (r"model\.layers\.(\d+)\.feed_forward\.expert_bias", "blk.{}.exp_probs_b.bias"),
    (r"model\.layers\.(\d+)\.(?:.+\.)?e_score_correction_bias", "blk.{}.exp_probs_b.bias"),
    (r"model\.layers\.(\d+)\.shared_mlp\.output_linear\.weight", "blk.{}.ffn_down.weight"),
    (r"model\.layers\.(\d+)\..+\.experts\.down_proj", "blk.{}.ffn_down_exps"),
    (r"model\.layers\.(\d+)\..+\.router\.weight", "blk.{}.ffn_gate_inp.weight"),
)
"""Weights that the `gguf` package has no name for, and their names in files."""
_TURNS = ("gate", "up")
"""The experts' layers that are one tensor in a model; where they have biases, rows take turns."""


class Indexer:
    """One file's tensors for one model; `model` is on no device."""

    def __init__(self, source: Path, header: GgufHeader, model: Any) -> None:
        self._source, self._paths = source, files_of(header, source)
        self.tensors = tensors_of(header, source)
        self._parts_of = {tensor.name: tensor.part for tensor in header.tensors}
        config = model.config.to_dict()
        self._processor = processor_of(header, config)
        self._names = _names(model, self._processor, header.architecture)
        self._architecture = header.architecture
        self._num_layers = int(model.config.num_hidden_layers)
        self._num_foretelling = num_foretelling(header)
        self._parts = dict[str, torch.Tensor]()  # of all experts' gates, or of what is gated
        self._config = config
        self._heads = (config.get("num_attention_heads"), config.get("num_key_value_heads"))
        self._model = model

    def index(self) -> tuple[GgufIndex, dict[str, torch.Tensor]]:
        """The index, and what is not in it, computed. Raises ModelError for an unknown format."""
        self._check_formats()
        kept, computed = list[IndexedTensor](), dict[str, torch.Tensor]()
        for tensor in self.tensors:
            if tensor.name in _TAKEN_ELSEWHERE or self._is_of_no_use(tensor.name):
                continue
            if not self._take(tensor, kept, computed):
                kind = self._model.config.model_type
                said = f"a {kind} of transformers has no place for the tensor {tensor.name}"
                raise ModelError(f"{self._source}: {said}")
        self._check_complete(kept, computed)
        first, *further = (path.stat().st_size for path in self._paths)
        index = GgufIndex(first, bool(computed), tuple(kept), further_bytes=tuple(further))
        return index, computed

    def _is_of_no_use(self, name: str) -> bool:
        """Whether a tensor is of a layer behind the model's own, which foretells more tokens, or
        would make keys and values that a layer has from another one.
        """
        layer = _LAYER.match(name)
        if layer is None:
            return False
        if int(layer[1]) >= self._num_layers:
            return self._num_foretelling > 0
        shared = getattr(self._model.config, "num_kv_shared_layers", None) or 0
        sharing = int(layer[1]) >= self._num_layers - shared
        return sharing and _OF_SHARED.fullmatch(name) is not None

    def _take(
        self, tensor: Any, kept: list[IndexedTensor], computed: dict[str, torch.Tensor]
    ) -> bool:
        """Index or compute a tensor; whether the model has a place for it. Raises ModelError."""
        try:
            if indexed := self._indexed(tensor):
                kept += indexed
                return True
            experts = _EXPERTS.fullmatch(tensor.name)
            if experts and _stack(experts) in self._names:
                return self._compute_stack(tensor, experts, computed)
            if projected := _PROJECTED.fullmatch(tensor.name):
                return self._compute_projection(tensor, projected, computed)
            if part := _PART_OF_CONVOLUTION.fullmatch(tensor.name):
                return self._compute_convolution(tensor, part, computed)
            if mixed := _BETAS_AND_DECAYS.fullmatch(tensor.name):
                return self._compute_betas_and_decays(tensor, mixed, computed)
            return self._compute(tensor, computed)
        except ModelError:
            raise
        except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError):
            if tensor.name not in self._names:
                return False
            shape = list(map(int, reversed(tensor.shape)))
            said = f"the tensor {tensor.name} is {shape}, which its fields do not make it"
            raise ModelError(f"{self._source}: {said}") from None

    def _check_complete(self, kept: list[IndexedTensor], computed: dict[str, torch.Tensor]) -> None:
        """Raise ModelError unless each of the model's weights is there, and of its size."""
        shapes = joined_shapes({tensor.name: tensor.shape for tensor in kept})
        if twice := [name for name, count in Counter(it.name for it in kept).items() if count > 1]:
            raise ModelError(f"{self._source} has the weight {twice[0]} in two tensors")
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
        parts, (count, *each) = self._stacks_of(name)
        return bool(parts) and all(
            shapes.get(part.replace(".experts.", f".experts.{expert}.") + ".weight") == tuple(each)
            for expert in range(count)
            for part in parts
        )

    def _stacks_of(self, name: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The parts of a model's stack of experts, each a tensor of the file, and the shape of one;
        none where it is no such stack.
        """
        owner, _, kind = name.rpartition(".")
        layout = self._layout(owner)
        if layout is None or kind not in layout.parameters:
            return (), (0,)
        parts = ("gate_proj", "up_proj") if kind == "gate_up_proj" else (kind,)
        count, rows, columns = self._model.state_dict()[name].shape
        if layout.transposed:
            rows, columns = columns, rows
        return tuple(f"{owner}.{part}" for part in parts), (count, rows // len(parts), columns)

    def _layout(self, owner: str) -> ExpertLayout | None:
        """How the module `owner` holds experts; None where it holds none."""
        return layout_of(self._model.get_submodule(owner)) if owner.endswith(".experts") else None

    def _check_stack(self, name: str, owner: str, kinds: list[str], shape: tuple[int, ...]) -> None:
        """Raise ModelError where all experts of a layer are not of the shape that the model has."""
        layout = self._layout(owner)
        stacks = [f"{owner}.{name}" for name in layout.parameters] if layout else []
        for stack in self._model.state_dict().keys() & stacks:
            parts, (count, rows, columns) = self._stacks_of(stack)
            wanted = count, rows * len(kinds), columns
            if f"{owner}.{kinds[0]}_proj" in parts and shape != wanted:
                said = f"is {list(shape)}, and its fields ask for {list(wanted)}"
                raise ModelError(f"{self._source}: the tensor {name} {said}")

    def _check_formats(self) -> None:
        for tensor in self.tensors:
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
        part = self._parts_of[tensor.name]
        kind = type(self._processor).__name__
        experts = _EXPERTS.fullmatch(tensor.name)
        if experts and experts[3] == "weight" and _stack(experts) in self._names:
            owner = self._owner(experts)
            self._check_stack(tensor.name, owner, experts[2].split("_"), shape)
            if form == "F32":
                return []  # not kept expert by expert
            stack = IndexedTensor("", form, shape, start, part=part)
            return list(_each_expert(owner, experts[2].split("_"), stack))
        if (below := self._below(tensor.name)) and len(shape) == 2:
            return [IndexedTensor(below, form, shape, start, part=part)]
        back = undo(self._architecture, self._model.config, name or "")
        if name is None or back.computes:
            return []
        if back.rows or back.columns:
            plain = IndexedTensor(name, form, shape, start, part=part)
            found = msgspec.structs.replace(plain, rows=back.rows, columns=back.columns)
            return [found] if len(shape) == 2 or form in PLAIN else []
        as_they_are = kind in _OF_ROWS or (kind in _OF_VECTORS and len(shape) == 2)
        if not as_they_are or len(shape) > 2:
            return []
        moved = self._moved(tensor.name, IndexedTensor(name, form, shape, start, part=part))
        return [moved] if moved else []

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
            turned = (halves(shape[0], heads),)
            if np.array_equal(found, file_order(turned)):
                return msgspec.structs.replace(indexed, rows=turned)
        return None

    def _below(self, name: str) -> str:
        """The rows of a joint layer that a tensor is; empty where the model has no such layer."""
        found = _BELOW.fullmatch(name)
        own = f"model.layers.{found[1]}.shared_mlp.input_linear.weight" if found else ""
        has = found and name not in self._names and own in self._model.state_dict()
        return part_name(own, _TURNS.index(found[2])) if found and has else ""

    def _owner(self, experts: re.Match[str]) -> str:
        """The module of a layer's experts."""
        return self._names[_stack(experts)].rpartition(".")[0]

    def _compute_stack(
        self, tensor: Any, experts: re.Match[str], computed: dict[str, torch.Tensor]
    ) -> bool:
        """Add what all experts of a layer have together, their biases or weights in float32, once
        both parts of a joint tensor are there; whether the model has one.
        """
        owner, layer = self._owner(experts), experts[2]
        layout = self._layout(owner)
        end = "_proj_bias" if experts[3] == "bias" else "_proj"
        own = f"{owner}.{'down' if layer == 'down' else 'gate_up'}{end}"
        if layout is not None and f"{layer}_proj" in layout.parameters:
            own = f"{owner}.{layer}{end}"  # a tensor of its own in the model too
        if own not in self._model.state_dict():
            return False
        numbers = torch.from_numpy(np.copy(gguf.dequantize(tensor.data, tensor.tensor_type)))
        takes_turns = f"{owner}.gate_up_proj_bias" in self._model.state_dict()
        if layer in _TURNS and not own.endswith(f".{layer}{end}"):
            self._parts[f"{own}.{layer}"] = numbers
            parts = [self._parts.get(f"{own}.{part}") for part in _TURNS]
            if any(part is None for part in parts):
                return True
            for part in _TURNS:
                del self._parts[f"{own}.{part}"]
            numbers = torch.stack(parts, 2).flatten(1, 2) if takes_turns else torch.cat(parts, 1)
        if experts[3] == "weight" and layout is not None and layout.transposed:
            numbers = numbers.transpose(1, 2).contiguous()
        computed[own] = numbers
        return True

    def _compute_projection(
        self, tensor: Any, projected: re.Match[str], computed: dict[str, torch.Tensor]
    ) -> bool:
        """Add a layer's projection from latent rows [heads * (key + value), rank] in float32, once
        both of its parts are there, of which that for keys [heads, rank, key] lies turned; whether
        the model has one.
        """
        own = self._names.get(f"blk.{projected[1]}.attn_kv_b.weight")
        if own is None:
            return False
        numbers = torch.from_numpy(np.copy(gguf.dequantize(tensor.data, tensor.tensor_type)))
        self._parts[f"{own}.{projected[2]}"] = numbers
        keys, values = (self._parts.get(f"{own}.{part}") for part in "kv")
        if keys is not None and values is not None:
            computed[own] = torch.cat((keys.transpose(1, 2), values), 1).flatten(0, 1)
            for part in "kv":
                del self._parts[f"{own}.{part}"]
        return True

    def _compute_convolution(
        self, tensor: Any, part: re.Match[str], computed: dict[str, torch.Tensor]
    ) -> bool:
        """Add a layer's convolution [channels, 1, kernel] once all three parts are there; whether
        the model has one.
        """
        own = f"model.layers.{part[1]}.self_attn.conv1d.weight"
        if own not in self._model.state_dict():
            return False
        numbers = torch.from_numpy(np.copy(gguf.dequantize(tensor.data, tensor.tensor_type)))
        self._parts[f"{own}.{part[2]}"] = numbers.reshape(-1, 1, numbers.shape[-1])
        names = [f"{own}.{kind}" for kind in "qkv"]
        if all(name in self._parts for name in names):
            computed[own] = torch.cat([self._parts.pop(name) for name in names])
        return True

    def _compute_betas_and_decays(
        self, tensor: Any, mixed: re.Match[str], computed: dict[str, torch.Tensor]
    ) -> bool:
        """Add two projections that one tensor has; whether the model has them."""
        owner = f"model.layers.{mixed[1]}.linear_attn"
        if f"{owner}.in_proj_b.weight" not in self._model.state_dict():
            return False
        numbers = torch.from_numpy(np.copy(gguf.dequantize(tensor.data, tensor.tensor_type)))
        of_heads = numbers.unflatten(0, (self._model.config.linear_num_key_heads, -1))
        for part, half in zip("ba", of_heads.chunk(2, 1), strict=True):
            computed[f"{owner}.in_proj_{part}.weight"] = half.flatten(0, 1).contiguous()
        return True

    def _compute(self, tensor: Any, computed: dict[str, torch.Tensor]) -> bool:
        """Add what transformers makes of a tensor to `computed`, by the model's names; it may join
        several tensors, part after part. Returns whether it makes anything of it.
        """
        parsed: dict[str, Any] = {"tensors": computed, "config": self._config}
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
        own = self._names.get(tensor.name)
        if own and (back := undo(self._architecture, self._model.config, own)) != NOTHING:
            shape = self._model.state_dict()[own].shape
            computed[own] = back(torch.from_numpy(np.copy(numbers)), shape)
            return True
        made = self._processor.process(
            numbers, tensor.name, tensor_key_mapping=self._names, parsed_parameters=parsed
        )
        if made.name in self._names:
            computed[self._names[made.name]] = torch.from_numpy(np.array(made.weights, order="C"))
        return made.name is None or made.name in self._names

    def _process(self, name: str, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        made = self._processor.process(
            rows, name, tensor_key_mapping=self._names, parsed_parameters={"tensors": {}}
        )
        return np.asarray(made.weights)


def _names(model: Any, processor: Any, architecture: str) -> dict[str, str]:
    """Names of a model's weights by the names of a file's tensors, as transformers knows them."""
    names: dict[str, str] = reading.get_gguf_hf_weights_map(model, processor, architecture)
    sinks = {name: own for name, own in names.items() if name.endswith(".attn_sinks")}
    names |= {f"{name}.weight": own for name, own in sinks.items()}
    _add_backbone(names, model, architecture)
    for own in model.state_dict():
        for pattern, name in _OWN_NAMES:
            if found := re.fullmatch(pattern, own):
                names.setdefault(name.format(found[1]), own)
    return names


def _add_backbone(names: dict[str, str], model: Any, architecture: str) -> None:
    """Add weights whose names the `gguf` package has with another beginning, as older checkpoints
    of Nemotron-H.
    """
    numbers = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
    if architecture not in ("nemotron_h", "nemotron_h_moe"):
        return
    known = gguf.get_tensor_name_map(numbers[architecture], model.config.num_hidden_layers)
    for own in model.state_dict():
        base, dot, end = own.replace("model.", "backbone.", 1).rpartition(".")
        base, end = (base, dot + end) if end in ("weight", "bias") else (base + dot + end, "")
        if found := known.get_name(base):
            names.setdefault(found + end, own)


def _each_expert(owner: str, parts: list[str], stack: IndexedTensor) -> Iterator[IndexedTensor]:
    """The matrices of a file's tensor of all experts, by a checkpoint's names; where gates and what
    they gate are one tensor, half of an expert's rows are of each.
    """
    count, rows, columns = stack.shape
    size_bytes = stack.size_bytes // (count * len(parts))
    for place in range(count * len(parts)):
        expert, part = divmod(place, len(parts))
        yield msgspec.structs.replace(
            stack,
            name=f"{owner}.{expert}.{parts[part]}_proj.weight",
            shape=(rows // len(parts), columns),
            start=stack.start + place * size_bytes,
        )


def _stack(experts: re.Match[str]) -> str:
    """The name that the matrices of a layer's experts have together, without its end."""
    return f"blk.{experts[1]}.ffn_down_exps"


def files_of(header: GgufHeader, source: Path) -> tuple[Path, ...]:
    """The files of a model."""
    return part_paths(source) if header.fields.get("split.count", 1) > 1 else (source,)


def tensors_of(header: GgufHeader, source: Path) -> list[Any]:
    """The `gguf` package's tensors of a model, of all its files."""
    return [t for path in files_of(header, source) for t in gguf.GGUFReader(path).tensors]
