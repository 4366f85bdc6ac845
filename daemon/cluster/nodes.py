"""The nodes of a Ray cluster: `python -m daemon.cluster.nodes --address HOST:PORT` prints them.

`llmd check` asks so in a process of its own; a proxy names its worker's node so.
"""

import argparse
import os
import socket
import subprocess
import sys
from importlib.util import find_spec

import msgspec

PROBE_S = 3.0
"""Longest wait for the head to take a connection."""
ASK_S = 60.0
"""Longest wait for the list of nodes."""
MISSING = "Ray is not installed: pip install 'llmd-server[ray]' on every machine"


class Node(msgspec.Struct, frozen=True):
    """A machine of the cluster."""

    name: str
    address: str
    cpus: float  # that Ray counts there
    free_cpus: float  # of these, not taken


class Nodes(msgspec.Struct, frozen=True):
    """The nodes that are alive, or why they are not known."""

    nodes: tuple[Node, ...] = ()
    fault: str = ""


def has_ray() -> bool:
    """Whether Ray is installed here."""
    return find_spec("ray") is not None


def join(address: str) -> str:
    """Connect this process to a running cluster; the reason where that is impossible now."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_S).close()
    except (OSError, UnicodeError) as error:  # Ray itself would try for a minute
        return str(error)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_COLOR_PREFIX": "0"}
    import ray

    try:
        ray.init(
            address=address, namespace="llmd", logging_level="WARNING", configure_logging=False
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()  # what was begun would refuse another try
        return f"{type(error).__name__}: {error}"
    return ""


def node_name(node_id: str) -> str:
    """The name that a node was given, else its host's."""
    found = _node(node_id)
    return node_id[:8] if found is None else _name(found)


def node_address(node_id: str) -> str:
    """The address of a node; empty: it is gone."""
    found = _node(node_id)
    return "" if found is None else found["NodeManagerAddress"]


def _node(node_id: str) -> dict[str, str] | None:
    import ray

    return next((node for node in ray.nodes() if node["NodeID"] == node_id), None)


def _name(node: dict[str, str]) -> str:
    given = node.get("NodeName", "")
    return given if given and given != node["NodeManagerAddress"] else node["NodeManagerHostname"]


def ask_nodes(address: str) -> Nodes:
    """The nodes of the cluster whose head is there, asked in a process of its own."""
    command = [sys.executable, "-m", "daemon.cluster.nodes", "--address", address]
    try:
        asked = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_S, check=False
        )
        return msgspec.json.decode(asked.stdout.splitlines()[-1], type=Nodes)
    except subprocess.TimeoutExpired:
        return Nodes(fault=f"it did not name its nodes within {ASK_S:g} s")
    except (IndexError, msgspec.DecodeError):
        last = asked.stderr.decode(errors="replace").splitlines()[-1:]
        return Nodes(fault=" ".join(last) or "it does not say its nodes")


def _nodes(address: str) -> Nodes:
    if fault := join(address):
        return Nodes(fault=fault)
    import ray

    free = ray._private.state.available_resources_per_node()
    return Nodes(
        tuple(
            Node(
                name=_name(node),
                address=node["NodeManagerAddress"],
                cpus=node["Resources"].get("CPU", 0.0),
                free_cpus=free.get(node["NodeID"], {}).get("CPU", 0.0),
            )
            for node in sorted(ray.nodes(), key=_name)
            if node["Alive"]
        )
    )


def main() -> int:
    """Write the nodes as one line of JSON."""
    parser = argparse.ArgumentParser(prog="daemon.cluster.nodes")
    parser.add_argument("--address", required=True)
    found = _nodes(parser.parse_args().address)
    sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
    sys.stdout.flush()
    os._exit(0)  # without taking Ray apart


if __name__ == "__main__":
    main()
