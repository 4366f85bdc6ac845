"""Faults of a configuration whose workers Ray places on the nodes of a cluster."""

import re
from collections.abc import Iterator

from daemon.config.instance_text import CPU, num_ranks, placed
from daemon.config.schema import Config

RAY = "ray"
LAUNCHERS = ("local", RAY)
_ADDRESS = re.compile(r"[A-Za-z0-9.\[\]:_-]+:([0-9]{1,5})")
_MOST_PORT = 65535


def by_ray(config: Config) -> bool:
    """Whether Ray places the workers, on any machine of its cluster."""
    return config.cluster.launcher == RAY


def cluster_faults(config: Config) -> Iterator[tuple[str, str]]:
    """The faults of what stands beside a cluster: key and sentence of each."""
    if not by_ray(config):
        return
    address = _ADDRESS.fullmatch(config.cluster.address)
    if not address or not 0 < int(address[1]) <= _MOST_PORT:
        text = f"must be HOST:PORT of the cluster's head, got {config.cluster.address!r}"
        yield "cluster.address", text
    if not config.instance:
        yield "instance", "must be given where Ray places workers: one for each node to use"
    if not config.daemon.threads:
        text = "must be given where Ray places workers: the CPUs of a node that each one takes"
        yield "daemon.threads", text
    for number, spec in enumerate(config.instance):
        place = f"instance[{number}]"
        if spec.device != CPU:
            text = f"{spec.device} is not supported yet where Ray places workers: cpu alone"
            yield f"{place}.device", text
        elif num_ranks(spec) > 1:
            said = "is not supported yet where Ray places workers: ranks share one machine's memory"
            yield f"{place}.parallel", f"{placed(spec)} {said}"
