"""Runs a compiled kernel on torch's own OpenMP threads.

A second pool of threads would fight torch's for the same cores: OpenMP's threads spin for a while
after each operation, just when ours would start. So kernels go through the `GOMP_parallel` of the
very libgomp that torch has loaded.

A program is a table of calls, one row each. Threads take a call's items one by one, and go on to
the next call when all of its items are done, by any thread: a thread that comes late, or loses its
core for a while, delays only its current item.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

Call = tuple[int, ...]
"""Number of items, opcode, and the arguments that `kernels` says."""

CALL_WIDTH = 24
"""Columns of a program: items taken, items done, then a `Call`."""

HERE_ELEMENTS = 16 * 1024
"""Most elements of a small call for which the calling thread is faster alone."""

_Row = ctypes.c_int64 * CALL_WIDTH
_Program = ctypes.c_int64 * 3
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@intrinsic
def float_pointer(_typing: Any, _address: Any) -> Any:
    """An integer address as a pointer to float32, for numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.FloatType().as_pointer())

    return types.CPointer(types.float32)(types.int64), generate


@intrinsic
def double_pointer(_typing: Any, _address: Any) -> Any:
    """An integer address as a pointer to float64, for numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.DoubleType().as_pointer())

    return types.CPointer(types.float64)(types.int64), generate


@intrinsic
def int32_pointer(_typing: Any, _address: Any) -> Any:
    """An integer address as a pointer to int32, for numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.IntType(32).as_pointer())

    return types.CPointer(types.int32)(types.int64), generate


@intrinsic
def int8_pointer(_typing: Any, _address: Any) -> Any:
    """An integer address as a pointer to int8, for numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.IntType(8).as_pointer())

    return types.CPointer(types.int8)(types.int64), generate


@intrinsic
def float_of_bits(_typing: Any, _bits: Any) -> Any:
    """The float32 that an int32 is the bits of, for numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def bits_of_float(_typing: Any, _value: Any) -> Any:
    """The bits of a float32 as an int32, for numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.bitcast(values[0], ir.IntType(32))

    return types.int32(types.float32), generate


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
def count_up(_typing: Any, _counter: Any, _number: Any) -> Any:
    """Atomically add a number to an int64; returns it as it was before. For numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.atomic_rmw("add", values[0], values[1], "acq_rel")

    return types.int64(types.CPointer(types.int64), types.int64), generate


@intrinsic
def prefetch(_typing: Any, _address: Any) -> Any:
    """Prefetch the memory at an integer address. For numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        integer, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        name = "llvm.prefetch.p0"
        kind = ir.FunctionType(ir.VoidType(), [pointer, integer, integer, integer])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        place = builder.inttoptr(values[0], pointer)
        builder.call(function, [place, *(ir.Constant(integer, n) for n in (0, 2, 1))])
        return _context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def read_now(_typing: Any, _counter: Any) -> Any:
    """An int64 that other threads count up, as it is now. For numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.load_atomic(values[0], "acquire", 8)

    return types.int64(types.CPointer(types.int64)), generate


@intrinsic
def int64_pointer(_typing: Any, _address: Any) -> Any:
    """An integer address as a pointer to int64, for numba code."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], ir.IntType(64).as_pointer())

    return types.CPointer(types.int64)(types.int64), generate


@intrinsic
def call_item(_typing: Any, _function: Any, _arguments: Any, _item: Any) -> Any:
    """Call one item of a kernel at an integer address. For numba code."""

    def generate(context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [values[1].type, ir.IntType(64)])
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
        return context.get_dummy_value()

    arguments = types.int64, types.CPointer(types.int64), types.int64
    return types.void(*arguments), generate


def table_of(calls: Sequence[Call]) -> npt.NDArray[np.int64]:
    """The program [calls, CALL_WIDTH] of some calls."""
    table = np.zeros((len(calls), CALL_WIDTH), np.int64)
    for row, call in zip(table, calls, strict=True):
        row[2 : 2 + len(call)] = call
    return table


def _libgomp() -> ctypes.CDLL:
    """The libgomp that torch loaded; OSError where torch came with another OpenMP."""
    bundled = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    beside = sorted((Path(torch.__file__).parent.parent / "torch.libs").glob("libgomp*.so*"))
    for path in (*bundled, *beside):
        return ctypes.CDLL(str(path))
    raise OSError("torch carries no libgomp")


class Team:
    """torch's threads, for programs; `entry` is the compiled `kernels.run_program`."""

    def __init__(self, entry: Any) -> None:
        # GOMP_parallel(function, data, number of threads (0: as OpenMP says), flags)
        self._parallel: Any = _libgomp().GOMP_parallel
        self._parallel.argtypes = (
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_uint,
            ctypes.c_uint,
        )
        self._parallel.restype = None
        self._entry = entry.address
        self._call_here = _ENTRY(entry.address)

    def run(self, call: Call) -> None:
        """Run one call on all threads; returns when its work is done."""
        row = _Row(0, 0, *call)
        self._run(ctypes.addressof(row), 1)

    def run_here(self, call: Call) -> None:
        """Run one call on this thread alone, where waking others would cost more."""
        row = _Row(0, 0, *call)
        self._call_here(_Program(ctypes.addressof(row), 1, 1))

    def run_program(self, table: npt.NDArray[np.int64]) -> None:
        """Run calls after each other; `table` [calls, CALL_WIDTH] has zeros in front of each."""
        table[:, :2] = 0
        self._run(table.ctypes.data, len(table))

    def run_calls(self, calls: Sequence[Call]) -> None:
        """Run a few calls after each other, once."""
        rows = (_Row * len(calls))()
        for row, call in zip(rows, calls, strict=True):
            row[2 : 2 + len(call)] = call
        self._run(ctypes.addressof(rows), len(calls))

    def _run(self, address: int, num_calls: int) -> None:
        program = _Program(address, num_calls, torch.get_num_threads())
        self._parallel(self._entry, program, 0, 0)
