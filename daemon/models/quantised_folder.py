"""The folder with weights in blocks that llmd makes of a folder without, once, and keeps.

Its name carries a hash of all that it is made of. A second start, another instance or a copy of the
model elsewhere find it there.
"""

import hashlib
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from daemon.models.containers import text_fields
from daemon.models.content import content_digest
from daemon.models.embedded import gguf_file, model_folder
from daemon.models.expert_shape import count_experts, stored_in
from daemon.models.gguf_index import GgufIndex, read_index
from daemon.models.kept_folder import Tell, make_once, run_maker
from daemon.models.quantisation import read_quantisation
from daemon.models.shape import ModelError, ModelShape, read_json
from daemon.models.weights import SAFETENSORS_INDEX, count_indexed, weight_files

log = logging.getLogger(__name__)

QUANTISER_VERSION = 5
"""Part of every folder's name: raise it when what is made changes."""
NONE = "none"
_MODULE = "daemon.engine.loading.requantise"
_TEXTS = (".json", ".jinja", ".txt", ".model", ".tiktoken")
_LIMIT_S = 120.0

Make = Callable[[str, Path, Path, Tell], None]
"""Makes the folder of a kind from the first path in the second."""


def plain_folder(path: str, kind: str, cache: Path, tell: Tell = lambda share: None) -> Path:
    """The folder of a configured model as it comes, of which one of `kind` may be made.

    As `daemon.models.embedded.model_folder`; what cannot be quantised again is refused before it is
    converted. Raises ModelError.
    """
    if kind == NONE:
        return model_folder(path, cache, tell=tell)
    if not path or gguf_file(Path(path).expanduser()):
        name = path or "the embedded model"
        raise ModelError(f"{name} is a GGUF file, which model.quantize = {kind!r} is not for")
    folder = model_folder(path, cache)
    refuse_quantised(folder, kind)
    return folder


def refuse_quantised(folder: Path, kind: str) -> None:
    """Raise ModelError for a folder whose weights are quantised already."""
    found = read_quantisation(folder, text_fields(read_json(folder / "config.json")))
    if found is not None or read_index(folder) is not None:
        by = f" by {found.method}" if found else ""
        raise ModelError(
            f"{folder}: its weights are quantized{by} already: leave model.quantize = {kind!r} out"
        )


def quantised_folder(source: Path, kind: str, cache: Path) -> Path:
    """The quantised copy of a folder, below the cache folder; it need not exist yet.

    The content decides. Reads all of a file where it is seen for the first time. Raises OSError and
    ModelError.
    """
    digest = hashlib.blake2b(digest_size=8)
    for path in (*weight_files(source), *beside_weights(source)):
        digest.update(f"{path.name}:{content_digest(path.absolute(), cache)};".encode())
    named = f"{digest.hexdigest()}-{kind}-q{QUANTISER_VERSION}"
    folder = cache / "models"
    there = sorted(folder.glob(f"[!.]*-{named}"))
    return there[0] if there else folder / f"{source.name}-{named}"


def ensure_quantised(
    source: Path,
    kind: str,
    cache: Path,
    tell: Tell = lambda share: None,
    make: Make | None = None,
) -> Path:
    """The folder of `kind`, made if no start before this one did; of "none" it is `source`.

    Blocks as long as that takes. Raises ModelError.
    """
    if kind == NONE:
        return source
    refuse_quantised(source, kind)
    try:
        target = quantised_folder(source, kind, cache.absolute())
        make_once(target, lambda partial: _make(source, partial, kind, tell, make or run_quantiser))
    except OSError as error:
        raise ModelError(
            f"{source} cannot be quantised into {cache / 'models'}: {error.strerror or error}; "
            "daemon.cache may name another folder"
        ) from None
    return target


def quantised_shape(shape: ModelShape, index: GgufIndex) -> ModelShape:
    """The shape of a model whose weights become what an index says."""
    counted = count_indexed(index)
    return msgspec.structs.replace(
        shape,
        packed_params=counted.packed_params,
        packed_bytes=counted.packed_bytes,
        experts=count_experts(stored_in(index), shape.experts.chosen if shape.experts else 1),
    )


def planned(source: Path, kind: str) -> GgufIndex:
    """The plan of quantising a folder's weights; blocks for some seconds. Raises ModelError."""
    refuse_quantised(source, kind)
    command = [sys.executable, "-m", _MODULE, kind, str(source)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False
        )
        return msgspec.json.decode(done.stdout, type=GgufIndex)
    except subprocess.TimeoutExpired:
        raise ModelError(f"{source}: its layers were not found within {_LIMIT_S:g} s") from None
    except (msgspec.MsgspecError, ValueError):
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ModelError(last[0] if last else f"{source}: exit code {done.returncode}") from None


def run_quantiser(kind: str, source: Path, target: Path, tell: Tell) -> None:
    """Make a folder in a process of its own. Raises ModelError."""
    if fault := run_maker([_MODULE, kind, str(source), str(target)], tell):
        raise ModelError(f"{source} could not be quantised into {target.parent}: {fault}")


def beside_weights(folder: Path) -> Iterator[Path]:
    """Files of a folder beside its weights: configuration, tokenizer, template."""
    for path in sorted(folder.iterdir()):
        if path.suffix in _TEXTS and path.name != SAFETENSORS_INDEX and path.is_file():
            yield path


def _make(source: Path, partial: Path, kind: str, tell: Tell, make: Make) -> None:
    log.info("%s is quantised to %s, once, into %s", source, kind, partial.parent)
    tenths = 0

    def tell_and_log(share: float) -> None:
        nonlocal tenths
        tell(share)
        if int(10 * share) > tenths:
            tenths = int(10 * share)
            log.info("%s is quantised to %s: %d %%", source, kind, 10 * tenths)

    make(kind, source, partial, tell_and_log)
