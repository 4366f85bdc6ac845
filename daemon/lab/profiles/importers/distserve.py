"""DistServe's fits: one JSON file of three coefficients a phase, milliseconds.

`{hub name: {tensor parallel degree: {prefill, decoding_smallbs, decoding_largebs, threshold}}}`.
The form is `PhaseFit`'s own, so that numbers are only divided by 1,000: prefill a + b*sum(L) +
c*sum(L^2), decode a + b*sum(context) + c*batch, with the second set from the threshold on. The
number of fitted points and the error are not published: both are 0. Its noise is not published
either; a standard deviation of 2 % is assumed. The device is in the file's name,
`profiler-DEVICE.distserve.json`; a file of another name is taken for the A100 table.
"""

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from daemon.base.files import TABLE_BYTES, read_whole
from daemon.cost.profile import Fit, PhaseFit, Profile
from daemon.lab.profiles.devices import find_device
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.importers.naming import profile_name
from daemon.lab.profiles.models import find_model

NOISE_SIGMA = 0.02
_PUBLISHED_DEVICE = "a100-80g"
_NAMED = re.compile(r"profiler-(.+)\.distserve\.json")


class _Terms(msgspec.Struct, frozen=True):
    """One entry of the file."""

    decoding_large_small_bs_threshold: int
    prefill: tuple[float, float, float]
    decoding_smallbs: tuple[float, float, float]
    decoding_largebs: tuple[float, float, float]


def convert(source: Path, model: str, device: str, tp: int) -> Profile:
    """The profile from `source`, the file or its folder. Raises ProfileError."""
    architecture = find_model(model)
    path = source / f"profiler-{device}.distserve.json" if source.is_dir() else source
    named = _NAMED.fullmatch(path.name)
    measured = named[1] if named else _PUBLISHED_DEVICE
    if device != measured:
        raise ProfileError(f"{path}: has fits of {measured}, not of {device}")
    terms = _entry(path, architecture.published, tp)
    return Profile(
        name=profile_name(model, device, tp),
        model=architecture.spec,
        device=find_device(device),
        tp=tp,
        step=PhaseFit(
            prefill_s=_seconds(terms.prefill),
            decode_s=_seconds(terms.decoding_smallbs),
            large_decode_s=_seconds(terms.decoding_largebs),
            large_batch=terms.decoding_large_small_bs_threshold,
        ),
        fit=Fit(num_points=0, mape=0.0, noise_sigma=NOISE_SIGMA),
        source=(
            f"DistServe (OSDI 2024), simulator, {path.name}, {architecture.published}, tensor "
            f"parallel {tp}; Apache-2.0",
            "the published fit itself; its error is not published",
            "assumed: a run's own noise of 2 %",
        ),
    )


def _entry(path: Path, published: str, tp: int) -> _Terms:
    try:
        data: Any = json.loads(read_whole(path, TABLE_BYTES))
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path}: not JSON: {error}") from error
    try:
        entry = data[published][str(tp)]
    except (KeyError, TypeError, IndexError):
        raise ProfileError(f"{path}: no fit of {published} at tensor parallel {tp}") from None
    try:
        return msgspec.convert(entry, _Terms)
    except msgspec.ValidationError as error:
        raise ProfileError(f"{path}: {published}, tensor parallel {tp}: {error}") from error


def _seconds(terms_ms: tuple[float, float, float]) -> tuple[float, float, float]:
    base, first, second = terms_ms
    return base / 1e3, first / 1e3, second / 1e3
