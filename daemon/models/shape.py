"""A model's shape, and what a folder's JSON files and headers say: no weights are touched."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import msgspec

from daemon.memory.sizing import DTYPE_BYTES

SAFETENSORS_INDEX = "model.safetensors.index.json"
_HEADER_LIMIT_BYTES = 100 * 1024 * 1024


class ModelError(ValueError):
    """A folder does not hold a model that llmd can serve; the message says why."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon must know of a model before a worker loads it."""

    model_type: str  # as config.json names it: "llama", "opt", ...
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    context_len: int  # tokens
    num_params: int
    dtype: str  # of the weights as stored
    eos_token_ids: tuple[int, ...] = ()

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights once loaded as `dtype`."""
        return self.num_params * DTYPE_BYTES[dtype]


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


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, whether or not they exist."""
    index = folder / SAFETENSORS_INDEX
    if not index.exists():
        return [folder / "model.safetensors"]
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index} names no weights")
    names = sorted({str(name) for name in weight_map.values()})
    if any("/" in name or name.startswith(".") for name in names):
        raise ModelError(f"{index} names weights outside the folder")
    return [folder / name for name in names]


def count_params(folder: Path) -> int:
    """Parameters stored, summed over the safetensors headers (tied ones are stored once)."""
    return sum(math.prod(sides) for sides in weight_shapes(folder).values())


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The sides of every tensor stored, by its name. Raises ModelError if it is no safetensors."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder):
        tensors, _ = safetensors_header(path)
        for name, tensor in tensors.items():
            shapes[name] = _sides(path, tensor)
    return shapes


def _sides(path: Path, tensor: Any) -> tuple[int, ...]:
    sides = tensor.get("shape") if isinstance(tensor, dict) else None
    if not isinstance(sides, list) or not all(isinstance(s, int) and s >= 0 for s in sides):
        raise ModelError(f"{path} is not a safetensors file: a tensor without a shape")
    return tuple(sides)


def safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """What a file's header says of its tensors, by name, and where in the file their bytes begin.

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
