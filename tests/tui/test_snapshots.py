"""Pictures of every screen, compared with those that a person has looked at.

After a wanted change: `pytest tests/tui/test_snapshots.py --snapshot-update`, and look at them.
"""

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from textual.pilot import Pilot

from daemon.protocol.control import Snapshot
from tests.tui import scenario
from tests.tui.driving import Scripted, Top
from tui.dashboard import LlmdTop

Compare = Callable[..., bool]
PICTURES = {
    "overview": ((112, 30), ()),
    "tree": ((80, 24), ("t",)),
    "sequence": ((100, 26), ("down", "down", "enter")),
    "instance": ((100, 26), ("tab", "enter")),
    "blocks": ((80, 24), ("k", "down")),
    "cards": ((80, 24), ("i",)),
}


def small(one: Snapshot) -> Snapshot:
    """With pools of few blocks, on cards that can be asked."""
    instances = tuple(
        msgspec.structs.replace(
            i, kv_blocks=256, kv_held=120, kv_cached=32, kv_fenced=6, kv_free=98,
            block_map=np.sort(i.block_map[::8])[::-1].copy(),
        )
        for i in one.instances
    )  # fmt: skip
    return scenario.with_gpus(msgspec.structs.replace(one, instances=instances))


@pytest.mark.parametrize("name", PICTURES)
def test_picture(name: str, snap_compare: Compare) -> None:
    size, keys = PICTURES[name]
    last = small(scenario.moving(180) if name == "cards" else scenario.swapping(180))
    source = Scripted(*[small(scenario.swapping(step)) for step in range(100, 180, 2)], last)
    app = LlmdTop(source)

    async def look(pilot: Pilot[None]) -> None:
        top = Top(app, pilot, source)
        await source.said.join()
        await top.picture()
        await top.press(*keys)
        await top.tell(scenario.owners(last), scenario.story(1002, last.time_s))

    assert snap_compare(app, terminal_size=size, run_before=look)
