"""Make one model in every format that is compared: folders of safetensors, and GGUF files.

    python -m benchmarks.peers.make_formats DIR --quantize PROGRAM [--of FILE.gguf]

DIR holds the model as a float32 folder, `DIR/model`; or FILE.gguf is a model of Llama's kind, and
that folder is made of it, with the file as another format. PROGRAM is llama.cpp's
`llama-quantize`. What is there already is kept.
"""

import argparse
import json
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from benchmarks.peers.formats import BFLOAT16, FLOAT32, OWN, PACKED
from benchmarks.peers.gguf_file import write_gguf
from daemon.engine.loading.convert import convert
from daemon.models.gguf_index import INDEX, LINK


def _quantize(program: Path, source: Path, target: Path, kind: str) -> None:
    """One GGUF file of another."""
    command = [str(one) for one in (program.resolve(), "--allow-requantize", source, target, kind)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        target.unlink(missing_ok=True)
        raise SystemExit(f"{target} was not made:\n{done.stderr[-2000:]}")


def unpack(source: Path, folder: Path) -> None:
    """Write the float32 folder of a GGUF file; its tokenizer is the one that llmd gives it."""
    convert(source, folder)
    for name in (INDEX, LINK):
        (folder / name).unlink()
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    weights = model.state_dict()
    if model.config.tie_word_embeddings:
        del weights["lm_head.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _name_number(folder, "float32")


def write_bfloat16(source: Path, target: Path) -> None:
    """Write the folder `source` again with its numbers rounded to bfloat16, file by file."""
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.suffix == ".safetensors":
            rounded = {name: one.to(torch.bfloat16) for name, one in load_file(path).items()}
            save_file(rounded, target / path.name, metadata={"format": "pt"})
        else:
            shutil.copy(path, target)
    _name_number(target, "bfloat16")


def _name_number(folder: Path, number: str) -> None:
    """Put the kind of number that weights are stored in into the configuration."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"dtype": number}
    path.write_text(json.dumps(config, indent=2) + "\n")


def make_formats(folder: Path, program: Path, source: Path | None) -> Iterable[Path]:
    """Make what is missing in `folder`; yields each path as soon as it is whole."""
    model, whole = folder / FLOAT32.folder, folder / FLOAT32.file
    if source is not None:
        if not model.exists():
            folder.mkdir(parents=True, exist_ok=True)
            unpack(source.resolve(), model)
            yield model
        if not whole.exists():
            _quantize(program, source, whole, FLOAT32.quantised)
            (folder / OWN.file).symlink_to(source.resolve())
            yield folder / OWN.file
            yield whole
    elif not whole.exists():
        write_gguf(model, whole)
        yield whole
    if not (folder / BFLOAT16.folder).exists():
        write_bfloat16(model, folder / BFLOAT16.folder)
        yield folder / BFLOAT16.folder
    for form in (BFLOAT16, *PACKED):
        if not (folder / form.file).exists():
            _quantize(program, whole, folder / form.file, form.quantised)
            yield folder / form.file


def main() -> None:
    """Make the formats and say what was written."""
    parser = argparse.ArgumentParser(description="Make one model in every format.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--quantize", type=Path, required=True, help="llama.cpp's llama-quantize")
    parser.add_argument("--of", type=Path, help="a GGUF file that the model is made of")
    args = parser.parse_args()
    for path in make_formats(args.folder, args.quantize, args.of):
        print(f"wrote {path}", flush=True)


if __name__ == "__main__":
    main()
