"""The index of a file of blocks: which tensor lies where, under the names that a model has for it.

That of a GGUF file is made when the file is first seen. A folder that was made of one has it beside
its configuration and tokenizer, and a link to the file: weights are read from where they are. Only
tensors whose numbers the model wants in another shape or with other values are in a safetensors
file of the folder. A folder that llmd quantised has a file of its own, and an index of the same
kind.
"""

import contextlib
import os
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from daemon.models.formats import FORMATS, PLAIN
from daemon.models.shape import ModelError

INDEX = "gguf.json"
LINK: Final = "model.gguf"
OWN_INDEX = "blocks.json"
OWN_FILE: Final = "model.blocks"
"""The file of blocks in a folder that llmd quantised."""


class IndexedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of the file."""

    name: str  # the model's own: "model.layers.0.mlp.up_proj.weight"
    format: str  # of `FORMATS`
    shape: tuple[int, ...]
    start: int  # the byte of the file at which it begins
    heads: int = 0  # parts of its rows; in each, even rows come first, then odd ones

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        form, rows = FORMATS[self.format], 1
        for side in self.shape[:-1]:
            rows *= side
        return rows * form.row_bytes(self.shape[-1])

    @property
    def packed(self) -> bool:
        """Whether it stays in its format: what is of one number a row, or float32, does not."""
        return len(self.shape) == 2 and PLAIN.get(self.format) != "float32"


class GgufIndex(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All tensors of a file that a model wants as they are."""

    size_bytes: int  # of the file
    computed: bool  # whether some tensors are in the folder's own safetensors file
    tensors: tuple[IndexedTensor, ...]
    file: Literal["model.gguf", "model.blocks"] = LINK
    unused: tuple[str, ...] = ()  # fields of the file that are of no use here


def read_index(folder: Path) -> GgufIndex | None:
    """The index of a folder; None where no weights of its are in a file of blocks. Raises
    ModelError.
    """
    path = folder / INDEX
    if not path.exists():
        path = folder / OWN_INDEX
    try:
        index = msgspec.json.decode(path.read_bytes(), type=GgufIndex)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ModelError(f"{path} is no index of a file of blocks: {error}") from None
    unknown = {tensor.format for tensor in index.tensors} - set(FORMATS)
    if unknown:
        raise ModelError(f"{path} names unknown formats: {', '.join(sorted(unknown))}")
    return index


def linked_file(folder: Path, index: GgufIndex) -> Path:
    """The file itself. Raises ModelError where it is not the one that was indexed."""
    path = folder / index.file
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise ModelError(f"{os.path.realpath(path)}: {error.strerror}") from None
    if size_bytes != index.size_bytes:
        said = f"it has {size_bytes} bytes, and {index.size_bytes} when it was read first"
        raise ModelError(f"{os.path.realpath(path)} is another file now: {said}")
    return path


def link(folder: Path, gguf: Path) -> None:
    """Point a folder at its file, which may have moved. Raises OSError."""
    path = folder / LINK
    with contextlib.suppress(OSError):
        if os.readlink(path) == str(gguf):
            return
    fresh = folder / f".{LINK}.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(gguf)
    fresh.replace(path)


def row_order(rows: int, heads: int) -> npt.NDArray[np.int64]:
    """The file's row for each row of the model, int64 [rows]; see `IndexedTensor.heads`.

    llama.cpp turns pairs of neighbours where transformers turns a head's halves.
    """
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).ravel()
