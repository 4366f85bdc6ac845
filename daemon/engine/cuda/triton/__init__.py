"""Triton kernels over the paged KV cache; imported when first used, since a CPU needs none.

Shapes, everywhere: query [T, heads, head_dim]; kv_cache [block, layer, 2, block_size, kv_head,
head_dim] addressed by strides (head_dim contiguous), keys at 0 and values at 1; block_tables
[B, max_blocks] int32, whose entries past a row's tokens are never read; kv_scales float32 [block,
layer, 2, block_size, kv_head], of an 8-bit cache, by strides. `reference` holds the same functions
in plain torch, `daemon.engine.kv.host_int8` those that pack blocks; they define what is right.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daemon.engine.cuda.triton.activation import gelu_mul, silu_mul
    from daemon.engine.cuda.triton.cache import write_kv
    from daemon.engine.cuda.triton.convolution import convolve
    from daemon.engine.cuda.triton.decode import paged_decode_attention
    from daemon.engine.cuda.triton.delta import delta_rule
    from daemon.engine.cuda.triton.latent import paged_row_attention
    from daemon.engine.cuda.triton.norm import add_norm
    from daemon.engine.cuda.triton.packing import pack_blocks, unpack_blocks
    from daemon.engine.cuda.triton.prefill import paged_prefill_attention
    from daemon.engine.cuda.triton.prepare import DecodeRows, prepare_decode
    from daemon.engine.cuda.triton.qkv import place
    from daemon.engine.cuda.triton.scans import channels_at_once, chunk_scan, selective_scan
    from daemon.engine.cuda.triton.state_rows import DeviceStateRows

__all__ = [
    "DecodeRows",
    "DeviceStateRows",
    "add_norm",
    "channels_at_once",
    "chunk_scan",
    "convolve",
    "delta_rule",
    "gelu_mul",
    "pack_blocks",
    "paged_decode_attention",
    "paged_prefill_attention",
    "paged_row_attention",
    "place",
    "prepare_decode",
    "selective_scan",
    "silu_mul",
    "unpack_blocks",
    "write_kv",
]

_MODULES = {
    "DecodeRows": "daemon.engine.cuda.triton.prepare",
    "DeviceStateRows": "daemon.engine.cuda.triton.state_rows",
    "add_norm": "daemon.engine.cuda.triton.norm",
    "channels_at_once": "daemon.engine.cuda.triton.scans",
    "chunk_scan": "daemon.engine.cuda.triton.scans",
    "convolve": "daemon.engine.cuda.triton.convolution",
    "delta_rule": "daemon.engine.cuda.triton.delta",
    "gelu_mul": "daemon.engine.cuda.triton.activation",
    "pack_blocks": "daemon.engine.cuda.triton.packing",
    "paged_decode_attention": "daemon.engine.cuda.triton.decode",
    "paged_prefill_attention": "daemon.engine.cuda.triton.prefill",
    "paged_row_attention": "daemon.engine.cuda.triton.latent",
    "prepare_decode": "daemon.engine.cuda.triton.prepare",
    "place": "daemon.engine.cuda.triton.qkv",
    "selective_scan": "daemon.engine.cuda.triton.scans",
    "silu_mul": "daemon.engine.cuda.triton.activation",
    "unpack_blocks": "daemon.engine.cuda.triton.packing",
    "write_kv": "daemon.engine.cuda.triton.cache",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
