"""One run: right answers first, then faults at random under load, then what is left behind."""

import asyncio
import signal
import time
from pathlib import Path
from typing import NamedTuple

from daemon.api.front.process import TOKENIZER_THREADS
from daemon.api.sandbox import grammar, templates
from daemon.core.core import Core
from daemon.core.values.actions import Deliver
from daemon.journal.reader import read_records
from daemon.journal.records import FILE_NAME
from daemon.lab.simulator.journal import replay
from daemon.protocol.control import Snapshot
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
from tests.chaos.faults import Disturber
from tests.chaos.processes import Held, await_end, held, shared_memory
from tests.core.laws import check_laws, check_nothing_left
from tests.e2e.live import LiveDaemon
from tests.hangs import HANG_S

NEAR = 1e-3
FEW_TOKENS = 8
FORKING = {
    "daemon.api.sandbox.grammar_process": grammar.AT_ONCE,
    "daemon.api.sandbox.template_process": templates.AT_ONCE,
}
DESCRIPTORS = 8
"""The most descriptors of one more fork and of its parent."""
LAZY_THREADS = {"daemon.api": TOKENIZER_THREADS - 1}
"""Threads of its pool, which starts them on demand; one was there before."""
LAWS_EVERY = 10
"""Events of a journal between two looks at the Core's laws."""


class Plan(NamedTuple):
    """The number of clients, and the faults meanwhile."""

    clients: int
    faults: dict[str, int]
    patient: bool = False  # each fault finds all workers ready, and an answer since the last one


async def settled(daemon: LiveDaemon, mark: str, subject: Subject) -> dict[str, Held]:
    """The resources held once the spare is ready and connections are closed."""
    await quiet(daemon)
    deadline_s = time.monotonic() + QUIET_S
    counts = held(mark)
    while time.monotonic() < deadline_s:
        await asyncio.sleep(0.5)
        before, counts = counts, held(mark)
        workers = counts.get(subject.worker, Held(0, 0, 0))
        if counts == before and workers.processes == subject.workers + 1:
            return counts
    raise AssertionError(f"not settled: {counts}")


def check_leaks(before: dict[str, Held], after: dict[str, Held]) -> None:
    """The same processes, with no more open in each; forks are kept, up to as many as compute."""
    assert set(after) == set(before), (before, after)
    for name, one in after.items():
        was = before[name]
        more = max(0, one.processes - was.processes)
        if name in FORKING:
            assert one.processes <= 1 + FORKING[name], (name, was, one)
            assert one.threads <= was.threads + more, (name, was, one)
            assert one.descriptors <= was.descriptors + DESCRIPTORS * more + 2, (name, was, one)
            continue
        assert one.processes == was.processes, (name, was, one)
        assert one.threads <= was.threads + LAZY_THREADS.get(name, 0), (name, was, one)
        assert one.descriptors <= was.descriptors + 2, (name, was, one)


async def right_answers(subject: Subject, config: Path, streamed: bool = True) -> list[Answer]:
    """The answers of an undisturbed daemon with enough memory."""
    mark, env = marked(subject)
    with LiveDaemon(*alone_flags(subject, config), env=env) as daemon:
        answers = await undisturbed(daemon.url, subject.cases, 4, streamed)
        seen = await quiet(daemon)
    assert await_end(mark, HANG_S) == {}
    assert seen.counters.preemptions == seen.counters.worker_deaths == 0
    return answers


async def sure_cases(subject: Subject, config: Path) -> list[Case]:
    """The subject's cases, each up to where two tokens are so near that another batch may choose
    the other; those of a few tokens are left out, and so are the scores that tell.
    """
    sure = []
    answers = await right_answers(subject, config, streamed=False)
    for case, answer in zip(subject.cases, answers, strict=True):
        best = [sorted(one.values())[-2:] for one in answer.said[0].scores["top_logprobs"]]
        near = [place for place, (second, first) in enumerate(best) if first - second < NEAR]
        body = {**case.body, "max_tokens": min([case.body["max_tokens"], *near])}
        del body["logprobs"]
        if body["max_tokens"] >= FEW_TOKENS:
            sure.append(case._replace(body=body))
    return sure


async def soak(subject: Subject, config: Path, plan: Plan, seed: int, swap: str) -> None:
    """The whole story of one daemon."""
    print(f"\nseed {seed}, swap {swap or 'as the policy has it'}")
    mark, env = marked(subject)
    cases = subject.cases
    expected = await right_answers(subject, config)
    with LiveDaemon(*flags_of(subject, config, KV_BLOCKS, swap), env=env) as daemon:
        assert await undisturbed(daemon.url, cases, 4) == expected
        before, memory = await settled(daemon, mark, subject), shared_memory(mark)
        clients = Clients(daemon.url, list(zip(cases, expected, strict=True)), seed)
        disturber = Disturber(daemon, mark, subject.worker, config, clients, seed)
        await disturbed(disturber, clients, plan)
        seen = await quiet(daemon)
        tell(disturber, clients, seen)
        assert not clients.tally.wrong, "\n".join(clients.tally.wrong[:5])
        check_ledgers(seen)
        assert await undisturbed(daemon.url, cases, 4) == expected
        check_leaks(before, await settled(daemon, mark, subject))
        assert shared_memory(mark) == memory
        last = await quiet(daemon)
        daemon.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(daemon.process.wait, QUIET_S) == 0
        assert replayed(daemon) == last.counters.output_tokens, "the journal tells of others"
        log = daemon.text()
    assert await_end(mark, HANG_S) == {}, "a process outlives its daemon"
    assert "cannot go on" not in log and "Traceback" not in log, log
    assert seen.counters.failed == 0
    assert seen.counters.preemptions and seen.counters.swaps_in


def replayed(daemon: LiveDaemon) -> int:
    """How many tokens the Core delivers when its journal is replayed; it keeps its laws there."""
    records = read_records(daemon.folder / "journal" / FILE_NAME)
    cores: list[Core] = []
    num_tokens = 0
    for number, (_event, actions) in enumerate(replay(records, cores.append)):
        num_tokens += sum(one.rows.size for one in actions if isinstance(one, Deliver))
        if number % LAWS_EVERY == 0:
            check_laws(cores[-1])
    check_laws(cores[-1])
    check_nothing_left(cores[-1])
    return num_tokens


async def disturbed(disturber: Disturber, clients: Clients, plan: Plan) -> None:
    """Clients ask while the plan's faults happen, and finish what they have begun."""
    asking = [asyncio.create_task(clients.live()) for _ in range(plan.clients)]
    try:
        await disturber.disturb(plan.faults, plan.patient)
    finally:
        clients.going = False
    await asyncio.gather(*asking)


def tell(disturber: Disturber, clients: Clients, seen: Snapshot) -> None:
    """Print the faults and answers of a run."""
    print(f"faults: {dict(disturber.done)}")
    print(f"answers: {dict(clients.tally.seen)}, {len(clients.tally.wrong)} wrong")
    print(f"by kind: {dict(clients.tally.kinds)}")
    print(f"longest wait for a piece: {clients.tally.longest_gap_s:.2f} s")
    for name, times in disturber.noticed_s.items():
        ordered = sorted(times)
        middle, most = ordered[len(ordered) // 2], ordered[-1]
        print(f"{name}, gone after: p50 {1e3 * middle:.0f} ms, most {1e3 * most:.0f} ms")
    one = seen.counters
    print(
        f"{one.worker_deaths} deaths, {one.preemptions} preemptions, {one.swaps_in} swaps in, "
        f"{one.recomputed_tokens} tokens recomputed, {one.output_tokens} drawn"
    )
