"""Mutants that must not pass: a served folder that lost one feature, against the whole model."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.zoo.build import edited, write_config
from tests.zoo.variant import Variant

Tensors = dict[str, torch.Tensor]

_KEYS = re.compile(
    r"(k_proj|key_proj|kv_proj|key|c_attn|query_key_value|qkv_proj|qkv|Wqkv|att_proj)\.weight$"
)
_LAYER = re.compile(r"\.(?:layers|layer|h|blocks)\.(\d+)\.")
_EXPERT_COUNTS = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts")


class NoMutantError(Exception):
    """The mutant does not exist for this model: it has not what the mutant would take away."""


def mutate(name: str, variant: Variant, good: Path, folder: Path) -> None:
    """Write the named mutant of a variant's folder. Raises NoMutantError."""
    shutil.copytree(good, folder)
    _MUTANTS[name](variant, folder)


def _config(variant: Variant, folder: Path) -> None:
    """The variant's own change is taken back, in the configuration alone."""
    told = json.loads((folder / "config.json").read_text())
    changed = edited(told, variant.revert)
    if changed == told:
        raise NoMutantError("nothing to take back")
    write_config(folder, changed)


def _keys(_variant: Variant, folder: Path) -> None:
    """The rows of the first key projection are turned around: heads, and numbers within them."""

    def turn(tensors: Tensors) -> None:
        names = sorted(name for name in tensors if _KEYS.search(name))
        if not names:
            raise NoMutantError("no key projection by a known name")
        tensors[names[0]] = tensors[names[0]].flip(0).contiguous()

    _weights(folder, turn)


def _biases(_variant: Variant, folder: Path) -> None:
    def zero(tensors: Tensors) -> None:
        # A key's bias moves all scores of a query alike where nothing turns it: it need not count.
        names = [name for name in tensors if name.endswith("bias") and "k_proj" not in name]
        if not names:
            raise NoMutantError("no biases")
        for name in names:
            tensors[name] = torch.zeros_like(tensors[name])

    _weights(folder, zero)


def _layers(_variant: Variant, folder: Path) -> None:
    """Two layers change places."""

    def exchange(tensors: Tensors) -> None:
        before = dict(tensors)
        for name, tensor in before.items():
            found = _LAYER.search(name)
            if found is None or found[1] not in ("0", "1"):
                continue
            start, end = found.span(1)
            other = f"{name[:start]}{1 - int(found[1])}{name[end:]}"
            if other in before and before[other].shape == tensor.shape:
                tensors[name] = before[other]

    _weights(folder, exchange)


def _head(_variant: Variant, folder: Path) -> None:
    """A tied head comes apart from the embeddings, or the other way round."""
    told = json.loads((folder / "config.json").read_text())
    tied = "lm_head.weight" not in _all_tensors(folder)
    write_config(folder, edited(told, {"tie_word_embeddings": not tied}))
    if not tied:
        return

    def part(tensors: Tensors) -> None:
        names = [
            name for name in tensors if re.search(r"(embed_tokens|wte|embed_in)\.weight$", name)
        ]
        if not names:
            raise NoMutantError("no embeddings by a known name")
        tensors["lm_head.weight"] = tensors[names[0]].flip(0).contiguous()

    _weights(folder, part)


def _routing(_variant: Variant, folder: Path) -> None:
    """One expert fewer answers each token, or one more."""
    told = json.loads((folder / "config.json").read_text())
    for name in _EXPERT_COUNTS:
        if isinstance(told.get(name), int):
            write_config(folder, {**told, name: 1 if told[name] > 1 else 2})
            return
    raise NoMutantError("no experts")


def _positions(_variant: Variant, folder: Path) -> None:
    """Rotary positions turn at another speed; learned ones lie elsewhere."""
    told = json.loads((folder / "config.json").read_text())
    rope = told.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        theta = rope["rope_theta"]
        write_config(folder, {**told, "rope_parameters": {**rope, "rope_theta": 7.0 * theta}})
        return

    def turn(tensors: Tensors) -> None:
        names = [one for one in tensors if re.search(r"(wpe|position\w*)\.weight$", one)]
        if not names:
            raise NoMutantError("no positions by a known name")
        for name in names:
            tensors[name] = tensors[name].flip(0).contiguous()

    _weights(folder, turn)


_MUTANTS: dict[str, Callable[[Variant, Path], None]] = {
    "config": _config,
    "keys": _keys,
    "biases": _biases,
    "layers": _layers,
    "head": _head,
    "routing": _routing,
    "positions": _positions,
}


def _all_tensors(folder: Path) -> Tensors:
    found: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= load_file(path)
    return found


def _weights(folder: Path, change: Callable[[Tensors], Any]) -> None:
    """Change all weights of a folder; they lie in one file afterwards."""
    tensors = _all_tensors(folder)
    change(tensors)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
