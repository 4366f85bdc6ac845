"""Swap copies of a simulated instance: two directions of its host link, parallel to the steps."""

import msgspec
import numpy as np

from daemon.cost.profile import Profile
from daemon.lab.report.records import Span
from daemon.lab.simulator.links import SimulatedLink, transfer_s
from daemon.lab.simulator.pool import Pool
from daemon.state.batch import Batch
from daemon.wire.columns import Int32


class CopiesEnded(msgspec.Struct, frozen=True, gc=False):
    """The end of all copies of a plan, and the time that each direction took."""

    end_s: float
    num_out: int
    out_s: float
    num_in: int
    in_s: float


class CopyEngine:
    """Copies blocks over a host link; each of an instance's devices has its shard and its link.

    Each direction carries out its orders in the order of the plans, like a copy stream.
    """

    def __init__(
        self, profile: Profile, pool: Pool, name: str, spans: list[Span] | None = None
    ) -> None:
        self._spec = profile.device.host_link
        self._out = SimulatedLink(f"{name} host link out", "swap out", "blocks", spans)
        self._in = SimulatedLink(f"{name} host link in", "swap in", "blocks", spans)
        self._shard_bytes = pool.host_block_bytes / profile.num_devices
        self._arrives_s = np.zeros(pool.num_host_blocks)
        self._ended_s = 0.0

    def order(self, now: float, computed_s: float, batch: Batch) -> CopiesEnded | None:
        """Start the copies of a plan: out once the steps before it are computed, in at once but not
        before the block has arrived in the host. None if there are none.
        """
        num_out, num_in = batch.out_blocks.size, batch.in_blocks.size
        if not num_out and not num_in:
            return None
        out_s = in_s = 0.0
        end_s = now
        if num_out:
            out_s = transfer_s(self._spec, num_out * self._shard_bytes, self._out.name)
            end_s = self._out.hold(max(now, computed_s), out_s, num_out)
            self._arrives_s[batch.out_places] = end_s
        if num_in:
            in_s = transfer_s(self._spec, num_in * self._shard_bytes, self._in.name)
            ready_s = max(now, float(self._arrives_s[batch.in_places].max()))
            end_s = max(end_s, self._in.hold(ready_s, in_s, num_in))
        self._ended_s = max(self._ended_s, end_s)
        return CopiesEnded(self._ended_s, num_out, out_s, num_in, in_s)

    def arrived_s(self, places: Int32) -> float:
        """The time at which the last copy to these host blocks has arrived."""
        return float(self._arrives_s[places].max())

    def clear(self, now: float) -> None:
        """Drop all copies, and the content of host memory: the process died."""
        self._out.clear(now)
        self._in.clear(now)
        self._arrives_s[:] = now
        self._ended_s = now
