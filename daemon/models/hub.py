"""Models by their name on the Hugging Face Hub, found in the cache that its own tools fill.

Nothing is downloaded: where a model is missing or incomplete, the command that gets it is said.
"""

import contextlib
import re
import shlex
from pathlib import Path

from daemon.models.shape import ModelError
from daemon.models.weights import SAFETENSORS_INDEX, weight_files

_NAME = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w][\w./-]*))?", re.ASCII)
_PATTERNS = ("model*.safetensors", "*.json", "*.jinja")
"""All that is read of a model: its weights, its configuration, its tokenizer and chat template."""
_FIRST_FILES = ("config.json", "tokenizer.json", SAFETENSORS_INDEX, "model.safetensors")
"""One of them is there wherever a download has got anywhere."""
_MOST_NAMED = 4


def hub_name(path: str) -> str:
    """`org/name` where a configured model is of this shape, and no folder; else nothing."""
    found = _NAME.fullmatch(path)
    is_name = found is not None and not path.endswith(".gguf") and not Path(path).exists()
    return found[1] if found is not None and is_name else ""


def hub_folder(path: str) -> Path:
    """The folder of the model `org/name` or `org/name@revision` in the cache. Raises ModelError."""
    # Here: it takes a tenth of a second, and most starts need none of it.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.constants import HF_HUB_CACHE

    name, _, revision = path.partition("@")
    found: list[str] = []
    with contextlib.suppress(ValueError):  # of a name that the Hub could not have
        for file in _FIRST_FILES:
            kept = try_to_load_from_cache(name, file, HF_HUB_CACHE, revision or None)
            found += [kept] if isinstance(kept, str) else []
    command = _command(name, revision, HF_HUB_CACHE)
    if not found:
        raise ModelError(
            f"{path} is no folder here and is not in Hugging Face's cache {HF_HUB_CACHE}; "
            f"this downloads it: {command}"
        )
    folder = Path(found[0]).parent
    if missing := _missing(folder):
        names = ", ".join(missing[:_MOST_NAMED])
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        raise ModelError(
            f"{path} is incomplete in Hugging Face's cache {HF_HUB_CACHE}: it lacks {names}{more} "
            f"(a model that lacks it on the Hub, too, cannot be served); "
            f"this completes it: {command}"
        )
    return folder


def _command(name: str, revision: str, cache: str) -> str:
    """For any user's shell: the cache is named, since a service's is not that of its operator."""
    parts = ["hf", "download", name]
    if revision:
        parts += ["--revision", revision]
    for pattern in _PATTERNS:
        parts += ["--include", pattern]
    return shlex.join([*parts, "--cache-dir", cache])


def _missing(folder: Path) -> list[str]:
    """The files of a snapshot that are read and are not there; a link to nothing is none."""
    needed = [folder / "config.json", folder / "tokenizer.json", *_weights(folder)]
    return [file.name for file in needed if not file.exists()]


def _weights(folder: Path) -> list[Path]:
    """Files of the weights, as far as the snapshot tells; unsupported kinds are refused later."""
    shards = sorted(folder.glob("model-*.safetensors"))
    index = folder / SAFETENSORS_INDEX
    if shards and not index.exists():
        return [index]
    pickled = any(folder.glob("*.bin")) and not shards and not index.exists()
    return [] if pickled else weight_files(folder)
