"""Which names a server answers to, by where it listens and what is allowed."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.api.http.hosts import Hosts, machine_names
from daemon.api.replies.errors import ApiError

LOCAL = ["localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"]
FOREIGN = ["evil.example", "evil.example:8000", "localhost.evil.example", "10.1.2.3", "[::2]:80"]


def answers(hosts: Hosts, name: str | None) -> bool:
    try:
        hosts.check(name)
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("bound_to", ["127.0.0.1", "127.0.0.2", "::1"])
def test_on_loopback(bound_to: str):
    hosts = Hosts(bound_to)
    assert hosts.is_loopback
    own = f"[{bound_to}]" if ":" in bound_to else bound_to
    assert all(answers(hosts, name) for name in [*LOCAL, None, own, f"{own}:1"])
    assert not any(answers(hosts, name) for name in FOREIGN)
    hosts.allow(["LLM.example"])
    assert answers(hosts, "llm.EXAMPLE:443") and answers(hosts, "localhost")
    assert not answers(hosts, "x.llm.example")
    hosts.allow(["*"])
    assert all(answers(hosts, name) for name in FOREIGN)
    hosts.allow([])
    assert not answers(hosts, "llm.example")


@pytest.mark.parametrize("bound_to", ["0.0.0.0", "::", "192.168.1.5", "fe80::1%eth0"])
def test_where_others_are_meant_to_come(bound_to: str):
    hosts = Hosts(bound_to)
    assert not hosts.is_loopback
    assert all(answers(hosts, name) for name in [*LOCAL, *FOREIGN])
    hosts.allow(["llm.example"])
    assert answers(hosts, "llm.example") and answers(hosts, "localhost:8000")
    assert not any(answers(hosts, name) for name in FOREIGN)


PIECES = st.sampled_from(["localhost", "127.0.0.1", ".", "-", "evil", "example", "0", "x", "LOCAL"])


@given(st.lists(PIECES, min_size=1, max_size=4).map("".join), st.sampled_from(["", ":", ":80"]))
def test_no_other_name_is_ours(name: str, port: str):
    ours = name.lower().removesuffix(".") in {"localhost", "127.0.0.1"} and port != ":"
    assert answers(Hosts("127.0.0.1"), name + port) == ours


@pytest.mark.parametrize("bound_to", ["127.0.0.1", "0.0.0.0"])
def test_a_name_that_nobody_else_can_have_is_sure(bound_to: str):
    hosts = Hosts(bound_to)
    assert all(hosts.is_sure(name) for name in [*LOCAL, "10.1.2.3:80", "[fe80::1]:80"])
    assert hosts.is_sure(f"{os.uname().nodename}:8000")
    hosts.allow(["*", "LLM.example"])
    assert hosts.is_sure("llm.example:443")
    assert not any(hosts.is_sure(name) for name in ["evil.example", "localhost.evil.example", "*"])


def test_what_a_network_calls_a_machine():
    assert machine_names("Atlas.lab.example") == {"atlas.lab.example", "atlas", "atlas.local"}
    assert machine_names("") == frozenset()
