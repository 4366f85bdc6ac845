"""A mixture's experts, by the names and sizes of what a folder stores."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from daemon.memory.experts import ExpertShape
from daemon.models.gguf_index import GgufIndex, read_index
from daemon.models.quantisation import read_quantisation
from daemon.models.quantised_layers import tensors_aside
from daemon.models.weights import folder_layers, weight_headers

_OF_AN_EXPERT = re.compile(
    r"(?:^|\.)layers\.(\d+)\..*\bexperts\.(?:(\d+)\.\w+|\w+\.(\d+))(\.weight)?$"
)
"""A tensor of one expert: its layer, and its number in either place."""
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
_MATRIX = 2


class StoredTensor(NamedTuple):
    """A tensor, or a matrix of one, as it will be held."""

    name: str
    num_params: int
    packed_bytes: int  # 0: it is plain


def experts_of(folder: Path, fields: Mapping[str, Any]) -> ExpertShape | None:
    """A folder's experts; None where it has none of their own matrices. Raises ModelError."""
    index = read_index(folder)
    found = list(stored_in(index)) if index is not None else []
    headers = weight_headers(folder)
    if any("experts" in name for name in headers):
        layers = folder_layers(folder, read_quantisation(folder, dict(fields)))
        found += [
            StoredTensor(name, it.rows * it.columns, it.size_bytes) for name, it in layers.items()
        ]
        aside = tensors_aside(layers, headers)
        found += [
            StoredTensor(name, math.prod(it.shape), 0)
            for name, it in headers.items()
            if name not in aside and len(it.shape) == _MATRIX
        ]
    return count_experts(found, chosen_of(fields))


def stored_in(index: GgufIndex) -> Iterator[StoredTensor]:
    """The tensors of a file of blocks."""
    for tensor in index.tensors:
        size_bytes = tensor.size_bytes if tensor.packed else 0
        yield StoredTensor(tensor.name, math.prod(tensor.shape), size_bytes)


def chosen_of(fields: Mapping[str, Any]) -> int:
    """Experts that a token is sent to, by its configuration; 1 where none of its names is known."""
    values = (fields.get(name) for name in _CHOSEN)
    return next((value for value in values if isinstance(value, int) and value > 0), 1)


def count_experts(stored: Iterable[StoredTensor], chosen: int) -> ExpertShape | None:
    """The experts among some tensors; None where there are none."""
    found = [(match, it) for it in stored if (match := _OF_AN_EXPERT.search(it.name))]
    if not found:
        return None
    packed = [it for _, it in found if it.packed_bytes]
    return ExpertShape(
        num_layers=len({match[1] for match, _ in found}),
        count=1 + max(int(match[2] or match[3]) for match, _ in found),
        chosen=chosen,
        num_params=sum(it.num_params for _, it in found),
        packed_params=sum(it.num_params for it in packed),
        packed_bytes=sum(it.packed_bytes for it in packed),
    )
