"""Makes a model folder of a GGUF file: `python -m daemon.engine.convert SRC DST`.

The folder then holds all that serving needs beside the file itself, without gguf or transformers'
slow conversions: config.json, generation_config.json, tokenizer.json, tokenizer_config.json, and
the index of the file's tensors. What share is done is printed, a number a line.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from daemon.engine.gguf_speed import hurry
from daemon.engine.process import stay_offline
from daemon.models.formats import PLAIN
from daemon.models.gguf_index import INDEX, LINK, GgufIndex, link
from daemon.models.shape import ModelError
from daemon.wire.parent import die_with_parent

_RECOMMENDED = {
    # What the authors of SmolLM2-Instruct say on its page; the GGUF file has no field for it. The
    # penalty is ours: without it one answer in four repeats itself until its tokens are spent.
    "Smollm2 135M 8k Lc100K Mix1 Ep2": {
        "do_sample": True,
        "temperature": 0.2,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
    },
}
"""Default sampling for generation_config.json, by the name that a GGUF file gives its model."""

_DIGITS = {"type": "Digits", "individual_digits": True}
_DIGIT_SPLITTERS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell"})
"""Pre-tokenizers of GGUF that split every digit off first, which transformers leaves out."""


_PARTS = 5
"""Of the work, of about the same length, for the bar alone."""

Told = Callable[[float], None]
"""Told which share of the conversion is done, 0..1."""


def convert(source: Path, target: Path, told: Told = lambda share: None) -> None:
    """Write the folder `target` from the GGUF file `source`. Raises ModelError."""
    told(0.0)

    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from daemon.engine.gguf_experts import expert_widths
    from daemon.engine.gguf_rope import scaled_rope
    from daemon.engine.quantised.index import Indexer

    told(1 / _PARTS)
    folder, name = str(source.parent), source.name
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    told(2 / _PARTS)
    config: Any = AutoConfig.from_pretrained(folder, gguf_file=name)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    told(3 / _PARTS)
    indexer = Indexer(source, model)
    scaled_rope(config, indexer.reader.tensors)
    expert_widths(config, indexer.reader.tensors)
    index, computed = indexer.index()
    told(4 / _PARTS)
    target.mkdir(parents=True, exist_ok=True)
    (target / INDEX).write_bytes(msgspec.json.encode(index))
    link(target, source)
    if computed:
        save_file(computed, target / "model.safetensors", {"format": "pt"})
    config.architectures = [type(model).__name__]
    config.dtype = _computes_in(index)
    config.save_pretrained(target)
    GenerationConfig.from_model_config(config).save_pretrained(target)
    tokenizer.save_pretrained(target)
    _keep_template(target, tokenizer.chat_template)
    says = _fields(source, "general.name", "tokenizer.ggml.pre")
    if says["tokenizer.ggml.pre"] in _DIGIT_SPLITTERS:
        _split_digits(target / "tokenizer.json")
    _recommend(target / "generation_config.json", _RECOMMENDED.get(says["general.name"], {}))
    _make_readable(target)
    told(1.0)


def _computes_in(index: GgufIndex) -> str:
    """What a GPU computes in: as most weights are stored, bfloat16 for packed ones."""
    sizes: dict[str, int] = {}
    for one in index.tensors:
        kind = PLAIN.get(one.format, "bfloat16")
        sizes[kind] = sizes.get(kind, 0) + one.size_bytes
    return max(sizes, key=lambda kind: sizes[kind], default="float32")


def _keep_template(folder: Path, template: str | None) -> None:
    """Put the chat template into tokenizer_config.json, where every reader looks for it."""
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    # How the file was found is no part of the tokenizer.
    for key in ("is_local", "local_files_only"):
        config.pop(key, None)
    if template:
        config["chat_template"] = template
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")


def _fields(source: Path, *names: str) -> dict[str, str]:
    """Fields of the GGUF file, as text; empty where it has none of the name."""
    import gguf  # as a module: what it holds may have been replaced

    reader = gguf.GGUFReader(source)
    found = {name: reader.get_field(name) for name in names}
    return {name: str(field.contents()) if field else "" for name, field in found.items()}


def _recommend(path: Path, sampling: dict[str, Any]) -> None:
    """Put default sampling into a generation_config.json, where there is some."""
    if sampling:
        config = json.loads(path.read_text()) | sampling
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _split_digits(path: Path) -> None:
    tokenizer = json.loads(path.read_text())
    rest = tokenizer["pre_tokenizer"]
    tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [_DIGITS, rest]}
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))


def _make_readable(folder: Path) -> None:
    """Let other users of the machine read the result, whatever modes the writers chose."""
    for path in folder.iterdir():
        if path.name != LINK:
            path.chmod(0o644)


def main() -> int:
    """Convert the file that the command line names; 0 when the folder is complete."""
    if len(sys.argv) != 3:
        print("usage: python -m daemon.engine.convert SRC.gguf DST_FOLDER", file=sys.stderr)
        return 2
    die_with_parent()
    stay_offline()
    os.environ["TQDM_DISABLE"] = "1"
    hurry()
    source, target = (Path(word).absolute() for word in sys.argv[1:])
    try:
        convert(source, target, lambda share: print(f"{share:.4f}", flush=True))
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
