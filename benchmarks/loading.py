"""Time of loading packed weights, to the first token, beside reading their file; and the memory.

    python -m benchmarks.loading [--gib 5] [--formats NVFP4 GPTQ Q4_K] [--keep FOLDER]

For each format a model of random weights is written, as large as asked. Its files are read once
from the disk, in a process that does nothing else; then a worker's own code loads it and computes a
token, in a process that has imported all. Before each, the kernel is told to forget the files, so
the disk is a part of both times. The first start, which tries the model and may compile kernels, is
printed beside the second. Memory is the most that the process held, and what is its own at the end
(pages of a mapped file are the kernel's to take back). Run it on a quiet machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

from tests.engine.loading import gguf_files
from tests.engine.quantised.random_blocks import random_blocks

WIDTH, INNER, HEADS, KV_HEADS, VOCAB_SIZE = 2048, 8192, 16, 4, 300
_SMALL = 1e-5
"""Norms' weights: blocks of any bytes are large numbers, and a model of many such layers would
make much of every rounding, which no trial lets pass."""
PROMPT = list(range(2, 18))
_READ_BYTES = 4 << 20
_LAYERS = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (WIDTH * KV_HEADS // HEADS, WIDTH),
    "self_attn.v_proj": (WIDTH * KV_HEADS // HEADS, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}
_OF_GGUF = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
Tensors = dict[str, torch.Tensor]


def _nvfp4(rows: int, columns: int) -> Tensors:
    scales = torch.rand(rows, columns // 16).to(torch.float8_e4m3fn)
    packed = torch.randint(256, (rows, columns // 2), dtype=torch.uint8)
    return {"weight": packed, "weight_scale": scales, "weight_scale_2": torch.tensor(0.01)}


def _gptq(rows: int, columns: int) -> Tensors:
    def words(*sides: int) -> torch.Tensor:
        return torch.randint(-(2**31), 2**31, sides).int()

    scales = (torch.rand(columns // 128, rows) * 0.002).half()
    zeros = torch.full((columns // 128, rows // 8), 0x77777777, dtype=torch.int32)
    return {"qweight": words(columns // 8, rows), "qzeros": zeros, "scales": scales}


_FOLDERS: dict[str, tuple[dict[str, Any], Callable[[int, int], Tensors]]] = {
    "NVFP4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, _nvfp4),
    "GPTQ": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, _gptq),
}
FILES = ("Q4_K", "Q8_0", "IQ3_S")


def write_folder(folder: Path, form: str, size_bytes: int) -> None:
    """A folder of safetensors, a file for each layer."""
    said, pack = _FOLDERS[form]
    layer = {
        f"{name}.{what}": tensor
        for name, sides in _LAYERS.items()
        for what, tensor in pack(*sides).items()
    }
    small = torch.full((WIDTH,), _SMALL).bfloat16()
    layer |= {f"{name}.weight": small.clone() for name in _norms()}  # a file holds none twice
    count = max(1, size_bytes // sum(tensor.nbytes for tensor in layer.values()))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16",
        "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": count,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": 4096, "tie_word_embeddings": True, "eos_token_id": 1,
        "quantization_config": said,
    }  # fmt: skip
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    others = {
        "model.embed_tokens.weight": torch.randn(VOCAB_SIZE, WIDTH).bfloat16(),
        "model.norm.weight": torch.ones(WIDTH).bfloat16(),
    }
    places = dict[str, str]()
    for index in range(count + 1):
        named = {f"model.layers.{index}.{name}": tensor for name, tensor in layer.items()}
        file = f"model-{index + 1:05}-of-{count + 1:05}.safetensors"
        held = named if index < count else others
        places |= dict.fromkeys(held, file)
        save_file(held, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def _norms() -> tuple[str, str]:
    return "input_layernorm", "post_attention_layernorm"


def write_file(path: Path, form: str, size_bytes: int) -> None:
    """A GGUF file."""
    blocks = {
        name: random_blocks(form, *sides, seed=number)
        for number, (name, sides) in enumerate(_LAYERS.items())
    }
    count = max(1, size_bytes // sum(data.nbytes for data in blocks.values()))
    path.parent.mkdir(parents=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(count)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(VOCAB_SIZE)
    gguf_files.add_tokenizer(writer, VOCAB_SIZE)
    kind = gguf.GGMLQuantizationType[form]
    ones = np.ones(WIDTH, np.float32)
    writer.add_tensor("token_embd.weight", np.float32(np.random.randn(VOCAB_SIZE, WIDTH)))
    writer.add_tensor("output_norm.weight", ones)
    for index in range(count):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{index}.{name}.weight", ones * np.float32(_SMALL))
        for name, data in blocks.items():
            writer.add_tensor(f"blk.{index}.{_OF_GGUF[name]}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def files_of(model: Path) -> list[Path]:
    """The files with weights."""
    return [model] if model.is_file() else sorted(model.glob("*.safetensors"))


def forget(model: Path) -> None:
    """Tell the kernel that the files are not needed; they must be on the disk."""
    for path in files_of(model):
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def read(model: Path) -> float:
    """Seconds of reading all files."""
    buffer, begin_s = bytearray(_READ_BYTES), time.perf_counter()
    for path in files_of(model):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - begin_s


def first_token(model: Path, cache: Path) -> dict[str, float]:
    """Seconds to a first token, and MiB at most: of all, and of what no file holds."""
    from daemon.engine.worker.preload import preload

    preload("cpu")
    from daemon.engine.loading.convert import convert
    from daemon.engine.loading.gguf_speed import hurry
    from daemon.engine.worker.start import start
    from daemon.models.embedded import ensure_converted
    from daemon.protocol.worker import Load
    from tests.engine.driver import Driver

    folder = model
    if model.is_file():
        hurry()  # as the process that converts does
        folder = ensure_converted(model, cache, convert, lambda _share: None)
    forget(model)
    begin_s = time.perf_counter()
    # As a daemon asks for it: states of a CPU are float32, whatever weights are held as.
    message = Load(
        str(folder), "cpu", "float32", 16, 64, 8, 256, 64,
        cache=str(cache), weight_dtype="bfloat16", exact=False,
    )  # fmt: skip
    with torch.inference_mode():
        engine, *_ = start(message, lambda _stage, _done: None)
        driver = Driver(16, list(range(16)))
        row = driver.add(0, PROMPT)
        work = [(row, len(PROMPT))]
        driver.take(work, engine.run(driver.plan(work)))
    took_s = time.perf_counter() - begin_s
    return {"s": took_s, "all_mib": _status("VmHWM"), "own_mib": _status("RssAnon")}


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) / 1024


def _asked(what: str, model: Path, cache: Path) -> Any:
    """One of these measurements, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loading", "--ask", what, str(model), str(cache)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured(form: str, size_bytes: int, place: Path) -> Iterator[str]:
    """The lines of a format."""
    model = place / form / ("model.gguf" if form in FILES else "model")
    if not model.exists():
        (write_file if form in FILES else write_folder)(model, form, size_bytes)
    cache = place / f"{form}-cache"
    held = sum(path.stat().st_size for path in files_of(model))
    forget(model)
    read_s = _asked("read", model, cache)
    first, second = (_asked("token", model, cache) for _ in range(2))
    share, mib = second["s"] / read_s, held / 2**20
    yield f"{form:6} {held / 2**30:6.2f} GiB   read {read_s:.2f} s   first start {first['s']:.2f} s"
    yield (
        f"{'':6} to the first token {second['s']:.2f} s, {share:.2f} of reading; at most "
        f"{second['all_mib']:,.0f} MiB, {second['all_mib'] / mib:.2f} of the file; its own at the "
        f"end {second['own_mib']:,.0f} MiB"
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=5.0, help="of weights")
    parser.add_argument(
        "--formats", nargs="+", default=["NVFP4", "GPTQ", "Q4_K"], choices=[*_FOLDERS, *FILES]
    )
    parser.add_argument("--keep", type=Path, help="where models are written, and stay")
    parser.add_argument("--ask", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.ask:
        what, model, cache = arguments.ask[0], Path(arguments.ask[1]), Path(arguments.ask[2])
        print(json.dumps(read(model) if what == "read" else first_token(model, cache)))
        return
    with tempfile.TemporaryDirectory(prefix="loading-") as place:
        folder = (arguments.keep or Path(place)).absolute()
        for form in arguments.formats:
            for line in measured(form, int(arguments.gib * 2**30), folder):
                print(line, flush=True)


if __name__ == "__main__":
    main()
