"""A served control socket for the tests of `llmd ctl`, and the orders it gets."""

import msgspec
import numpy as np

from daemon.protocol.control import (
    Counters,
    Flipped,
    FlipStatus,
    InstanceStatus,
    SequenceStatus,
    Snapshot,
)
from daemon.state.role import Role
from tests.control.orders import FLIPPED, Written

CHOSEN: list[str] = ["sarathi"]
"""The policies chosen on the served socket, the configured one first."""
PLACED: list[str] = ["least_loaded"]
"""The placements chosen on it, likewise."""
NEXT_FLIPS: list[tuple[FlipStatus, ...]] = []
"""The flips of the next snapshots."""


def snapshot() -> Snapshot:
    """Two instances, one of them loading, and one running sequence."""
    return Snapshot(
        version="1.2.3",
        pid=77,
        uptime_s=3725.0,
        time_s=9.0,
        status="loading weights 40 %",
        ready=False,
        draining=False,
        url="http://127.0.0.1:8000",
        model="small",
        root="/models/small",
        context_len=2048,
        max_len=2048,
        block_size=16,
        instances=(instance("gpu0", "ready", 1.0), instance("gpu1", "loading", 0.4)),
        sequences=(SequenceStatus(128, "decode", "gpu0", 1.5, 10, 12, 2, 64, 1, 0, 0),),
        running=1,
        waiting=2,
        counters=Counters(requests=5, finished=3, rejected=1),
        flips=NEXT_FLIPS.pop(0) if NEXT_FLIPS else (),
        placement=PLACED[-1],
    )


def instance(name: str, state: str, fraction: float) -> InstanceStatus:
    return InstanceStatus(
        name=name,
        role=Role.MIXED,
        device="cuda:0",
        state=state,
        policy=CHOSEN[-1],
        drained=CHOSEN[-1] == f"{name} drained",
        running=1,
        waiting=2,
        kv_blocks=4,
        kv_free=2,
        kv_held=1,
        kv_cached=1,
        kv_fenced=0,
        kv_block_bytes=1024,
        block_map=np.array([3, 1, 0, 0], dtype=np.uint8),
        steps_in_flight=1,
        steps=10,
        step_s=0.0125,
        batch_rows=1,
        batch_tokens=1,
        load_stage="weights" if state == "loading" else "",
        load_fraction=fraction,
    )


class Orders(Written):
    """Written down; a chosen policy is shown by later snapshots."""

    def choose_policy(self, policy: str, instance: str = "") -> None:
        CHOSEN.append(f"{policy} on {instance}" if instance else policy)

    def choose_budget(self, tokens: int, instance: str = "") -> None:
        CHOSEN.append(f"budget {tokens} on {instance}" if instance else f"budget {tokens}")

    def choose_placement(self, placement: str) -> None:
        PLACED.append(placement)

    def drain(self) -> None:
        CHOSEN.append("drained")

    def resume(self) -> None:
        CHOSEN.append("resumed")

    def choose_roles(self, mode: str) -> None:
        CHOSEN.append(f"roles {mode}")

    def drain_instance(self, instance: str) -> None:
        CHOSEN.append(f"{instance} drained")

    def resume_instance(self, instance: str) -> None:
        CHOSEN.append(f"{instance} resumed")

    async def flip(self, instance: str, role: str, wait_s: float) -> Flipped:
        CHOSEN.append(f"{instance} to {role}")
        number = 3 if instance == "gpu0" else 0
        return msgspec.structs.replace(FLIPPED, number=number, instance=instance)
