"""GPU memory of one process in another: the driver's own calls, since torch passes pickles.

torch's tuples for the same (`UntypedStorage._share_cuda_`) count references in a named file that
outlives a killed process, and keep memory of a dead reader; a pool lives as long as its worker.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from daemon.engine.transfer.messages import Shared

_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


class IpcError(Exception):
    """The driver does not share this memory; the message says which call failed."""


class _Handle(ctypes.Structure):
    _fields_ = (("octets", ctypes.c_byte * _HANDLE_BYTES),)


def export(memory: torch.Tensor) -> Shared:
    """How another process may open this tensor's memory, as long as this process keeps it.

    Raises IpcError, for example for memory of expandable segments.
    """
    with _context(memory.device):
        base, size = _allocation(memory.data_ptr())
        handle = _Handle()
        _call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(base))
    offset = memory.data_ptr() - base
    assert offset + memory.nbytes <= size, "a tensor lies in one allocation"
    return Shared(bytes(handle), offset, memory.nbytes)


class OpenedMemory:
    """Another process's memory, reached by kernels of `device`."""

    def __init__(self, shared: Shared, device: torch.device) -> None:
        """Raises IpcError: no peer access, no such device here, this very process's memory."""
        if len(shared.handle) != _HANDLE_BYTES:
            raise IpcError("that is no handle of GPU memory")
        self._device = device
        base = ctypes.c_uint64()
        handle = _Handle.from_buffer_copy(shared.handle)
        with _context(device):
            flags = ctypes.c_uint(_LAZY_PEER_ACCESS)
            _call("cuIpcOpenMemHandle_v2", ctypes.byref(base), handle, flags)
        self._base = base.value
        self.address = self._base + shared.offset

    def close(self) -> None:
        """Close the memory; no kernel may use the address any more."""
        with _context(self._device):
            _call("cuIpcCloseMemHandle", ctypes.c_uint64(self._base))


def _allocation(address: int) -> tuple[int, int]:
    """The start of the allocation that holds an address, and its size in bytes."""
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    _call(
        "cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(address)
    )
    return base.value, size.value


@contextmanager
def _context(device: torch.device) -> Iterator[None]:
    """Make torch's context of this device the thread's current one for the calls within."""
    number = torch.cuda.current_device() if device.index is None else device.index
    gpu, context = ctypes.c_int(), ctypes.c_void_p()
    _call("cuDeviceGet", ctypes.byref(gpu), ctypes.c_int(number))
    _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), gpu)
    try:
        _call("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            _call("cuCtxPopCurrent_v2", ctypes.byref(context))
    finally:
        _call("cuDevicePrimaryCtxRelease_v2", gpu)


@cache
def _driver() -> Any:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise IpcError(f"there is no CUDA driver: {error}") from None


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_driver(), name)(*arguments)
    if status:
        raise IpcError(f"{name} failed (error {status})")
