"""The index of a file of quantised weights: where each tensor lies, by the model's names.

That of a GGUF file is made when the file is first seen. A folder that was made of one has it beside
its configuration and tokenizer, and a link to the file: weights are read from where they are. Only
tensors whose numbers the model wants in another shape or with other values are in a safetensors
file of the folder. A folder that llmd quantised has a file of its own, and an index of the same
kind.
"""

import contextlib
import os
import threading
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from daemon.models.formats import FORMATS, PLAIN
from daemon.models.gguf_header import part_paths
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
    part: int = 0  # of a split file

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

    size_bytes: int  # of the file, or of a split one's first part
    computed: bool  # whether some tensors are in the folder's own safetensors file
    tensors: tuple[IndexedTensor, ...]
    file: Literal["model.gguf", "model.blocks"] = LINK
    unused: tuple[str, ...] = ()  # fields of the file that are of no use here
    further_bytes: tuple[int, ...] = ()  # of a split file's further parts


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


def linked_files(folder: Path, index: GgufIndex) -> tuple[Path, ...]:
    """The file itself, or a split one's parts. Raises ModelError where they are not those that were
    indexed.
    """
    sizes = (index.size_bytes, *index.further_bytes)
    names = [index.file, *(_part_link(part) for part in range(1, len(sizes)))]
    for name, expected in zip(names, sizes, strict=True):
        path = folder / name
        try:
            size_bytes = path.stat().st_size
        except OSError as error:
            raise ModelError(f"{os.path.realpath(path)}: {error.strerror}") from None
        if size_bytes != expected:
            said = f"it has {size_bytes} bytes, and {expected} when it was read first"
            raise ModelError(f"{os.path.realpath(path)} is another file now: {said}")
    return tuple(folder / name for name in names)


def link(folder: Path, gguf: Path) -> None:
    """Point a folder at its file or its parts, which may have moved. Raises OSError."""
    for part, path in enumerate(part_paths(gguf)):
        _link(folder / (_part_link(part) if part else LINK), path)


def _part_link(part: int) -> str:
    return f"model-{part + 1}.gguf"


def _link(path: Path, gguf: Path) -> None:
    with contextlib.suppress(OSError):
        if os.readlink(path) == str(gguf):
            return
    fresh = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(gguf)
    fresh.replace(path)


def row_order(rows: int, heads: int) -> npt.NDArray[np.int64]:
    """The file's row for each row of the model, int64 [rows]; see `IndexedTensor.heads`.

    llama.cpp turns pairs of neighbours where transformers turns a head's halves.
    """
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).ravel()
