"""What `llmd check` says of a cluster, of none, and where Ray is missing."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from daemon.cli.check import cluster_lines, too_few
from daemon.cluster.nodes import Node, Nodes, ask_nodes, join
from daemon.config.instance_text import parse_instance
from daemon.config.load import load
from daemon.config.schema import Config
from daemon.runtime import preflight
from tests.e2e.live import free_port

FOUND = Nodes((Node("first", "10.0.0.1", 8.0, 4.0), Node("second", "10.0.0.2", 3.0, 3.0)))


def config(instances: int, threads: int, **others: Any) -> Config:
    spec = msgspec.to_builtins(parse_instance("cpu"))
    values = {"cluster.launcher": "ray", "daemon.threads": threads}
    return load(None, {**values, "instance": [spec] * instances, **others}).config


def test_each_node_has_a_line_with_its_room() -> None:
    lines = list(cluster_lines(config(3, 4), FOUND))
    assert lines[0] == "Ray places workers on the nodes of 127.0.0.1:6379"
    assert " ".join(lines[1].split()).endswith("4 of 8 CPUs free, room for 2 workers of 4")
    assert lines[2].endswith("3 of 3 CPUs free, room for 0 workers of 4")


def test_instances_without_a_node_are_noted() -> None:
    assert too_few(config(2, 4), FOUND) == ""
    assert too_few(config(5, 3), FOUND).startswith("2 of 5 will wait until a node joins")


def test_a_cluster_that_does_not_answer_is_a_fault() -> None:
    """Without Ray too: nobody listens there."""
    found = ask_nodes(f"127.0.0.1:{free_port()}")
    assert not found.nodes and "refused" in found.fault


def test_an_address_may_be_of_ip_version_6() -> None:
    found = ask_nodes(f"[::1]:{free_port()}")
    assert not found.nodes and ("refused" in found.fault or "assign" in found.fault)


def test_a_name_that_no_host_can_have_is_a_fault_like_one_that_none_has() -> None:
    assert "label" in join("a..b:6379")


def test_without_ray_nothing_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(settings: Config) -> Iterator[tuple[str, str, bool]]:
        yield from (found for found in preflight.obstacles(settings) if "Ray" in found.text)

    monkeypatch.setattr(preflight, "has_ray", lambda: False)
    ((key, text, fatal),) = said(config(1, 1))
    assert key == "cluster.launcher" and fatal and "pip install 'llmd-server[ray]'" in text
    assert not list(said(Config()))
