"""Converts a GGUF file to a folder of safetensors: `python -m daemon.engine.convert SRC DST`.

The folder then holds all that serving needs without gguf or transformers' slow conversions:
float32 weights, config.json, generation_config.json, tokenizer.json, tokenizer_config.json.
What share is done is printed, a number a line.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daemon.engine.gguf_speed import hurry
from daemon.engine.process import stay_offline
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


_READ_S = 6.0
_COMPUTE_S_PER_BYTE, _WRITE_S_PER_BYTE = 1.2e-8, 0.8e-8
"""What each part of a conversion takes about, by bytes of the file: for the bar alone."""

Told = Callable[[float], None]
"""Told which share of the conversion is done, 0..1."""


def convert(source: Path, target: Path, told: Told = lambda share: None) -> None:
    """Write the folder `target` from the GGUF file `source`."""
    size_bytes = source.stat().st_size
    whole_s = _READ_S + size_bytes * (_COMPUTE_S_PER_BYTE + _WRITE_S_PER_BYTE)
    told(0.0)

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    hurry(lambda taken_bytes: told((_READ_S + taken_bytes * _COMPUTE_S_PER_BYTE) / whole_s))
    told(_READ_S / 2 / whole_s)
    folder, name = str(source.parent), source.name
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder,
        gguf_file=name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    told((_READ_S + size_bytes * _COMPUTE_S_PER_BYTE) / whole_s)
    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    _keep_template(target, tokenizer.chat_template)
    says = _fields(source, "general.name", "tokenizer.ggml.pre")
    if says["tokenizer.ggml.pre"] in _DIGIT_SPLITTERS:
        _split_digits(target / "tokenizer.json")
    _recommend(target / "generation_config.json", _RECOMMENDED.get(says["general.name"], {}))
    _make_readable(target)
    told(1.0)


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
        path.chmod(0o644)


def main() -> int:
    """Convert the file that the command line names; 0 when the folder is complete."""
    if len(sys.argv) != 3:
        print("usage: python -m daemon.engine.convert SRC.gguf DST_FOLDER", file=sys.stderr)
        return 2
    die_with_parent()
    stay_offline()
    os.environ["TQDM_DISABLE"] = "1"
    convert(
        Path(sys.argv[1]).absolute(),
        Path(sys.argv[2]).absolute(),
        lambda share: print(f"{share:.4f}", flush=True),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
