"""Families of GPU kernels: each is tried alone, and torch's operators replace it as a whole."""

from collections.abc import Callable

NORM = "norm"
ACTIVATION = "activation"
QKV = "qkv"
WRITE = "write"
DECODE = "decode"
PREFILL = "prefill"
PRODUCTS = "products"
BLOCKS = "blocks"
EXPERTS = "experts"
DRAW = "draw"
EDIT = "edit"
PACK = "pack"
MOVE = "move"
STATES = "states"
GRAPHS = "graphs"

FAMILIES = {
    NORM: "RMS norms",
    ACTIVATION: "the activation of a gated MLP",
    QKV: "head norms and rotation, with the write of keys and values",
    WRITE: "the write of keys and values alone",
    DECODE: "attention of single tokens, its parts and their join",
    PREFILL: "attention of prompts",
    PRODUCTS: "matrix products of few rows",
    BLOCKS: "quantised weights: their numbers, and products of few rows with them",
    EXPERTS: "products of a mixture's experts together, and what stands around them",
    DRAW: "sampling of tokens",
    EDIT: "penalties, biases and grammars' masks on logits",
    PACK: "blocks packed for the host pool",
    MOVE: "parts of blocks gathered for a transfer",
    STATES: "recurrent layers, which read and write states in their pages",
    GRAPHS: "decode steps captured as CUDA graphs",
}
"""Families of GPU kernels, in the order of their trials: graphs hold the others' kernels."""

CAPTURED = frozenset({QKV, WRITE, DECODE})
"""A captured step reads its block tables on the device, as only these kernels do."""

ByTorch = frozenset[str]
"""The families that torch computes."""

NONE: ByTorch = frozenset()
ALL: ByTorch = frozenset(FAMILIES)

Fallen = Callable[[str, str], None]
"""Called with a family that torch computes from now on, and why."""


def unheard(_family: str, _why: str) -> None:
    """A listener that ignores which families torch computes."""
