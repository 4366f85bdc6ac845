"""The experts of a mixture, as the memory formula and models of step times count them."""

import msgspec

from daemon.memory.sizing import DTYPE_BYTES


class ExpertShape(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture's experts, where each has matrices or blocks of its own."""

    num_layers: int  # with experts
    count: int  # of a layer
    chosen: int  # of them by each token
    num_params: int  # of all, and so on
    packed_params: int
    packed_bytes: int

    def size_bytes(self, dtype: str) -> int:
        """Bytes of all, those that are not packed held as `dtype`."""
        return self.packed_bytes + (self.num_params - self.packed_params) * DTYPE_BYTES[dtype]

    def read_share(self, num_tokens: float) -> float:
        """The share of them that a step of so many tokens reads, each choice as likely as any."""
        unread: float = (1.0 - self.chosen / self.count) ** num_tokens
        return 1.0 - unread
