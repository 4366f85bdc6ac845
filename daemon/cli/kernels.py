"""What `llmd check` says of a card's kernels: what earlier self-tests found."""

from collections.abc import Iterable, Iterator

from daemon.config.schema import Config, InstanceSpec
from daemon.engine.families import FAMILIES
from daemon.engine.verify.kernels.kept import CardStack, all_kept, version_of
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


def _as_installed(card: CardStack) -> bool:
    """Whether a verdict is of the libraries that would be used now; their builds do not count."""
    pairs = ((version_of("torch"), card.torch), (version_of("triton"), card.triton))
    return all(here.partition("+")[0] == tried.partition("+")[0] for here, tried in pairs)
