"""The self-test's child process, with a kernel of most families at fault, each in another way."""

import os
import signal
import sys
import time
from typing import Any

import triton
import triton.language as tl

from daemon.engine.cuda.triton import (
    activation,
    blocks,
    cache,
    decode,
    expert_products,
    norm,
    prefill,
    qkv,
    sample,
)
from daemon.engine.verify.kernels import child
from tests.gpu.patched_once import patch_once


@triton.jit
def _does_not_compile(states_ptr):
    tl.static_assert(states_ptr is None, "no such card")


class _NotCompiled:
    """In a kernel's place: another one, of the same arguments, that no compiler takes."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda states, *_, **__: _does_not_compile[grid](states)


def _raises(*_: Any, **__: Any) -> None:
    raise RuntimeError("CUDA error: an illegal instruction was encountered")


def _hangs(*_: Any, **__: Any) -> None:
    time.sleep(1000)


def _faults(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _aborts(*_: Any, **__: Any) -> None:
    os.abort()


def _wrong_values(place: Any) -> Any:
    def placed(projected: Any, *rest: Any) -> None:
        place(projected, *rest)
        projected *= 1.5

    return placed


def _wrong_row(write: Any) -> Any:
    def written(key: Any, value: Any, pool: Any, layer: int, blocks: Any, *rest: Any) -> None:
        write(key, value, pool, layer, blocks, *rest)
        pool[blocks[-1], layer, 1, rest[0][-1], 0] *= 1.01  # the last token's value, one head

    return written


def _wrong_number(unpack: Any) -> Any:
    def unpacked(form: Any, data: Any, out: Any, rows: Any = None) -> Any:
        unpack(form, data, out, rows)
        numbers = out.view(-1)
        at = int(numbers.isfinite().nonzero()[-1])
        numbers[at] = 0.0 if numbers[at] else 1.0
        return out

    return unpacked


def _wrong_pair(product: Any) -> Any:
    def multiplied(*arguments: Any) -> Any:
        out = product(*arguments)
        out[-1] *= 1.5
        return out

    return multiplied


def main() -> int:
    patch_once()
    norm.add_norm = _raises
    activation._gate_mul = _NotCompiled()
    qkv.place = _wrong_values(qkv.place)
    cache.write_kv = _wrong_row(cache.write_kv)
    decode.paged_decode_attention = _hangs
    prefill.paged_prefill_attention = _faults
    sample.sample = _aborts
    blocks.unpack_rows = _wrong_number(blocks.unpack_rows)
    expert_products.grouped_product = _wrong_pair(expert_products.grouped_product)
    return child.main()


if __name__ == "__main__":
    sys.exit(main())
