"""Write the files of `benchmarks.peers.shapes`, and compare llmd with llama.cpp's server on them.

    python -m benchmarks.peers.shape_files DIR [--shapes gemma3 gpt-oss ...] [--formats q4_k_m ...]

DIR has `v-xllamacpp` (see the package's docstring), whose library also makes the blocks of formats
that the gguf package does not write. Each shape gets a folder in DIR; what is missing there is made
first (`--only-write` ends then). For each shape and format the rounds alternate between servers;
DIR/SHAPE/FORMAT.json has everything. What follows `--more` goes to `benchmarks.peers`.
"""

import argparse
import ctypes
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from benchmarks.peers.formats import FLOAT32, FORMATS
from benchmarks.peers.gguf_file import add_tokenizer
from benchmarks.peers.model import library_files, train_tokenizer
from benchmarks.peers.shapes import SHAPES, VOCAB_SIZE, Shape

SEED = 1234
_SPREAD = 0.05
_KEPT = re.compile(r"norm|ffn_gate_inp|ssm_conv1d|ssm_a$|ssm_d$|bias|sinks")
"""Tensors that no format packs."""
_WIDER = re.compile(r"attn_v\.|ffn_down(_exps|_shexp)?\.")
"""Those of which Q4_K_M gives half of the layers more bits."""
Kind = gguf.GGMLQuantizationType


def kind_of(name: str, shape: Shape, form: str) -> Kind:
    """The type of blocks that a tensor of a file gets, as llama-quantize chooses."""
    if _KEPT.search(name):
        return Kind.F32
    if form == "mxfp4":
        return Kind.MXFP4 if "_exps." in name else Kind.Q8_0
    if form == "q8_0":
        return Kind.Q8_0
    tied = "output.weight" not in shape.tensors
    if name == "output.weight" or (tied and name == "token_embd.weight"):
        return Kind.Q6_K
    if "attn_qkv" in name:
        return Kind.Q5_K
    if _WIDER.search(name):
        layer, count = int(name.split(".")[1]), int(shape.fields["block_count"])
        early = count // 8
        if layer < early or layer >= 7 * count // 8 or (layer - early) % 3 == 2:
            return Kind.Q6_K
    return Kind.Q4_K


class Library:
    """The peer's library, which turns numbers into blocks of any type."""

    def __init__(self, tools: Path) -> None:
        found = sorted(tools.glob("v-xllamacpp/lib/python3*/site-packages/xllamacpp/*.so"))
        if not found:
            raise SystemExit(f"{tools} has no v-xllamacpp: see benchmarks/peers")
        self._quantize = ctypes.CDLL(str(found[0])).ggml_quantize_chunk
        self._quantize.restype = ctypes.c_size_t
        counts = [ctypes.c_int64] * 3
        pointer = ctypes.c_void_p
        self._quantize.argtypes = [ctypes.c_int, pointer, pointer, *counts, pointer]

    def blocks(self, numbers: np.ndarray, kind: Kind) -> np.ndarray:
        """uint8 [..., bytes of a row] of float32 [..., columns]."""
        *rows, columns = numbers.shape
        block_len, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        made = np.empty((*rows, columns // block_len * block_bytes), np.uint8)
        count = int(np.prod(rows))
        source, target = numbers.ctypes.data, made.ctypes.data
        self._quantize(int(kind), source, target, 0, count, columns, None)
        return made


def begin_file(path: Path, shape: Shape, form: str, tokenizer: Path) -> gguf.GGUFWriter:
    """The writer of a shape's file in a format, all but the tensors' numbers written."""
    writer = gguf.GGUFWriter(path, shape.architecture)
    for name, value in shape.fields.items():
        _add_field(writer, f"{shape.architecture}.{name}", value)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_tokenizer(writer, tokenizer, int(shape.fields["vocab_size"]))
    for name, sides in shape.tensors.items():
        kind = kind_of(name, shape, form)
        size_bytes = gguf.quant_shape_to_byte_shape(sides, kind)
        whole, single = int(np.prod(size_bytes)), np.dtype(np.float32)
        writer.add_tensor_info(name, sides, single, whole, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer


def write_file(path: Path, shape: Shape, form: str, tokenizer: Path, tools: Path) -> None:
    """Write the file of a shape in a format; the folder `tokenizer` has its tokenizer."""
    writer = begin_file(path, shape, form, tokenizer)
    random = np.random.default_rng(SEED)
    for name, sides in shape.tensors.items():
        numbers, kind = _drawn(name, sides, random), kind_of(name, shape, form)
        if kind in (Kind.F32, Kind.Q8_0):
            blocks = gguf.quantize(numbers, kind)
        else:
            blocks = Library(tools).blocks(numbers, kind)
        writer.write_tensor_data(blocks)
    writer.close()


def _add_field(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    add: Any = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add.get(type(value), writer.add_array)(name, value)


def _drawn(name: str, sides: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """The numbers of a tensor as a file has them, drawn as a new model's are."""
    if "norm" in name or name.endswith("ssm_d"):
        return np.ones(sides, np.float32)
    if name.endswith("ssm_a"):
        return -random.uniform(1, 16, sides).astype(np.float32)
    if name.endswith("ssm_dt.bias"):
        return random.uniform(-6, -2, sides).astype(np.float32)
    spread = 0.3 if "conv1d.weight" in name else _SPREAD
    return random.standard_normal(sides, np.float32) * np.float32(spread)


def prepare(folder: Path, shape: Shape, forms: list[str], tools: Path) -> None:
    """Write what a folder lacks: the tokenizer, and a file for each format."""
    model = folder / FLOAT32.folder
    if not (model / "tokenizer.json").exists():
        model.mkdir(parents=True, exist_ok=True)
        train_tokenizer(VOCAB_SIZE, library_files()).save(str(model / "tokenizer.json"))
    for form in forms:
        path = folder / FORMATS[form].file
        if not path.exists():
            write_file(path, shape, form, model, tools)
            print(f"wrote {path}", flush=True)


def main() -> None:
    """Make what is missing, then compare."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.shape_files", description=__doc__
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, help="default: all of a shape")
    parser.add_argument("--only-write", action="store_true")
    parser.add_argument(
        "--more", nargs=argparse.REMAINDER, default=[], help="for benchmarks.peers; last"
    )
    args = parser.parse_args()
    tools = args.folder.resolve()
    for name in args.shapes:
        shape, folder = SHAPES[name], tools / name
        forms = [form for form in shape.formats if form in (args.formats or shape.formats)]
        prepare(folder, shape, forms, tools)
        for form in [] if args.only_write else forms:
            command = ["--peers-dir", str(folder), "--tools-dir", str(tools), "--llmd-files"]
            command += ["--servers", "xllamacpp", "--modes", "single", "c8", "prefill"]
            command += ["--formats", form, "--out", str(folder / f"{form}.json"), *args.more]
            subprocess.run([sys.executable, "-m", "benchmarks.peers", *command], check=True)


if __name__ == "__main__":
    main()
