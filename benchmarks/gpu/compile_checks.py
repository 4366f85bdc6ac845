"""Compiles the kernels for GPUs that need not be there: does it build, does it fit their memory?"""

import tempfile
from collections.abc import Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.gpu.report import Check
from daemon.engine import packing as torch_packing
from daemon.engine.kernels import cache, decode, packing, prefill
from daemon.engine.kernels.tiles import Tiling

SHARED_LIMITS_BYTES = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024}
"""What one program may use on each generation (Ampere, its workstation cards, Ada, Hopper)."""

_POINTERS = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
}
_OWN_POINTERS = {
    **dict.fromkeys(
        (
            "blocks_ptr",
            "offsets_ptr",
            "lens_ptr",
            "tables_ptr",
            "starts_ptr",
            "counts_ptr",
            "sources_ptr",
            "targets_ptr",
        ),
        "*i32",
    ),
    **dict.fromkeys(("index_ptr", "fills_ptr"), "*i64"),
    **dict.fromkeys(("partial_ptr", "weights_ptr"), "*fp32"),
    "packed_ptr": "*u8",
    "halves_ptr": "*fp16",
}
"""Of what does not have the type of the states."""
_DIVISIBLE = [["tt.divisibility", 16]]


def compile_checks(
    generations: tuple[int, ...] = (80, 86, 89, 90),
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float32),
    heads: tuple[tuple[int, int], ...] = ((64, 3), (80, 1), (128, 4), (256, 1)),
) -> Iterator[Check]:
    """Each kernel's shared memory in bytes against what a program may have; `heads` are
    (head_dim, query heads of a KV head)."""
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope():
        triton.knobs.cache.dir = folder
        for generation in generations:
            limit = SHARED_LIMITS_BYTES[generation]
            for name, used in _sizes(generation, dtypes, heads):
                yield Check(f"sm_{generation} {name}", used, limit, "bytes")


def _sizes(
    generation: int, dtypes: tuple[torch.dtype, ...], heads: tuple[tuple[int, int], ...]
) -> Iterator[tuple[str, int]]:
    for dtype in dtypes:
        for head_dim, group in heads:
            tiling = Tiling.of(head_dim, dtype)
            sizes: dict[str, Any] = {
                "GROUP": group,
                "BLOCK_SIZE": 16,
                "HEAD_DIM": head_dim,
                "DIM": tiling.dim,
                "KEYS": tiling.keys,
                "PRECISION": tiling.precision,
                "PRODUCT": tiling.product,
            }
            name = f"{head_dim} x {group} {str(dtype).removeprefix('torch.')}"
            split = sizes | {"ROWS": 16}
            yield f"decode  {name}", _shared(decode._decode_split, dtype, split, generation, 4)
            rows = tiling.rows
            chunk = sizes | {"ROWS": rows, "TOKENS": rows // group}
            warps = prefill.num_warps(rows, tiling)
            yield f"prefill {name}", _shared(prefill._prefill, dtype, chunk, generation, warps)
        name = str(dtype).removeprefix("torch.")
        sizes = {"SPLITS": 64, "HEAD_DIM": 80, "DIM": 128}
        yield f"reduce {name}", _shared(decode._reduce_splits, dtype, sizes, generation, 4)
        sizes = {"KV_HEADS": 8, "HEAD_DIM": 128, "CELLS": 1024}
        yield f"write_kv {name}", _shared(cache._write_kv, dtype, sizes, generation, 4)
        sizes = {"CELLS": 4096}
        yield f"copy_blocks {name}", _shared(cache._copy_blocks, dtype, sizes, generation, 4)
        sizes = {"BLOCK_SIZE": 16, "TOKENS": 16, "CELLS": 512}
        yield f"unpack_blocks {name}", _shared(packing._unpack, dtype, sizes, generation, 4)
        sizes |= {"STEPS": float(torch_packing.NUM_STEPS), "LARGEST": torch_packing.LARGEST}
        sizes |= {"WIDEN": torch_packing.WIDEN, "TINY": torch_packing.TINY}
        yield f"pack_blocks {name}", _shared(packing._pack, dtype, sizes, generation, 4)


def _shared(
    kernel: Any, dtype: torch.dtype, sizes: dict[str, Any], generation: int, warps: int
) -> int:
    """Compile down to machine code; the bytes of shared memory that a program takes."""
    signature, attributes = {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in sizes:
            signature[name] = "constexpr"
        elif name.endswith("_ptr"):
            signature[name] = _pointer(name, dtype)
            attributes[(index,)] = _DIVISIBLE
        elif name == "scale_log2":
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if "stride" in name and name != "table_stride":
                attributes[(index,)] = _DIVISIBLE
    source = ASTSource(kernel, signature, constexprs=sizes, attrs=attributes)
    target = GPUTarget("cuda", generation, 32)
    options = {"num_warps": warps, "num_stages": 2}
    return int(triton.compile(source, target=target, options=options).metadata.shared)


def _pointer(name: str, dtype: torch.dtype) -> str:
    return _OWN_POINTERS.get(name, _POINTERS[dtype])
