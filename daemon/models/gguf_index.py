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
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from daemon.models.formats import FORMATS, PLAIN
from daemon.models.gguf_header import part_paths
from daemon.models.shape import ModelError

INDEX = "gguf.json"
_BELOW = ":"
"""Behind a weight's name and before the number of some of its rows, which are a tensor."""
LINK: Final = "model.gguf"
OWN_INDEX = "blocks.json"
OWN_FILE: Final = "model.blocks"
"""The file of blocks in a folder that llmd quantised."""


class SideSwap(NamedTuple):
    """Rows or columns in two orders: [times, outer, inner, size] in a file, and [times, inner,
    outer, size] in the model.
    """

    times: int
    outer: int
    inner: int
    size: int

    @property
    def num_places(self) -> int:
        """How many rows or columns it tells of."""
        return self.times * self.outer * self.inner * self.size


def halves(rows: int, heads: int) -> SideSwap:
    """Neighbours in a file that are halves of a head in the model: llama.cpp turns pairs of
    neighbours where transformers turns a head's halves.
    """
    return SideSwap(heads, rows // heads // 2, 2, 1)


class IndexedTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor of the file."""

    name: str  # the model's own: "model.layers.0.mlp.up_proj.weight"
    format: str  # of `FORMATS`
    shape: tuple[int, ...]
    start: int  # the byte of the file at which it begins
    rows: tuple[SideSwap, ...] = ()  # where they lie in another order, all of them
    columns: tuple[SideSwap, ...] = ()
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


def part_name(weight: str, place: int) -> str:
    """The name of a tensor that is some rows of a weight; `place`: of those below each other."""
    return f"{weight}{_BELOW}{place}"


def parts_below(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The tensors that lie below each other in a weight, in order, by the weight's name."""
    found = dict[str, list[str]]()
    for name in sorted(names):
        weight, parted, _ = name.partition(_BELOW)
        if parted:
            found.setdefault(weight, []).append(name)
    return {weight: tuple(parts) for weight, parts in found.items()}


def joined_shapes(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The shapes of weights, by those of all tensors."""
    joined = dict(shapes)
    for weight, parts in parts_below(shapes).items():
        joined[weight] = (sum(shapes[part][0] for part in parts), *shapes[parts[0]][1:])
    return joined


def file_order(swaps: Iterable[SideSwap]) -> npt.NDArray[np.int64]:
    """The file's row or column for each one of the model, int64."""
    orders, first = list[npt.NDArray[np.int64]](), 0
    for swap in swaps:
        here = np.arange(first, first + swap.num_places).reshape(swap)
        orders.append(here.swapaxes(1, 2).ravel())
        first += swap.num_places
    return np.concatenate(orders)
