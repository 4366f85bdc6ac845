"""`llmd` without even steps of a pipeline (DistServe 4.3): prompts take what room there is.

For comparisons alone. The arguments are those of `llmd`.

    python -m benchmarks.uneven_stages serve
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import daemon.scheduler.scheduler as scheduler
from daemon.cli.main import main


@contextmanager
def uneven() -> Iterator[None]:
    """Schedulers of this process give prompts all the room of a step."""
    with patch.object(scheduler, "even_room", lambda _order, most, *_others: most):
        yield


if __name__ == "__main__":
    with uneven():
        status = main()
    sys.exit(status)
