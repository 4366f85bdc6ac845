"""One daemon of two linked workers, whose sequences move and who are killed meanwhile."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from daemon.control.client import flip
from daemon.journal.reader import read_records
from daemon.journal.records import FILE_NAME
from daemon.protocol.control import Snapshot
from daemon.wire.faults import VARIABLE
from tests.chaos.answers import Answer
from tests.chaos.cases import Case
from tests.chaos.clients import Clients, undisturbed
from tests.chaos.daemons import (
    KV_BLOCKS,
    QUIET_S,
    Subject,
    alone_flags,
    check_ledgers,
    flags_of,
    marked,
    quiet,
)
from tests.chaos.movers import Mover
from tests.chaos.run import replayed
from tests.chaos.states import Kill, kills_of
from tests.chaos.strikes import Strike
from tests.e2e.live import LiveDaemon

LINK_MS = 15
"""The time of a piece of a transfer, long enough to die meanwhile."""
PATIENT_S = 60.0
ROLES = ("--instance", "cpu:prefill", "--instance", "cpu:decode")
SLOW = f"worker.link_slow:1:{LINK_MS}"

Done = TypeVar("Done")
Striker = Callable[[LiveDaemon], Awaitable[list[Strike]]]
Asked = list[tuple[Case, Answer]]


class Setting(NamedTuple):
    """Who computes, with which variables, and what is asked, with the right answers."""

    subject: Subject  # of no workers: their roles are of this kind of run
    env: dict[str, str]
    asked: Asked
    clients: int = 10


def linked_daemon(setting: Setting, config: Path, fault: str) -> LiveDaemon:
    """A daemon of two workers with little memory, which prefill and decode."""
    _mark, env = marked(setting.subject)
    subject = setting.subject._replace(workers=0)
    flags = [*flags_of(subject, config, KV_BLOCKS, "reactive"), *ROLES]
    flags += ["--set", "daemon.spare=false"]
    return LiveDaemon(*flags, env=env | setting.env | {VARIABLE: fault})


async def asked_of(
    subject: Subject, config: Path, streamed: bool = False, env: dict[str, str] | None = None
) -> Asked:
    """The subject's cases with the answers of one undisturbed worker."""
    _mark, own = marked(subject)
    with LiveDaemon(*alone_flags(subject, config), env=own | (env or {})) as daemon:
        answers = await undisturbed(daemon.url, subject.cases, 4, streamed)
    return list(zip(subject.cases, answers, strict=True))


async def killed(setting: Setting, config: Path, strike: Striker, seed: int) -> list[Kill]:
    """Have workers of one daemon killed under load; what was on its way each time."""
    with linked_daemon(setting, config, SLOW) as daemon:
        strikes, seen = await disturbed(daemon, setting, seed, lambda _asking: strike(daemon))
        assert seen.counters.worker_deaths == len(strikes), daemon.text()
        kills = kills_of(list(read_records(daemon.folder / "journal" / FILE_NAME)), strikes)
    assert len(kills) == len(strikes)
    print(f"{len(kills)} kills")
    return kills


async def disturbed(
    daemon: LiveDaemon, setting: Setting, seed: int, disturb: Callable[[Clients], Awaitable[Done]]
) -> tuple[Done, Snapshot]:
    """Disturb a daemon whose sequences move under load, then end it; how it was at rest.

    No answer is wrong, nothing is left behind, and the links come up again.
    """
    await quiet(daemon)
    asking, mover = Clients(daemon.url, setting.asked, seed), Mover(daemon, seed)
    tasks = [asyncio.create_task(asking.live()) for _ in range(setting.clients)]
    moving = asyncio.create_task(mover.live())
    try:
        done = await disturb(asking)
    finally:
        asking.going = mover.going = False
    await asyncio.gather(moving, *tasks)
    assert not asking.tally.wrong, "\n".join(asking.tally.wrong[:5])
    seen = await at_rest(daemon)
    check_ledgers(seen)
    assert seen.counters.failed == 0
    await links_work(daemon, setting.asked)
    log = daemon.text()
    assert "cannot go on" not in log and "Traceback" not in log, log
    daemon.process.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(daemon.process.wait, QUIET_S) == 0
    replayed(daemon)
    print(f"answers: {dict(asking.tally.seen)}; {told(seen)}")
    return done, seen


def told(seen: Snapshot) -> str:
    """The counts of migrations, in words."""
    one = seen.counters
    return (
        f"{one.handoffs} handoffs, {one.handoffs_failed} failed transfers, "
        f"{one.sent_blocks} blocks sent, {one.preemptions} preemptions, {one.flips} flips"
    )


async def at_rest(daemon: LiveDaemon) -> Snapshot:
    """The daemon once nothing runs, and nothing is on its way."""
    seen = await quiet(daemon)
    async with asyncio.timeout(PATIENT_S):
        while seen.transfers or any(one.remote_kvs or one.kv_fenced for one in seen.instances):
            await asyncio.sleep(0.05)
            seen = await quiet(daemon)
    return seen


async def links_work(daemon: LiveDaemon, asked: Asked) -> None:
    """Answers are handed off again, and are right."""
    seen = await at_rest(daemon)
    before = seen.counters
    for one, role in zip(seen.instances, ("prefill", "decode"), strict=True):
        await asyncio.to_thread(flip, daemon.socket, one.name, role, PATIENT_S, 0.0)
    asking = Clients(daemon.url, asked, 0)  # one: each round asks for other answers
    async with asyncio.timeout(PATIENT_S):
        while (await at_rest(daemon)).counters.sent_blocks == before.sent_blocks:
            asking.going = True
            client = asyncio.create_task(asking.live())
            await asyncio.sleep(0.1)
            asking.going = False
            await client
            assert not asking.tally.wrong, asking.tally.wrong
