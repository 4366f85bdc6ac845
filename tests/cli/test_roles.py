"""Who gives instances their roles, as a user asks: `llmd ctl roles`, `llmd simulate --roles`."""

import json
from pathlib import Path

import msgspec
import pytest

from daemon.cli.main import main
from daemon.cli.roles_text import roles_lines
from daemon.cli.status import as_json, as_text
from daemon.lab.profiles.load import save_profile
from daemon.protocol.control import RolesExpected, RolesStatus
from tests.cli.served import CHOSEN, snapshot
from tests.lab.planner.small import profile, scenario

ROLES = RolesStatus(
    "auto",
    "1:1",
    ("gpu1",),
    "1:1: better than mixed by 0.25",
    12.0,
    (
        RolesExpected("mixed", 0.7, 1.0, 0.7, 0.12, 0.031, 0.4),
        RolesExpected("1:1", 0.95, 1.0, 0.95, 0.08, 0.026, 0.6),
        RolesExpected("2:1", 0.0, 0.0, 0.0, -1.0, -1.0, 9.99),
    ),
    0.9,
    50,
)


def test_roles_are_asked_for_and_chosen(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["ctl", "--socket", str(socket_path), "roles"]
    assert main(command) == 0
    assert capsys.readouterr().out.startswith("roles are as configured")
    assert main([*command, "auto"]) == 0
    assert main([*command, "mixed"]) == 0
    assert CHOSEN == ["sarathi", "roles auto", "roles mixed"]


def test_a_decision_is_told_with_what_was_expected() -> None:
    assert roles_lines(ROLES) == [
        "roles by the load: 1:1; gpu1 pinned",
        "  1:1: better than mixed by 0.25",
        "  of this load 90% of 50 answers kept both promises under it",
        "   mixed: 70% expected (TTFT 120 ms, TPOT 31.0 ms, KV 40%)",
        "     1:1: 95% expected (TTFT 80 ms, TPOT 26.0 ms, KV 60%)",
        "     2:1: overloaded",
    ]
    undecided = RolesStatus("auto", "mixed")
    assert roles_lines(undecided) == ["roles by the load: mixed"]
    CHOSEN[:] = ["sarathi"]
    told = msgspec.structs.replace(snapshot(), roles=ROLES)
    assert "roles by the load: 1:1; gpu1 pinned" in as_text(told).splitlines()
    shown = json.loads(as_json(told))["roles"]
    assert shown["mode"] == "auto" and shown["pinned"] == ["gpu1"]
    assert shown["expected"][1]["attainment"] == 0.95


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    """Flags of two instances and forty requests."""
    path = tmp_path / "constant.json"
    save_profile(profile(), path)
    flags = ["--profile", str(path), "--instances", "2", "--kv-bytes", "1e7", "--predictor", "none"]
    return [*flags, "--workload", "lpld", "--requests", "40", "--rate", "1", "--max-len", "600"]


def test_a_simulation_tells_how_many_kept_both_promises_and_of_flips(
    two: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    promises = ["--slo-ttft", "100", "--slo-tpot", "100", "--json"]
    for roles in ("mixed", "1:1", "auto"):
        assert main(["simulate", *two, "--roles", roles, *promises]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["attainment"] == 1.0 and told["flips"] == 0
        given = [one["role"] for one in told["instances"]]
        assert given == (["prefill", "decode"] if roles == "1:1" else ["mixed", "mixed"])
    assert main(["simulate", *two, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attainment"] is None


def test_a_split_of_other_instances_is_refused(
    two: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *two, "--roles", "2:6"]) == 2
    assert "there are 2 instances" in capsys.readouterr().err


def test_a_capacity_with_both_promises_asks_for_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sixty requests of one token, half a second each: far fewer than unserved ones allow for."""
    one = scenario(tmp_path, 60)
    flags = ["--trace", str(one.workload.trace), "--profile", one.instance[0].profile]
    flags += ["--kv-bytes", "1e7", "--max-running", "1", "--arrivals", "uniform"]
    promises = ["--slo-ttft", "2", "--slo-tpot", "1"]
    assert main(["simulate", *flags, "--capacity", *promises, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["capacity"]
    assert found["condition"].startswith("TTFT <= 2 s and TPOT <= 1 s for 90 % of requests")
    assert found["limited_by"] == "attainment"
