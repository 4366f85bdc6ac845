"""Which of a model's tensors become blocks of which format, and where in a file each lies.

Rows are cut into groups, each with a scale and a zero of its own: `int4`, `int8` or `fp8` with
groups of 128 where rows are whole ones, else of 64 or 32. What has no whole groups, and all that
multiplies no states (norms, biases, positions), stays as it is stored; so do weights that are
unpacked when they are loaded.

The embedding, the head and what makes values take 8-bit integers in every kind. A head's errors
reach the logits straight, and in 4 bits they are the largest of all layers'; in 8 bits both ends
cost half of what they do in two bytes, and no text changes by them. Values are the part of
attention that nothing evens out, and with shared heads a small one.
"""

import re
from collections.abc import Collection, Mapping

from daemon.models.formats import FORMATS, PLAIN, group_size
from daemon.models.gguf_index import OWN_FILE, GgufIndex, IndexedTensor
from daemon.models.quantised_layers import TensorHeader

GROUP = 128
"""Numbers of a row that share a scale, where rows are whole groups."""
WIDE = "int8"
"""The format of the embedding, the head and layers of values."""
UNPACKED = re.compile(r"\.kv_b_proj\.weight$")
"""Weights that are unpacked when they are loaded, whatever their file holds, since they are
multiplied by their rows too (`daemon.engine.layers.latent`)."""
VALUES = ".v_proj"
"""Suffix of names of layers that make values."""
_ALIGNMENT_BYTES = 64


def planned_index(
    headers: Mapping[str, TensorHeader],
    linear: Collection[str],
    wide: Collection[str],
    kind: str,
) -> GgufIndex:
    """The index of a file with all tensors of `headers` that a file of blocks can hold.

    `linear`: names of linear layers' weights, which become `kind`; `wide`: names of the weights
    that take 8 bits.
    """
    tensors, start = list[IndexedTensor](), 0
    for name, header in headers.items():
        if header.dtype not in PLAIN or not header.shape or 0 in header.shape:
            continue
        becomes = WIDE if name in wide else kind if name in linear else ""
        becomes = "" if UNPACKED.search(name) else becomes
        form = _block_format(becomes, header.shape) or header.dtype
        tensor = IndexedTensor(name, form, header.shape, start)
        tensors.append(tensor)
        start += -(-tensor.size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return GgufIndex(start, len(tensors) < len(headers), tuple(tensors), OWN_FILE)


def is_quantised(tensor: IndexedTensor) -> bool:
    """Whether a plan brings a tensor into blocks."""
    return FORMATS[tensor.format].block_len > 1


def _block_format(kind: str, shape: tuple[int, ...]) -> str:
    """The format for a weight of a shape; empty where it stays as it is."""
    if not kind or len(shape) != 2:
        return ""
    try:
        return f"{kind}/{group_size(shape[1], GROUP)}"
    except ValueError:
        return ""
