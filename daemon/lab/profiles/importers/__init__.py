"""Converters from published tables to profiles: one file per source."""

from collections.abc import Callable
from pathlib import Path

from daemon.cost.profile import Profile
from daemon.lab.profiles.importers import aiconfigurator, distserve, splitwise, vidur

# (source, model, device, tp) -> Profile; each raises ProfileError.
IMPORTERS: dict[str, Callable[[Path, str, str, int], Profile]] = {
    "aiconfigurator": aiconfigurator.convert,
    "distserve": distserve.convert,
    "splitwise": splitwise.convert,
    "vidur": vidur.convert,
}
