"""Safetensors files: whole, of known types, and in agreement with their index, before any start."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from daemon.models.shape import ModelError
from daemon.models.weights import SAFETENSORS_INDEX, check_files

NAMES = ("embed", "layers.0.up", "layers.1.up")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    numbers = {name: np.full((4, 6), at, np.float32) for at, name in enumerate(NAMES)}
    save_file(numbers, tmp_path / "model.safetensors")
    return tmp_path


def split(folder: Path, **placed: str) -> None:
    """The same weights in two files and an index, which says as well what is `placed`."""
    (folder / "model.safetensors").unlink()
    parts = {"part-1.safetensors": NAMES[:2], "part-2.safetensors": NAMES[2:]}
    for file, names in parts.items():
        save_file({name: np.zeros((4, 6), np.float32) for name in names}, folder / file)
    told = {name: file for file, names in parts.items() for name in names} | placed
    (folder / SAFETENSORS_INDEX).write_text(json.dumps({"weight_map": told}))


def change(folder: Path, name: str, **said: Any) -> None:
    """What the header says of one tensor."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header[name] |= said
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def test_a_whole_folder_is_right(folder: Path) -> None:
    check_files(folder)
    split(folder)
    check_files(folder)


@pytest.mark.parametrize("missing", [1, 100, 287])
def test_a_file_that_was_cut_names_its_bytes(missing: int, folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-missing])
    said = (
        rf"model\.safetensors is not whole: .* tells of {len(data):,}, so {missing:,} are missing"
    )
    with pytest.raises(ModelError, match=said):
        check_files(folder)


Wrong = Callable[[Path], object]
WRONG: dict[str, tuple[Wrong, str]] = {
    "longer": (
        lambda folder: (folder / "model.safetensors").open("ab").write(bytes(7)),
        "has 7 bytes more than its header tells of",
    ),
    "a header that was cut": (
        lambda folder: (folder / "model.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes()[:40]
        ),
        "is not a safetensors file",
    ),
    "a type that nobody knows": (
        lambda folder: change(folder, NAMES[0], dtype="F4"),
        "embed is stored as 'F4', which llmd cannot read",
    ),
    "another type": (
        lambda folder: change(folder, NAMES[0], dtype="F16"),
        r"embed is \[4, 6\] of F16, which is 48 bytes, and has 96",
    ),
    "another shape": (
        lambda folder: change(folder, NAMES[1], shape=[4, 7]),
        r"layers\.0\.up is \[4, 7\] of F32, which is 112 bytes, and has 96",
    ),
    "no offsets": (
        lambda folder: change(folder, NAMES[1], data_offsets=["a", 96]),
        "is not a safetensors file",
    ),
    "bytes of two tensors": (
        lambda folder: change(folder, NAMES[1], data_offsets=[0, 96]),
        r"layers\.0\.up shares bytes with embed",
    ),
    "bytes of no tensor": (
        lambda folder: change(folder, NAMES[0], shape=[0, 6], data_offsets=[0, 0]),
        r"layers\.0\.up lies 96 bytes behind embed",
    ),
    "an index with a name too many": (
        lambda folder: split(folder, more="part-2.safetensors"),
        r"says that more is in part-2\.safetensors, which does not hold it",
    ),
    "an index with a wrong place": (
        lambda folder: split(folder, embed="part-2.safetensors"),
        r"says that embed is in part-2\.safetensors, which does not hold it",
    ),
    "a part that is not there": (
        lambda folder: split(folder, more="part-3.safetensors"),
        r"part-3\.safetensors is missing",
    ),
    "both an index and a whole file": (
        lambda folder: (
            split(folder),
            save_file({"x": np.zeros(3, np.float32)}, folder / "model.safetensors"),
        ),
        "leaves out model.safetensors, which lies beside it",
    ),
    "a tensor in two parts": (
        lambda folder: (
            split(folder),
            save_file(
                {name: np.zeros((4, 6), np.float32) for name in NAMES[1:]},
                folder / "part-2.safetensors",
            ),
        ),
        r"layers\.0\.up is stored in part-1\.safetensors and in part-2\.safetensors",
    ),
    "an adapter": (
        lambda folder: (folder / "adapter_config.json").write_text("{}"),
        "holds an adapter, which is not applied",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_contradicts_itself_is_named(kind: str, folder: Path) -> None:
    do, said = WRONG[kind]
    do(folder)
    with pytest.raises(ModelError, match=said):
        check_files(folder)
