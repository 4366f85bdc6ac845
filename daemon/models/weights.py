"""The weights of a model folder: what its headers say of them, without touching any."""

import json
import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

from daemon.models.containers import predicting, text_names
from daemon.models.gguf_index import GgufIndex, joined_shapes, read_index
from daemon.models.quantise_plan import UNPACKED
from daemon.models.quantised_layers import (
    QuantisedLayer,
    TensorHeader,
    find_quantised_layers,
    tensors_aside,
)
from daemon.models.schemes import Quantisation
from daemon.models.shape import ModelError, read_json

SAFETENSORS_INDEX = "model.safetensors.index.json"
_HEADER_LIMIT_BYTES = 100 * 1024 * 1024
_WHOLE = "model.safetensors"
_ADAPTER = "adapter_config.json"
_BITS = {
    **dict.fromkeys(("F64", "I64", "U64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "I8", "U8", "BOOL"), 8),
}
"""Bits of a number, by safetensors' names of types."""


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, whether or not they exist."""
    gguf, index = read_index(folder), folder / SAFETENSORS_INDEX
    if gguf and not gguf.computed:
        return []
    if not index.exists():
        return [folder / _WHOLE]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} names no weights")
    names = sorted({str(name) for name in weight_map.values()})
    if any("/" in name or name.startswith(".") for name in names):
        raise ModelError(f"{index} names weights outside the folder")
    return [folder / name for name in names]


def check_files(folder: Path) -> None:
    """Raise ModelError, naming the file, unless the folder's safetensors files are all there, whole
    and in agreement with their index.
    """
    if (folder / _ADAPTER).exists():
        said = "holds an adapter, which is not applied: merge it into the weights"
        raise ModelError(f"{folder / _ADAPTER}: the folder {said}")
    placed = dict[str, str]()
    for path in weight_files(folder):
        for name in _checked_names(path):
            if name in placed:
                raise ModelError(f"{folder}: {name} is stored in {placed[name]} and in {path.name}")
            placed[name] = path.name
    index = folder / SAFETENSORS_INDEX
    if not index.exists() or _indexed_aside(folder):
        return
    placing: dict[str, Any] = read_json(index)["weight_map"]
    for name, file in placing.items():
        if placed.get(name) != file:
            raise ModelError(f"{index} says that {name} is in {file}, which does not hold it")
    if (folder / _WHOLE).exists() and _WHOLE not in placing.values():
        raise ModelError(f"{index} leaves out {_WHOLE}, which lies beside it: one of both is wrong")


def _indexed_aside(folder: Path) -> bool:
    """Whether all weights are in a file of blocks."""
    gguf = read_index(folder)
    return gguf is not None and not gguf.computed


def _checked_names(path: Path) -> list[str]:
    """The tensors of a file that is whole. Raises ModelError."""
    tensors, whole = safetensors_header(path)[0], stored_bytes(path)
    size_bytes = path.stat().st_size
    if size_bytes < whole:
        raise ModelError(
            f"{path} is not whole: it has {size_bytes:,} bytes and its header tells of {whole:,}, "
            f"so {whole - size_bytes:,} are missing"
        )
    if size_bytes > whole:
        raise ModelError(f"{path} has {size_bytes - whole:,} bytes more than its header tells of")
    for name, tensor in tensors.items():
        header = _header(path, tensor)
        if header.dtype not in _BITS:
            raise ModelError(
                f"{path}: {name} is stored as {header.dtype!r}, which llmd cannot read"
            )
        first, last = tensor["data_offsets"]
        needed = math.prod(header.shape) * _BITS[header.dtype] // 8
        if first < 0 or last - first != needed:
            shape = f"{list(header.shape)} of {header.dtype}"
            raise ModelError(
                f"{path}: {name} is {shape}, which is {needed:,} bytes, and has {last - first:,}"
            )
    _check_places(path, tensors)
    return list(tensors)


def _check_places(path: Path, tensors: dict[str, Any]) -> None:
    """Raise ModelError unless each tensor begins where the one before it ends, as the format wants
    it: else two share their bytes, or some bytes are no tensor's.
    """
    end, before = 0, "the header"
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = tensor["data_offsets"]
        if first != end:
            said = "shares bytes with" if first < end else f"lies {first - end:,} bytes behind"
            raise ModelError(f"{path}: {name} {said} {before}")
        end, before = last, name


def stored_bytes(path: Path) -> int:
    """The size of a whole safetensors file, by its header. Raises ModelError."""
    tensors, first = safetensors_header(path)
    try:
        ends = [(entry["data_offsets"][0], entry["data_offsets"][1]) for entry in tensors.values()]
        if not all(isinstance(side, int) for end in ends for side in end):
            raise TypeError
    except (TypeError, LookupError):
        raise ModelError(f"{path} is not a safetensors file") from None
    return first + max((end for _, end in ends), default=0)


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The sides of every tensor stored, by its name. Raises ModelError."""
    index = read_index(folder)
    shapes = joined_shapes({it.name: it.shape for it in index.tensors}) if index else {}
    return shapes | {name: header.shape for name, header in weight_headers(folder).items()}


def weight_headers(folder: Path) -> dict[str, TensorHeader]:
    """Headers of the tensors in the folder's safetensors files, parts beside the text model aside
    (see `daemon.models.containers`). Raises ModelError.
    """
    name_of = text_names(folder)
    return {
        name: _header(path, tensor)
        for path in weight_files(folder)
        for stored, tensor in safetensors_header(path)[0].items()
        if (name := name_of(stored)) is not None
    }


def folder_layers(folder: Path, quantisation: Quantisation | None) -> dict[str, QuantisedLayer]:
    """The quantised layers in a folder's safetensors files. Raises ModelError."""
    if quantisation is None:
        return {}
    try:
        return find_quantised_layers(quantisation, weight_headers(folder))
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from None


def predicting_weights(folder: Path) -> list[str]:
    """The folder's tensors that predict further tokens, which are not read. Raises ModelError."""
    stored = (name for path in weight_files(folder) for name in safetensors_header(path)[0])
    return predicting(folder, stored)


class WeightCount(NamedTuple):
    """Parameters that a folder stores (tied ones are stored once), by how they are held once they
    are loaded.
    """

    num_params: int
    packed_params: int  # of them in blocks
    packed_bytes: int


def count_weights(folder: Path, quantisation: Quantisation | None = None) -> WeightCount:
    """The parameters of a folder, by its headers. Raises ModelError."""
    index = read_index(folder)
    kept = count_indexed(index) if index else WeightCount(0, 0, 0)
    layers = folder_layers(folder, quantisation)
    stay = [layer for name, layer in layers.items() if not UNPACKED.search(name)]
    all_in_blocks, in_blocks = (
        sum(layer.rows * layer.columns for layer in some) for some in (layers.values(), stay)
    )
    headers = weight_headers(folder)
    aside = tensors_aside(layers, headers)
    plain = sum(math.prod(header.shape) for name, header in headers.items() if name not in aside)
    return WeightCount(
        kept.num_params + plain + all_in_blocks,
        kept.packed_params + in_blocks,
        kept.packed_bytes + sum(layer.size_bytes for layer in stay),
    )


def count_indexed(index: GgufIndex) -> WeightCount:
    """The parameters in a file of blocks."""
    packed = [it for it in index.tensors if it.packed and not UNPACKED.search(it.name)]
    return WeightCount(
        sum(math.prod(tensor.shape) for tensor in index.tensors),
        sum(math.prod(tensor.shape) for tensor in packed),
        sum(tensor.size_bytes for tensor in packed),
    )


def _header(path: Path, tensor: Any) -> TensorHeader:
    header = tensor if isinstance(tensor, dict) else {}
    dtype, sides = header.get("dtype"), header.get("shape")
    if not isinstance(sides, list) or not all(isinstance(s, int) and s >= 0 for s in sides):
        raise ModelError(f"{path} is not a safetensors file: a tensor without a shape")
    return TensorHeader(dtype if isinstance(dtype, str) else "", tuple(sides))


def safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """A file's header of its tensors, by name, and the offset in the file of their bytes.

    Raises ModelError if it is no safetensors file.
    """
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _HEADER_LIMIT_BYTES:
                raise ModelError(f"{path} is not a safetensors file")
            header = json.loads(file.read(size))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError, struct.error) as error:
        raise ModelError(f"{path} is not a safetensors file: {error}") from None
    if not isinstance(header, dict):
        raise ModelError(f"{path} is not a safetensors file")
    header.pop("__metadata__", None)
    return header, 8 + size
