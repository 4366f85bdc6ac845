"""Lines of `llmd check` on a cluster: its nodes, and how many workers each has room for."""

from collections.abc import Iterator

from daemon.cluster.nodes import Node, Nodes
from daemon.config.schema import Config


def cluster_lines(config: Config, found: Nodes) -> Iterator[str]:
    """The cluster and its nodes, as lines of text."""
    yield f"Ray places workers on the nodes of {config.cluster.address}"
    for node in found.nodes:
        room = _room(config, node)
        workers = f"{room} worker{'' if room == 1 else 's'} of {config.daemon.threads}"
        free = f"{node.free_cpus:g} of {node.cpus:g} CPUs free"
        yield f"  {node.name:<24} {node.address:<16} {free}, room for {workers}"


def too_few(config: Config, found: Nodes) -> str:
    """A note where some instances will wait for a node; empty: there is room for all."""
    room = sum(_room(config, node) for node in found.nodes)
    waiting = len(config.instance) - room
    if waiting <= 0:
        return ""
    return f"{waiting} of {len(config.instance)} will wait until a node joins that has room for it"


def _room(config: Config, node: Node) -> int:
    """How many workers a node holds when nothing else takes its CPUs."""
    return int(node.cpus) // max(config.daemon.threads, 1)
