"""Runs a compiled kernel on torch's own OpenMP threads.

A second pool of threads would fight torch's for the same cores: OpenMP's threads spin for a while
after each operation, just when ours would start. So kernels go through the `GOMP_parallel` of the
very libgomp that torch has loaded. A kernel is a C function `void(int64 *arguments)`; each thread
of the team calls it, and takes its share of the work by counting up `arguments[0]`.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

MAX_ARGUMENTS = 24

_Arguments = ctypes.c_int64 * MAX_ARGUMENTS
_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@intrinsic
def float_pointer(_typing: Any, _address: Any) -> Any:
    """An integer address as a pointer to float32, for numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), generate


@intrinsic
def int32_pointer(_typing: Any, _address: Any) -> Any:
    """An integer address as a pointer to int32, for numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.IntType(32).as_pointer())

    return types.CPointer(types.int32)(types.int64), generate


@intrinsic
def power_of_two(_typing: Any, _exponent: Any) -> Any:
    """2 ** exponent as float32, of an int32 from -126 to 127, for numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        integer = ir.IntType(32)
        biased = builder.add(values[0], ir.Constant(integer, 127))
        bits = builder.shl(biased, ir.Constant(integer, 23))
        return builder.bitcast(bits, ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def next_item(_typing: Any, _arguments: Any) -> Any:
    """Atomically count up the first of a kernel's arguments; returns it as it was before."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        return builder.atomic_rmw("add", values[0], one, "monotonic")

    return types.int64(types.CPointer(types.int64)), generate


def _libgomp() -> ctypes.CDLL:
    """The libgomp that torch loaded; OSError where torch came with another OpenMP."""
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    beside = sorted((Path(torch.__file__).parent.parent / "torch.libs").glob("libgomp*.so*"))
    for path in (*bundled, *beside):
        return ctypes.CDLL(str(path))
    raise OSError("torch carries no libgomp")


class Team:
    """torch's threads, for kernels."""

    def __init__(self) -> None:
        # GOMP_parallel(function, data, number of threads (0: as OpenMP says), flags)
        self._parallel: Callable[..., None] = _libgomp().GOMP_parallel
        self._parallel.argtypes = (  # type: ignore[attr-defined]
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_uint,
            ctypes.c_uint,
        )
        self._parallel.restype = None  # type: ignore[attr-defined]

    def run(self, kernel: Any, *arguments: int) -> None:
        """Run a kernel (a numba cfunc) on all threads; returns when its work is done."""
        self._parallel(kernel.address, _Arguments(0, *arguments), 0, 0)


def run_here(kernel: Any, *arguments: int) -> None:
    """Run a kernel on the calling thread alone, where waking others would cost more."""
    _KERNEL(kernel.address)(_Arguments(0, *arguments))
