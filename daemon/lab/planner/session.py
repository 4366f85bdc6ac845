"""A search's session: its evaluations, in processes beside each other, kept, counted and shown."""

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TypeVar

from daemon.lab.planner.candidate import PlanCandidate
from daemon.lab.planner.capacity import highest_rate
from daemon.lab.planner.errors import PlannerError
from daemon.lab.planner.evaluate import KeptScores, Problem, Score, WorkloadSlice, key_of, simulate
from daemon.lab.planner.sweep import deaf_to_the_terminal
from daemon.wire.parent import die_with_parent

T = TypeVar("T")
R = TypeVar("R")

Show = Callable[[float, float, str], None]
"""Shows (requests simulated, requests expected, what is going on)."""


class FoundRate:
    """The highest rate at which a candidate was seen to keep the goal on one slice."""

    def __init__(self, rps: float, at: Score, failed: Score | None) -> None:
        self.rps = rps
        self.at = at  # the score there, or at the lowest rate tried where `rps` is 0
        self.failed = (
            failed  # the score of the lowest rate that failed; None: it is above the bound
        )


class Session:
    """Evaluations with one memory; `workers` processes simulate, none where that is 1."""

    def __init__(
        self,
        kept: KeptScores | None = None,
        workers: int = 1,
        show: Show = lambda _done, _total, _what: None,
    ) -> None:
        self._kept = kept or KeptScores()
        self._lock = Lock()
        self._show = show
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._threads: ThreadPoolExecutor | None = None
        self.tried = 0  # simulations made here
        self.found = 0  # answered from what was kept
        self.requests = 0  # simulated here or in what was kept, each simulation once
        self.expected = 0  # requests that the whole search may take
        self.what = ""
        self._counted: set[str] = set()  # hashes of the simulations in `requests`
        self.dropped: Counter[str] = Counter()  # candidates that were not simulated, by reason
        self.longest: dict[PlanCandidate, Score] = {}
        """Each candidate's score on its longest slice, at the highest rate that it sustained."""

    @property
    def workers(self) -> int:
        """Simulations that run beside each other."""
        return self._workers

    def evaluate(
        self, problem: Problem, candidate: PlanCandidate, rate: float, part: WorkloadSlice
    ) -> Score:
        """The score of a candidate on a slice at a rate: kept, or simulated now."""
        key = key_of(problem, candidate, rate, part)
        score = self._kept.get(key)
        was_kept = score is not None
        if score is None:
            if self._pool is None:
                score = simulate(problem, candidate, rate, part)
            else:
                score = self._pool.submit(simulate, problem, candidate, rate, part).result()
            self._kept.put(key, score)
        with self._lock:
            self.tried += not was_kept
            self.found += was_kept
            if key not in self._counted:
                self._counted.add(key)
                self.requests += score.requests
            self._note(candidate, score, part)
            self._show(self.requests, max(self.expected, self.requests), self.what)
        return score

    def points(
        self, candidates: Sequence[PlanCandidate]
    ) -> tuple[tuple[PlanCandidate, Score], ...]:
        """Candidates that kept the goal at some rate, each with its score in `longest`."""
        return tuple((each, self.longest[each]) for each in candidates if each in self.longest)

    def _note(self, candidate: PlanCandidate, score: Score, part: WorkloadSlice) -> None:
        """Keep a score that may be its candidate's point in a picture; held-out slices are not."""
        if not score.sustained or part.seed:
            return
        known = self.longest.get(candidate)
        order = score.requests, score.rate_rps
        if known is None or order > (known.requests, known.rate_rps):
            self.longest[candidate] = score

    def capacity(
        self,
        problem: Problem,
        candidate: PlanCandidate,
        part: WorkloadSlice,
        *,
        near: float,
        most: float,
        width: float,
        stride: float = 1.5,
    ) -> FoundRate:
        """Bisect for the highest rate of a candidate on a slice, beginning near a guess.

        `most` is its bound: a slice is finite, and may pass at rates that nothing sustains.
        """
        scores: list[Score] = []

        def sustains(rate: float) -> bool:
            if rate > most:
                return False
            scores.append(self.evaluate(problem, candidate, rate, part))
            return scores[-1].sustained

        def is_hopeless() -> bool:
            last, before = scores[-1], scores[-2]
            if last.error:
                return True
            is_same = not last.lost_early and not before.lost_early
            return is_same and abs(last.attainment - before.attainment) < 1e-6

        passed, failed = highest_rate(sustains, min(near, most), width, stride, is_hopeless)
        by_rate = {score.rate_rps: score for score in scores}
        return FoundRate(passed, by_rate.get(passed) or scores[-1], by_rate.get(failed))

    def map(self, what: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """`what` of each item, as many at a time as there are workers, in the items' order."""
        if self._threads is None:
            return [what(item) for item in items]
        futures: list[Future[R]] = [self._threads.submit(what, item) for item in items]
        return [future.result() for future in futures]


@contextmanager
def session(
    path: Path | None = None,
    workers: int = 0,
    show: Show = lambda _done, _total, _what: None,
) -> Iterator[Session]:
    """A session with its processes (0: one a core); scores are kept in a file if one is given.

    Processes are spawned: a script that calls this needs a `__main__` guard. Raises PlannerError.
    """
    if workers < 0:
        raise PlannerError(f"workers must not be below 0, got {workers}")
    count = workers or len(os.sched_getaffinity(0))
    made = Session(KeptScores(path), count, show)
    if count == 1:
        yield made
        return
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        count, mp_context=multiprocessing.get_context("spawn"), initializer=die_with_parent
    )
    threads = ThreadPoolExecutor(count)
    try:
        with deaf_to_the_terminal():  # all start now: they end with the thread that starts them
            begun = [pool.submit(os.getpid) for _ in range(count)]
        for process_id in begun:
            process_id.result()
        made._pool, made._threads = pool, threads
        yield made
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        threads.shutdown(cancel_futures=True)
        pool.shutdown(cancel_futures=True)
