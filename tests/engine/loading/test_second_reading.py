"""A GGUF file is read a second time by another way, and a reading that is wrong is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
import torch

from daemon.engine.loading import gguf_blocks
from daemon.engine.loading.convert import convert
from daemon.engine.loading.gguf_blocks import Indexer
from daemon.models.gguf_index import GgufIndex, IndexedTensor
from daemon.models.shape import ModelError
from tests.engine.loading.gguf_files import write

Change = Callable[[IndexedTensor], IndexedTensor]


def mixed(name: str) -> str:
    """Formats of several kinds."""
    return "Q6_K" if "attn_v" in name else "F32" if "attn_q" in name else "Q4_K"


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe"])
def test_files_are_read_alike(architecture: str, tmp_path: Path) -> None:
    convert(write(tmp_path / "tiny.gguf", mixed, architecture), tmp_path / "made")


def swapped(one: str, two: str) -> Change:
    """Two weights under each other's names."""

    def change(tensor: IndexedTensor) -> IndexedTensor:
        names = {one: two, two: one}
        return msgspec.structs.replace(tensor, name=names.get(tensor.name, tensor.name))

    return change


def unturned(tensor: IndexedTensor) -> IndexedTensor:
    return msgspec.structs.replace(tensor, rows=())


def other_heads(tensor: IndexedTensor) -> IndexedTensor:
    rows = tuple(it._replace(times=2 * it.times, outer=it.outer // 2) for it in tensor.rows)
    return msgspec.structs.replace(tensor, rows=rows)


def shifted(tensor: IndexedTensor) -> IndexedTensor:
    start = tensor.start + 32 * tensor.name.endswith("1.mlp.up_proj.weight")
    return msgspec.structs.replace(tensor, start=start)


def other_format(tensor: IndexedTensor) -> IndexedTensor:
    """Of as many bytes a block."""
    form = {"Q4_K": "Q5_K"}.get(tensor.format, tensor.format)
    return msgspec.structs.replace(tensor, format=form)


LAYER = "model.layers.0."
WRONG: dict[str, tuple[str, Change]] = {
    "gate and up": ("llama", swapped(f"{LAYER}mlp.gate_proj.weight", f"{LAYER}mlp.up_proj.weight")),
    "both ends": ("llama", swapped("model.embed_tokens.weight", "lm_head.weight")),
    "two layers": (
        "qwen3",
        swapped(f"{LAYER}mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight"),
    ),
    "two experts": (
        "qwen3moe",
        swapped(f"{LAYER}mlp.experts.0.up_proj.weight", f"{LAYER}mlp.experts.1.up_proj.weight"),
    ),
    "rows as the file has them": ("llama", unturned),
    "rows of other heads": ("llama", other_heads),
    "another place": ("llama", shifted),
    "another format": ("qwen2", other_format),
}


@pytest.mark.parametrize("kind", WRONG)
def test_an_index_that_is_wrong_is_found(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture, change = WRONG[kind]
    right = Indexer.index

    def wrong(self: Indexer) -> tuple[GgufIndex, dict[str, torch.Tensor]]:
        index, computed = right(self)
        tensors = tuple(change(one) for one in index.tensors)
        return msgspec.structs.replace(index, tensors=tensors), computed

    monkeypatch.setattr(gguf_blocks.Indexer, "index", wrong)
    path = write(tmp_path / "tiny.gguf", mixed, architecture)
    with pytest.raises(ModelError, match="read a second time, is not what was read first"):
        convert(path, tmp_path / "made")


def test_numbers_that_are_unpacked_wrongly_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = gguf.dequantize

    def doubled(data: np.ndarray, kind: Any) -> np.ndarray:
        numbers: np.ndarray = right(data, kind)
        return numbers * (2 if kind == gguf.GGMLQuantizationType.Q6_K else 1)

    path = write(tmp_path / "tiny.gguf", mixed)
    monkeypatch.setattr(gguf, "dequantize", doubled)
    with pytest.raises(ModelError, match=r"v_proj\.weight, read a second time, .* numbers are oth"):
        convert(path, tmp_path / "made")
