"""Cases that may fail by an exception: it becomes a failed check, and the next case goes on."""

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator

from benchmarks.gpu.report import Check

_LONGEST = 200


def attempted(name: str, work: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """The checks of one case; an exception is printed whole and told in one line."""
    try:
        yield from work()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other cases count too
        traceback.print_exc(file=sys.stderr)
        yield failed(name, error)


def failed(name: str, error: object) -> Check:
    """A check that could not be made."""
    kind = f"{type(error).__name__}: " if isinstance(error, BaseException) else ""
    said = " ".join(f"{kind}{error}".split())
    return Check(name, float("nan"), 0.0, said[:_LONGEST])
