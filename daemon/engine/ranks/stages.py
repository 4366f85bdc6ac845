"""Pipeline stages on one machine: what travels between them over memory that all of them map.

States go from a stage to the next, sampled tokens from the last one, the first rank, to all others.
Nobody waits for a reader: a stage begins its next step while the one behind it computes this one.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from daemon.engine.batch.download import download
from daemon.engine.cpu import pipe_kernels
from daemon.engine.cpu.kernels import BY_ADDRESS
from daemon.engine.cpu.pipe_kernels import LINES_BYTES
from daemon.engine.cpu.rank_kernels import LINE
from daemon.engine.ranks.shared_memory import AREA_BYTES, SharedMemoryRanks, address, shared_bytes
from daemon.models.stages import layers_of, rank_of, stage_of
from daemon.protocol.worker import StagesWorked

HOST = torch.device("cpu")

TOLD_BYTES = 1 << 18
"""Bytes of sampled tokens that may be on their way to a rank."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)
_HEADER = 4
"""int64 before what is sent: rows, their width, the place of their type among `_DTYPES`."""


class _Pipe(NamedTuple):
    """A pipe as one of its ends sees it."""

    at: int  # its address
    ring_bytes: int
    other: int  # rank


def stages_bytes(num_stages: int) -> int:
    """Bytes of the memory that stages share beside what ranks do."""
    pipes_bytes = (num_stages - 1) * (2 * LINES_BYTES + AREA_BYTES + TOLD_BYTES)
    return pipes_bytes + num_stages * 8 * LINE


class Stages(SharedMemoryRanks):
    """This stage's end; see `daemon.engine.layers.stages.StageLinks`."""

    def __init__(
        self,
        memory: int,
        rank: int,
        stage_layers: Sequence[int],
        deadline_s: float,
        device: torch.device = HOST,
    ) -> None:
        """See `SharedMemoryRanks`; `stage_layers`: of each stage, `device`: this one's. What a GPU
        hands over goes through the host's memory, so that devices may be unlike.
        """
        num_stages = len(stage_layers)
        self._device = device
        super().__init__(memory, rank, num_stages, deadline_s, stages_bytes(num_stages))
        self.stage = stage_of(rank, num_stages)
        self.layers = layers_of(self.stage, stage_layers)
        first = self._address + shared_bytes(num_stages)
        states_bytes, told_bytes = LINES_BYTES + AREA_BYTES, LINES_BYTES + TOLD_BYTES
        of_told = first + (num_stages - 1) * states_bytes

        def states(to: int, other: int) -> _Pipe:
            return _Pipe(first + (to - 1) * states_bytes, AREA_BYTES, rank_of(other, num_stages))

        def told(to: int, other: int) -> _Pipe:
            return _Pipe(of_told + (to - 1) * told_bytes, TOLD_BYTES, other)

        self._before = states(self.stage, self.stage - 1) if self.stage else None
        is_last = self.stage + 1 == num_stages
        self._behind = None if is_last else states(self.stage + 1, self.stage + 1)
        others = [told(other, other) for other in range(1, num_stages)]
        self._told = others if is_last else [told(rank, 0)]
        at = len(self._mapped) - num_stages * 8 * LINE
        lines = np.frombuffer(self._mapped, np.float64, num_stages * LINE, at)
        self._computed_s = lines.reshape(num_stages, LINE)[:, 0]
        self._steps_s = self._waited_s = 0.0

    @property
    def is_last(self) -> bool:
        """See `StageLinks`."""
        return self._behind is None

    def stepped(self, elapsed_s: float) -> None:
        """See `StageLinks`."""
        self._steps_s += elapsed_s
        self._computed_s[self.stage] += max(0.0, elapsed_s - self._waited_s)
        self._waited_s = 0.0

    def worked(self) -> StagesWorked:
        """See `StageLinks`."""
        return StagesWorked(self._steps_s, tuple(self._computed_s.tolist()))

    def send(self, states: torch.Tensor) -> None:
        """See `StageLinks`."""
        assert self._behind is not None, "the last stage hands nothing over"
        self._send(self._behind, on_host(states))

    def receive(self) -> torch.Tensor:
        """See `StageLinks`."""
        assert self._before is not None, "the first stage receives nothing"
        states = self._receive(self._before)
        return states.float() if self._device == HOST else states  # in which a CPU computes

    def tell(self, rows: torch.Tensor) -> None:
        """See `Ranks`."""
        rows = on_host(rows)
        for pipe in self._told:
            self._send(pipe, rows)

    def hear(self, num_rows: int, width: int) -> torch.Tensor:
        """See `Ranks`."""
        rows = self._receive(self._told[0])
        assert rows.shape == (num_rows, width), "each step is told once, in order"
        return rows

    def gather(
        self, rows: torch.Tensor, widths: Sequence[int], *, reads: bool = True
    ) -> torch.Tensor:
        """See `Ranks`."""
        return super().gather(on_host(rows), widths, reads=reads).to(rows.device)

    def _send(self, pipe: _Pipe, rows: torch.Tensor) -> None:
        rows = rows.contiguous()
        header = np.array([*rows.shape, _DTYPES.index(rows.dtype), 0], np.int64)
        send = address(pipe_kernels.send_item)
        self._run(send, pipe, header.ctypes.data, header.nbytes)
        self._run(send, pipe, rows.data_ptr(), rows.nbytes)
        self.check()

    def _receive(self, pipe: _Pipe) -> torch.Tensor:
        header = np.zeros(_HEADER, np.int64)
        receive = address(pipe_kernels.receive_item)
        began_s = time.perf_counter()
        self._run(receive, pipe, header.ctypes.data, header.nbytes)
        self._waited_s += time.perf_counter() - began_s
        self.check()
        num_rows, width, kind, _ = header.tolist()
        pinned = self._device.type == "cuda"  # torch keeps it until its copy has ended
        rows = torch.empty((num_rows, width), dtype=_DTYPES[kind], pin_memory=pinned)
        self._run(receive, pipe, rows.data_ptr(), rows.nbytes)
        self.check()
        return rows.to(self._device, non_blocking=True)

    def _run(self, item: int, pipe: _Pipe, at: int, size_bytes: int) -> None:
        ends = pipe.other, self._address, self.rank
        place = pipe.at, pipe.ring_bytes, at, size_bytes, self._wrong.ctypes.data, *ends
        self._team.run_here((1, BY_ADDRESS, item, *place))


def on_host(rows: torch.Tensor) -> torch.Tensor:
    """Rows on the host, whole: what a GPU computes of them is waited for."""
    found = download(rows)
    if rows.is_cuda:
        torch.cuda.current_stream(rows.device).synchronize()
    return found
