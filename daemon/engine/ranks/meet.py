"""The beginning of ranks: each gets the memory that all of them share, and its end of it."""

import os
import socket
from pathlib import Path

import torch

from daemon.engine.layers.ranks import RankError, Ranks
from daemon.engine.ranks.distributed import DistributedRanks
from daemon.engine.ranks.shared_memory import SharedMemoryRanks
from daemon.engine.ranks.stages import Stages
from daemon.protocol.worker import Load, RankMemory
from daemon.wire.columns import decoder

LOADING_LATE_S = 240.0
"""Longest time for which a rank waits for another while they load: their disks may be unlike."""

_MESSAGE_BYTES = 1 << 10


def meet(links: socket.socket, load: Load) -> Ranks:
    """This rank's end; the memory is the first thing that comes over the socket for links.

    Raises RankError.
    """
    payload, descriptors, _, _ = socket.recv_fds(links, _MESSAGE_BYTES, 1)
    if not payload or len(descriptors) != 1:
        raise RankError(f"rank {load.rank} gets no memory to share with the others")
    decoder(RankMemory).decode(payload)
    memory = descriptors[0]
    place = load.rank, load.world_size, LOADING_LATE_S
    device = torch.device(load.device)
    try:
        if load.stage_layers:
            return Stages(memory, load.rank, load.stage_layers, LOADING_LATE_S, device)
        if device.type == "cuda":
            return DistributedRanks(meeting_in(memory), *place, device)
        return SharedMemoryRanks(memory, *place)
    finally:
        os.close(memory)


def meeting_in(memory: int) -> Path:
    """A path of the shared memory that holds as long as this process, as a file for ranks to meet
    in; the memory's descriptor may be closed.
    """
    return Path(f"/proc/{os.getpid()}/fd/{os.dup(memory)}")
