"""One rank of several that meet by gloo: what it does, by the name of a function here."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from daemon.engine.layers.ranks import RankError, from_all
from daemon.engine.ranks.distributed import DistributedRanks


def together(ranks: DistributedRanks) -> object:
    """All operations, with shares of unlike widths, and none."""
    widths = [3, 0, 2][: ranks.world_size]
    part = torch.full((2, 4), 1.0 + ranks.rank)
    own = torch.full((2, widths[ranks.rank]), ranks.rank, dtype=torch.int64)
    found = [ranks.sum(part).tolist(), ranks.gather(own, widths).tolist()]
    found.append(ranks.gather(own[:0], widths).tolist())
    found.append(list(ranks.gather(own, widths, reads=False).shape))
    if ranks.rank == 0:
        ranks.tell(torch.tensor([[7, 8]]))
    else:
        assert ranks.hear(1, 2).tolist() == [[7, 8]]
    return [*found, from_all(ranks, 10 * ranks.rank)]


def late(ranks: DistributedRanks) -> object:
    """The last rank does nothing for longer than it may."""
    ranks.sum(torch.ones(3))
    ranks.deadline_s = 0.3
    if ranks.rank + 1 == ranks.world_size:
        time.sleep(1.5)
        return None
    return ranks.sum(torch.ones(3)).tolist()


def dead(ranks: DistributedRanks) -> object:
    """The last rank dies."""
    ranks.sum(torch.ones(3))
    if ranks.rank + 1 == ranks.world_size:
        os._exit(1)
    return ranks.sum(torch.ones(3)).tolist()


WORK: dict[str, Callable[[DistributedRanks], object]] = {
    "together": together,
    "late": late,
    "dead": dead,
}


def main() -> None:
    """Do it, and print what came of it, or the error."""
    meeting, name, rank, world_size, deadline_s = sys.argv[1:]
    torch.set_num_threads(1)
    try:
        place = int(rank), int(world_size), float(deadline_s)
        found = WORK[name](DistributedRanks(Path(meeting), *place, torch.device("cpu")))
    except RankError as error:
        found = str(error)
    print(json.dumps(found))
