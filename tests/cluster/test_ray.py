"""The embedded model on the nodes of a Ray cluster, two of them on this machine's loopback."""

import asyncio
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.cli.main import main
from daemon.cluster.host import WorkerHost
from daemon.cluster.nodes import ask_nodes
from tests.cluster.clusters import RayCluster
from tests.cluster.ray_node import LOOPBACK_ONLY
from tests.e2e.live import LiveDaemon
from tests.e2e.prompts import LICENCE, QUESTIONS
from tests.e2e.test_lifecycle import text_of
from tests.hangs import HANG_S

pytest.importorskip("ray")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

NUM_TOKENS = 24
PIECE = 400
PROMPTS = [
    *QUESTIONS,
    *(LICENCE.read_text()[PIECE * at : PIECE * at + 20 * (at + 1)] for at in range(28)),
]
KILLS = 20
ONE_CORE = ("--set", "daemon.threads=1", "--roles", "mixed")
GONE_S = 2 * HANG_S
OWN = {"tcp": "0100007F:", "tcp6": "0000000000000000FFFF00000100007F:"}
"""Loopback, as /proc/net writes it."""


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """The texts of a daemon of one worker on this machine."""
    with LiveDaemon("--instance", "cpu", *ONE_CORE) as daemon:
        return asyncio.run(texts(daemon))


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with pytest.MonkeyPatch.context() as patch, RayCluster() as cluster:
        for name, value in LOOPBACK_ONLY.items():
            patch.setenv(name, value)
        cluster.add("first")
        cluster.add("second")
        yield cluster


def on(cluster: RayCluster, *instances: str) -> LiveDaemon:
    """A daemon with these instances on the cluster's nodes."""
    flags = ["--set", 'cluster.launcher="ray"', "--set", f'cluster.address="{cluster.address}"']
    flags += ["--set", f"daemon.restarts={2 * KILLS}"]
    return LiveDaemon("--instance", *instances, *flags, *ONE_CORE)


async def texts(
    daemon: LiveDaemon, at_once: int = 8, gaps_s: list[float] | None = None
) -> list[str]:
    """The greedy answers to all prompts, in order. `gaps_s` gets the times between two pieces."""
    model, gate = daemon.model()["id"], asyncio.Semaphore(at_once)

    async def ask(prompt: str) -> str:
        async with gate:
            asked = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0.0}
            return await text_of(daemon.url, model, gaps_s, **asked, ignore_eos=True)

    return await asyncio.gather(*map(ask, PROMPTS))


def nodes_of(daemon: LiveDaemon) -> list[str]:
    return sorted(instance.node for instance in daemon.snapshot().instances)


def test_ray_pickles_the_actor_s_class_by_its_name_alone() -> None:
    from ray import cloudpickle

    pickled = cloudpickle.dumps(WorkerHost)
    assert len(pickled) < 100 and b"daemon.cluster.host" in pickled


async def test_texts_of_two_nodes_are_those_of_one_worker(
    cluster: RayCluster, expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(PROMPTS) == 40 and listening_beyond_loopback(cluster) == []
    assert [node.name for node in ask_nodes(cluster.address).nodes] == ["first", "second"]
    with on(cluster, "cpu", "cpu") as daemon:
        await asyncio.to_thread(daemon.wait_all_ready)
        assert nodes_of(daemon) == ["first", "second"]
        assert await texts(daemon) == expected
        seen = daemon.idle_snapshot()
        assert all(instance.steps > NUM_TOKENS for instance in seen.instances), "both computed"
        assert main(["ctl", "--socket", str(daemon.socket), "status"]) == 0
        shown = capsys.readouterr().out
        assert "  node first\n" in shown and "  node second\n" in shown
        assert listening_beyond_loopback(cluster) == []
    await free_again(cluster)


async def test_keys_and_values_of_prompts_go_to_the_node_that_answers(
    cluster: RayCluster, expected: list[str]
) -> None:
    with on(cluster, "cpu:prefill", "cpu:decode") as daemon:
        await asyncio.to_thread(daemon.wait_all_ready)
        assert nodes_of(daemon) == ["first", "second"]
        assert await texts(daemon) == expected
        seen = daemon.idle_snapshot()
        print(f"{seen.counters.handoffs} handoffs, {seen.counters.handoff_sum_s:.3f} s in all")
        assert seen.counters.handoffs >= len(PROMPTS) // 2 and not seen.counters.handoffs_failed
        assert listening_beyond_loopback(cluster) == []
    await free_again(cluster)


async def test_a_node_that_joins_becomes_an_instance_and_one_that_dies_loses_nothing(
    cluster: RayCluster, expected: list[str]
) -> None:
    """The driver's own node, the head, stays. Prompts move to the other node meanwhile."""
    chance, name, moved = random.Random(KILLS), "second", 0
    with on(cluster, "cpu:prefill", "cpu:decode") as daemon:
        await asyncio.to_thread(daemon.wait_all_ready)
        for turn in range(KILLS):
            gaps_s = list[float]()
            asking = asyncio.create_task(texts(daemon, gaps_s=gaps_s))
            while daemon.snapshot().counters.handoffs == moved:
                await asyncio.sleep(0.01)
            await asyncio.sleep(chance.uniform(0.0, 2.0))
            began_s = time.monotonic()
            cluster.kill(name)
            while daemon.snapshot().counters.worker_deaths == turn:
                await asyncio.sleep(0.01)
            lost_s = time.monotonic() - began_s
            assert await asyncio.wait_for(asking, GONE_S) == expected
            assert sorted(nodes_of(daemon)) == ["?", "first"]
            moved = daemon.snapshot().counters.handoffs
            name = f"node-{turn}"
            await asyncio.to_thread(cluster.add, name)
            await asyncio.to_thread(daemon.wait_all_ready)
            assert nodes_of(daemon) == sorted(["first", name])
            ready_s = time.monotonic() - began_s
            print(
                f"kill {turn}: seen after {lost_s:.1f} s, longest gap {max(gaps_s):.1f} s, "
                f"{moved} handoffs, a new node serves after {ready_s:.1f} s",
                flush=True,
            )
        assert await texts(daemon) == expected
        counters = daemon.idle_snapshot().counters
    assert counters.worker_deaths == KILLS and not counters.failed
    assert counters.finished == len(PROMPTS) * (KILLS + 1)
    await free_again(cluster)


async def free_again(cluster: RayCluster) -> None:
    """Until Ray has all CPUs back: no actor outlives its daemon."""
    async with asyncio.timeout(HANG_S):
        while any(node.free_cpus < 1 for node in ask_nodes(cluster.address).nodes):
            await asyncio.sleep(0.5)


def listening_beyond_loopback(cluster: RayCluster) -> list[str]:
    """Addresses on which processes of the cluster listen, and others could reach them."""
    inodes = set()
    for pid in (pid for node in cluster.nodes.values() for pid in node.pids()):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(entry))
            except OSError:
                continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            listens, inode = fields[3] == "0A", f"socket:[{fields[9]}]"
            if listens and inode in inodes and not fields[1].startswith(OWN[table]):
                found.append(fields[1])
    return found
