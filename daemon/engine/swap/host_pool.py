"""Host memory that KV blocks are swapped to."""

import numpy as np
import torch

from daemon.engine.kv.host_int8 import packed_bytes
from daemon.engine.kv.pool import PagedKV, zero_pages


class HostPoolError(Exception):
    """The host pool cannot be had; the message says what would help."""


def host_block_bytes(cache: PagedKV, compress: bool) -> int:
    """Bytes of a block in a host pool."""
    return packed_bytes(cache.blocks.shape) if compress else cache.block_bytes


class HostPool:
    """Rows of bytes, one per block: as in `PagedKV.raw`, or packed (`daemon.engine.kv.host_int8`).

    Beside a CPU the kernel's zero pages, which cost RAM only once used; beside a GPU the same pages
    pinned, so that copies run at the link's speed without blocking the host.
    """

    def __init__(self, num_blocks: int, cache: PagedKV, compress: bool) -> None:
        """Raises HostPoolError where the memory cannot be had or pinned."""
        assert not compress or cache.scales is None, "an 8-bit cache is not packed once more"
        self.num_blocks = num_blocks
        self.compressed = compress
        self.block_bytes = host_block_bytes(cache, compress)
        self.rows = self._pages(cache.blocks.is_cuda).view(num_blocks, self.block_bytes)
        # Tokens written of what each row holds, as `PagedKV.fills`.
        self.fills = np.full(num_blocks, cache.block_size, np.int32)

    def _pages(self, pinned: bool) -> torch.Tensor:
        size_bytes = self.num_blocks * self.block_bytes
        advice = "lower memory.host_bytes"
        try:
            pages = zero_pages(size_bytes)
        except MemoryError:
            raise HostPoolError(f"no {size_bytes} bytes for the host pool: {advice}") from None
        if pinned:
            pages.zero_()  # all threads fetch the pages: alone, the driver takes seconds a gigabyte
            # torch's own pinned allocator would round the size up to a power of two.
            status = torch.cuda.cudart().cudaHostRegister(pages.data_ptr(), size_bytes, 0)
            if int(status):
                fault = f"the driver does not pin the host pool's {size_bytes} bytes"
                raise HostPoolError(f"{fault} (error {int(status)}): {advice}")
        return pages
