"""Service classes: read from text, and assigned to requests by their shares."""

import math

import numpy as np
import numpy.typing as npt

from daemon.lab.workload.workload import SloClass, WorkloadError

_PROMISES = {
    "ttft": "ttft_s",
    "tpot": "tpot_s",
    "gap": "gap_s",
    "normalized-latency": "normalized_latency_s",
    "priority": "priority",
    "scale": "scale",
}
_MAX_CLASSES = 256


def parse_class(text: str) -> SloClass:
    """A class such as `chat:0.8:ttft=1:tpot=0.05`: name, share, promises in seconds.

    The share may be left out (1), and so may every promise: ttft, tpot, gap (the longest between
    two tokens), normalized-latency, scale (a multiple of an answer's time alone); priority is a
    whole number. Raises WorkloadError.
    """
    name, *parts = text.split(":")
    values: dict[str, float] = {}
    for position, part in enumerate(parts):
        key, equals, number = part.partition("=")
        if not equals and position == 0:
            field, number = "share", part
        elif equals and key in _PROMISES:
            field = _PROMISES[key]
        else:
            known = ", ".join(f"{key}=" for key in _PROMISES)
            raise WorkloadError(f"class {text!r}: {part!r} is none of {known}")
        if field in values:
            raise WorkloadError(f"class {text!r}: {key} is given twice")
        values[field] = _number(text, number)
    priority = values.pop("priority", 0.0)
    if not priority.is_integer():
        raise WorkloadError(f"class {text!r}: priority must be a whole number, got {priority}")
    return SloClass(name=name, priority=int(priority), **values)


def assign_classes(
    classes: tuple[SloClass, ...], count: int, rng: np.random.Generator
) -> npt.NDArray[np.uint8]:
    """[count] indices into `classes`, random by share. Raises WorkloadError."""
    _check(classes)
    bounds = np.cumsum([each.share for each in classes])
    drawn = np.searchsorted(bounds / bounds[-1], rng.random(count), side="right")
    return drawn.astype(np.uint8)


def _check(classes: tuple[SloClass, ...]) -> None:
    if not 1 <= len(classes) <= _MAX_CLASSES:
        raise WorkloadError(f"classes: give 1 to {_MAX_CLASSES}, got {len(classes)}")
    names = [each.name for each in classes]
    for each in classes:
        place = f"class {each.name!r}"
        if not each.name or names.count(each.name) > 1:
            raise WorkloadError(f"{place}: every class needs a name of its own")
        if not 0 < each.share <= 1:
            raise WorkloadError(f"{place}: share must be above 0 and at most 1, got {each.share}")
        for key in ("ttft_s", "tpot_s", "gap_s", "normalized_latency_s", "scale"):
            if not 0 <= getattr(each, key) < math.inf:
                raise WorkloadError(f"{place}: {key} must be 0 or more, got {getattr(each, key)}")
    total = sum(each.share for each in classes)
    if not math.isclose(total, 1, abs_tol=1e-6):
        raise WorkloadError(f"classes: the shares of {', '.join(names)} add up to {total:g}, not 1")


def _number(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        raise WorkloadError(f"class {text!r}: {number!r} is not a number") from None
    if not math.isfinite(value):
        raise WorkloadError(f"class {text!r}: {number!r} is not finite")
    return value
