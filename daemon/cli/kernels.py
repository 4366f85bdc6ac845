"""What `llmd check` says of a card's kernels: what earlier self-tests found."""

from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, version

from daemon.config.schema import Config, InstanceSpec
from daemon.engine.selftest.families import FAMILIES
from daemon.engine.selftest.kept import Card, all_kept
from daemon.runtime.model import cache_folder

KEY = "engine.kernels"


def kernel_notes(config: Config, instances: Iterable[InstanceSpec]) -> Iterator[str]:
    """A sentence for each family of kernels that torch computes on a card that would serve."""
    devices = {one.device for one in instances if one.device.startswith("cuda")}
    if not devices:
        return
    if config.engine.kernels == "torch":
        yield "torch computes all, slower than llmd's own kernels"
        return
    for path, verdict in all_kept(cache_folder(config)):
        if verdict.subject.device not in devices or not _as_installed(verdict.card):
            continue
        for family, why in verdict.faults.items():
            meaning = FAMILIES.get(family, family)
            where = f"on {verdict.card.name} ({verdict.subject.device})"
            yield f"torch computes {family} ({meaning}) {where}: {why}; tried again without {path}"


def _as_installed(card: Card) -> bool:
    """Whether a verdict is of the libraries that would be used now; their builds do not count."""
    pairs = (("torch", card.torch), ("triton", card.triton))
    return all(_version(name) == tried.partition("+")[0] for name, tried in pairs)


def _version(name: str) -> str:
    try:
        return version(name).partition("+")[0]
    except PackageNotFoundError:
        return ""
