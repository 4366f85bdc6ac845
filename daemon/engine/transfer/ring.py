"""Slots of host memory that two processes map, pinned for the GPUs of both."""

import mmap

import torch

from daemon.engine.transfer.layout import TransferError

SLOT_BYTES = {"cuda": 16 << 20, "cpu": 1 << 20}
"""300 us of a PCIe 5 link: long beside the time of a message and a thread's wake-up; slots between
processors had better stay in their caches."""
NUM_SLOTS = 8


class SharedRing:
    """A memfd as `num_slots` slots of `slot_bytes`; it costs RAM once it is used or pinned."""

    def __init__(self, fd: int, num_slots: int, slot_bytes: int, device: torch.device) -> None:
        """Maps `fd`, which stays the caller's, and pins it for a GPU.

        Raises ValueError where the memory is smaller, TransferError where it cannot be pinned.
        """
        self.num_slots, self.slot_bytes = num_slots, slot_bytes
        size_bytes = num_slots * slot_bytes
        self._device, self._pinned = device, device.type == "cuda"
        # Pages that are there are pinned at once; the driver faults others in one by one.
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if self._pinned else 0)
        self._octets = torch.frombuffer(mmap.mmap(fd, size_bytes, flags), dtype=torch.uint8)
        if self._pinned:
            cudart = torch.cuda.cudart()
            status = int(cudart.cudaHostRegister(self._octets.data_ptr(), size_bytes, 0))
            if status:
                raise TransferError(f"the driver does not pin {size_bytes} bytes (error {status})")

    def slot(self, number: int, size: int) -> torch.Tensor:
        """The first bytes of a slot, uint8 [size]. Raises TransferError where there are fewer.

        A kernel given less would write beyond it.
        """
        if not 0 <= number < self.num_slots or size > self.slot_bytes:
            raise TransferError(f"there is no slot {number} of {size} bytes")
        start = number * self.slot_bytes
        return self._octets[start : start + size]

    def close(self) -> None:
        """Unpin and unmap the memory; no copy may use it any more."""
        if self._pinned:
            with torch.cuda.device(self._device):  # a thread begins with the first GPU as its own
                torch.cuda.cudart().cudaHostUnregister(self._octets.data_ptr())
            self._pinned = False
        self._octets = torch.empty(0, dtype=torch.uint8)


def slot_bytes_for(block_bytes: int, device: torch.device) -> int:
    """A slot's size: room for a block at least, whole pages."""
    return -(-max(SLOT_BYTES[device.type], block_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
