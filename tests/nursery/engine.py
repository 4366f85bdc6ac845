"""The engine's own worker with all that it imports, in forks of one process."""

import os
import socket
import sys

from daemon.config.paths import default_cache
from daemon.engine.process import bound_caches, keep_compiled, share_cores, stay_offline
from daemon.engine.worker.main import _SWITCH_S, EngineWorker
from daemon.engine.worker.preload import preload
from daemon.wire.blocking import BlockingChannel
from tests.nursery.worker import BY_GLOO

KIND = "cpu"

stay_offline()
share_cores()
bound_caches()
keep_compiled(default_cache())
sys.setswitchinterval(_SWITCH_S)
preload(KIND)
PRELOADED = frozenset(sys.modules)
"""The modules of a worker that has heard of no model yet."""


def _import_rest() -> None:
    """Import what a worker's first model brings along: torch and transformers do so late."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=64, num_hidden_layers=1))


_import_rest()


def serve(fd: int, links_fd: int, spare: bool) -> int:
    """Serve over these sockets; the process's exit status."""
    if BY_GLOO in os.environ:
        _meet_by_gloo()
    channel, links = (socket.socket(fileno=one) for one in (fd, links_fd))
    return EngineWorker(BlockingChannel(channel), links).serve(KIND, spare)


def _meet_by_gloo() -> None:
    import torch

    from daemon.engine.ranks import meet
    from daemon.engine.ranks.distributed import DistributedRanks

    def gloo(memory: int, rank: int, world_size: int, deadline_s: float) -> object:
        place = rank, world_size, deadline_s
        return DistributedRanks(meet.meeting_in(memory), *place, torch.device("cpu"))

    setattr(meet, "SharedMemoryRanks", gloo)  # noqa: B010 - a type is no function to mypy
