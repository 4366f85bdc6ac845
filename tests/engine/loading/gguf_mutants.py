"""GGUF files with one thing wrong, by seed, of several architectures; and what comes of each."""

import random
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import numpy as np
import torch

from daemon.engine.loading.convert import convert
from daemon.engine.loading.loader import load_model
from daemon.engine.loading.resolve import resolve_here
from daemon.models.consistent import checked_shape
from daemon.models.gguf_header import GgufHeader, read_gguf_header
from daemon.models.shape import ModelError
from tests.engine.loading.gguf_cases import CASES
from tests.engine.loading.gguf_files import HEADS, KV_HEADS, put_field, write
from tests.engine.loading.gguf_written import tiny, write_model

ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3", "qwen2moe", "qwen3moe")
WRITTEN = (
    *("falcon-h1", "granitehybrid", "jamba", "lfm2", "lfm2moe", "mamba", "mamba2"),
    *("nemotron_h", "qwen35", "qwen35moe", "qwen3next", "llama4", "nemotron_h_moe"),
    *("gemma4", "kimi-linear"),
)
"""Those whose files are written of transformers' tiny models, and then again with a fault."""
ODD: tuple[Any, ...] = (
    0, 1, 3, 7, 2**31, 0.0, 7.5, -1.0, 1e30, "", "x", True, False, [1, 2], ["a"],
)  # fmt: skip


def mutant(path: Path, seed: int) -> str:
    """Write a damaged file; what was done, for a failing test's message."""
    chance = random.Random(seed)
    kinds = ["put", "drop", "skip", "add", "heads", "bits", "cut"]
    if seed % 2:
        architecture = WRITTEN[seed // 2 % len(WRITTEN)]
        write_model(path, architecture, tiny(CASES[architecture]), "Q8_0")
        kinds.remove("heads")
        again = partial(_again, path)
    else:
        architecture = ARCHITECTURES[seed // 2 % len(ARCHITECTURES)]
        write(path, _format, architecture)
        again = partial(write, path, _format, architecture)
    good = read_gguf_header(path)
    kind = chance.choice(kinds)
    what = f"{kind} {_damage(kind, path, again, good, chance)}"
    return f"seed {seed}: {architecture}, {what}"


def _format(name: str) -> str:
    return "Q6_K" if "attn_v" in name else "Q4_0"


def _again(
    path: Path,
    put: Mapping[str, Any] = MappingProxyType({}),
    drop: Collection[str] = (),
    skip: Collection[str] = (),
    add: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> Path:
    """A file written again, with other fields and tensors."""
    reader = gguf.GGUFReader(path)
    said = read_gguf_header(path).fields
    tensors = [(it.name, np.array(it.data), it.tensor_type) for it in reader.tensors]
    writer = gguf.GGUFWriter(path, said["general.architecture"])
    for name, value in {**said, **put}.items():
        if name not in drop and not name.startswith("general."):
            put_field(writer, name, value)
    for name, data, kind in tensors:
        if name not in skip:
            writer.add_tensor(name, data, raw_dtype=kind)
    for name, numbers in add.items():
        writer.add_tensor(name, numbers.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _damage(
    kind: str, path: Path, again: Callable[..., Path], good: GgufHeader, chance: random.Random
) -> str:
    fields = [name for name in good.fields if name != "general.architecture"]
    if kind == "put":
        name, value = chance.choice(fields), chance.choice(ODD)
        again(put={name: value})
        return f"{name} {value!r}"
    if kind == "drop":
        name = chance.choice(fields)
        again(drop=[name])
        return name
    if kind == "skip":
        name = chance.choice(good.tensors).name
        again(skip=[name])
        return name
    if kind == "add":
        name = chance.choice(good.tensors).name.rpartition(".")[0] + ".bias"
        added = {name: np.ones(chance.choice((1, 64, 256)))}
        again(add=added, skip=[name])
        return name
    if kind == "heads":
        heads = chance.choice(((HEADS, 1), (2 * HEADS, KV_HEADS), (HEADS, 3), (1, 1)))
        whole = path.read_bytes()
        again(heads=heads)
        return f"{heads}, {len(whole)} bytes before"
    data = bytearray(path.read_bytes())
    header_bytes = min(one.start for one in good.tensors)
    if kind == "cut":
        path.write_bytes(data[: chance.randrange(len(data))])
        return "somewhere"
    places = [chance.randrange(header_bytes) for _ in range(chance.choice((1, 3, 20)))]
    for at in places:
        data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return str(places)


def tried(path: Path, folder: Path) -> str:
    """The result of a file, in a line: served, refused with a sentence, or something unexpected."""
    try:
        convert(path, folder)
        checked_shape(folder, folder, resolve_here)
        model: Any = load_model(folder, "float32", torch.device("cpu"))
        model.set_attn_implementation("eager")
        with torch.inference_mode():
            found = model(input_ids=torch.arange(2, 9)[None], use_cache=False).logits
    except ModelError as error:
        return f"refused: {' '.join(str(error).split())[:300]}"
    except BaseException as error:  # noqa: BLE001 - a worker would end without a sentence
        return f"unexpected {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return f"served: {list(found.shape)}"
