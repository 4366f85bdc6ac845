"""Answers of a worker whose rows draft, as a runtime that looks for drafts tells of them."""

from collections.abc import Callable

from tests.core.driver import Driver

_ACCEPTED, _OFFERED = (0, 1, 3, 4), (0, 0, 2, 5)
_ROWS = 6

Choose = Callable[[tuple[int, ...]], int]
"""One of some numbers."""


def answer(
    driver: Driver,
    instance: int,
    choose: Choose,
    stops: frozenset[int] = frozenset(),
    fails: frozenset[int] = frozenset(),
) -> bool:
    """Answer the oldest step of an instance: of its rows' drafts some are accepted, and rows are
    offered drafts where the Core would have them looked for.
    """
    worker = driver.workers.get(instance)
    pending = worker.pending if worker is not None else []
    drafted = bool(pending and pending[0].batch.drafts.size)
    looks = driver.core.instances[instance].may_draft
    counts = tuple(choose(_ACCEPTED) for _ in range(_ROWS)) if drafted else ()
    offers = tuple(choose(_OFFERED) for _ in range(_ROWS)) if looks else ()
    return driver.answer(instance, stops, fails, counts, offers)
