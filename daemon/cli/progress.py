"""A progress bar on stderr for everything that takes a while."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

ShowProgress = Callable[[float, float, str], None]
"""Shows (done, total, what is going on)."""


@contextmanager
def progress() -> Iterator[ShowProgress]:
    """A bar with an estimate of the time left; nothing where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield lambda done, total, what: None
        return
    from rich import progress as bars
    from rich.console import Console

    columns = (
        bars.BarColumn(),
        bars.TextColumn("{task.percentage:>3.0f} %"),
        bars.TimeRemainingColumn(),
        bars.TextColumn("{task.description}"),
    )
    with bars.Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task("", total=None)

        def show(done: float, total: float, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what, refresh=True)

        yield show
