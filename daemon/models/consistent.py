"""Whether the files of a model folder belong together: shape, weights and tokenizer of one model.

Without this check a mismatch would show late: as a worker out of memory or as nonsense in answers.
"""

import re
from collections.abc import Collection
from pathlib import Path

from daemon.memory.layout import NO_KEYS
from daemon.memory.sizing import DTYPE_BYTES, heads_of
from daemon.memory.state_layout import state_bytes
from daemon.models.added_tokens import AddedToken
from daemon.models.resolved import read_shape
from daemon.models.resolving import Ask, ask_child, resolve
from daemon.models.shape import ModelError, ModelShape
from daemon.models.supported import check_folder
from daemon.models.vocabulary import read_tokenizer
from daemon.models.weights import check_files, predicting_weights, weight_shapes

_LAYER = re.compile(r"\.(?:layers|layer|blocks|h)\.(\d+)\.")
_MOST = {
    "num_layers": 10_000,
    "num_heads": 10_000,
    "num_kv_heads": 10_000,
    "head_dim": 100_000,
    "hidden_size": 1_000_000,
    "vocab_size": 10_000_000,
    "context_len": 1 << 30,
}
_OF_ATTENTION = ("num_heads", "num_kv_heads", "head_dim")
_MOST_STATE_BYTES = 1 << 32


def checked_shape(folder: Path, cache: Path, ask: Ask = ask_child) -> ModelShape:
    """The shape of a model that can be served and whose files fit each other. Raises ModelError.

    `cache` holds the resolved configuration; `ask` resolves it where the cache lacks it.
    """
    try:
        resolved = resolve(folder, cache, ask)
        check_folder(folder, resolved)
        shape = read_shape(folder, resolved)
        check_consistent(folder, shape, resolved.fields.get("num_layers"))
    except (TypeError, KeyError, AttributeError, OverflowError, UnicodeError) as error:
        raise ModelError(f"{folder}: a value of the wrong kind in its files: {error}") from error
    return shape


def check_consistent(folder: Path, shape: ModelShape, num_blocks: object = None) -> None:
    """Raise ModelError, naming the file, unless shape, weights and tokenizer fit each other.

    `num_blocks`: of weights, where the configuration says that a block has several layers.
    """
    _check_shape(folder / "config.json", shape)
    _check_weights(folder, shape, num_blocks)
    _check_tokenizer(folder, shape.vocab_size)


def _check_shape(file: Path, shape: ModelShape) -> None:
    attends = not shape.layer_states or shape.num_kv_heads > 0
    for name, most in _MOST.items():
        value, least = getattr(shape, name), int(attends or name not in _OF_ATTENTION)
        if not isinstance(value, int) or not least <= value <= most:
            raise ModelError(f"{file}: {name} must be in {least}..{most}, got {value!r}")
    size_bytes = state_bytes(shape.layer_states, DTYPE_BYTES["float32"])
    if size_bytes > _MOST_STATE_BYTES:
        raise ModelError(f"{file}: a sequence's states would take {size_bytes} bytes")
    for num_kv_heads in {heads.num_kv_heads for heads in heads_of(shape) if heads != NO_KEYS}:
        if num_kv_heads < 1 or shape.num_heads % num_kv_heads:
            heads = f"{shape.num_heads} heads cannot share {num_kv_heads} of keys"
            raise ModelError(f"{file}: {heads}")


def _check_weights(folder: Path, shape: ModelShape, num_blocks: object) -> None:
    check_files(folder)
    predicting_weights(folder)
    shapes = weight_shapes(folder)
    layers = {int(found[1]) for name in shapes if (found := _LAYER.search(name))}
    if layers and len(layers) not in (shape.num_layers, num_blocks):
        said = f"config.json says {shape.num_layers} layers, the weights have {len(layers)}"
        raise ModelError(f"{folder}: {said}")
    _check_side(folder, shapes.values(), "hidden_size", shape.hidden_size)
    _check_side(folder, shapes.values(), "vocab_size", shape.vocab_size)


def _check_side(folder: Path, shapes: Collection[tuple[int, ...]], name: str, size: int) -> None:
    if not any(size in sides for sides in shapes):
        raise ModelError(f"{folder}: config.json says {name} {size}, and no weight has such a side")


def _check_tokenizer(folder: Path, vocab_size: int) -> None:
    file, tokenizer = folder / "tokenizer.json", read_tokenizer(folder)
    if tokenizer.highest >= vocab_size:
        raise ModelError(
            f"{file} is another model's: it has a token {tokenizer.highest}, "
            f"and this model's vocabulary has {vocab_size}"
        )
    around = tokenizer.around()
    for token in tokenizer.beyond(vocab_size):
        if token.id in around:
            raise ModelError(f"{file} puts {_beyond(token, vocab_size)} around every prompt")


def _beyond(token: AddedToken, vocab_size: int) -> str:
    return f"the token {token.content!r} ({token.id}), beyond the vocabulary of {vocab_size},"
