"""What a running daemon takes of a configuration that was read again."""

from pathlib import Path

import pytest

from daemon.config.load import Loaded, flatten, load
from daemon.config.reload import LIVE, change
from daemon.config.schema import Config


def read(folder: Path, text: str, **flags: object) -> Loaded:
    file = folder / "llmd.toml"
    file.write_text(text, encoding="utf-8")
    return load(file, {key.replace("__", "."): value for key, value in flags.items()})


def test_every_live_value_exists() -> None:
    assert set(flatten(Config())) >= LIVE


def test_nothing_changes_where_nothing_differs(tmp_path: Path) -> None:
    running = read(tmp_path, "[server]\nport = 1\n")
    found = change(running, read(tmp_path, "# a remark\n[server]\nport = 1\n"))
    assert (found.changed, found.needs_restart) == ((), ())
    assert found.loaded == running


def test_what_can_change_does_and_the_rest_is_named_and_stays(tmp_path: Path) -> None:
    running = read(tmp_path, "[server]\nport = 1\n")
    new = read(
        tmp_path,
        "[server]\nport = 2\nkeepalive_s = 3.0\n[scheduler]\nmax_waiting = 7\nmax_running = 9\n",
    )
    found = change(running, new)
    assert found.changed == ("server.keepalive_s", "scheduler.max_waiting")
    assert found.needs_restart == ("server.port", "scheduler.max_running")
    config = found.loaded.config
    assert (config.server.port, config.server.keepalive_s) == (1, 3.0)
    assert (config.scheduler.max_running, config.scheduler.max_waiting) == (256, 7)
    assert found.loaded.source("server.keepalive_s") == str(tmp_path / "llmd.toml")


def test_what_needs_a_restart_is_named_each_time_until_it_is_taken_back(tmp_path: Path) -> None:
    running = read(tmp_path, "")
    new = read(tmp_path, "[model]\nname = 'other'\n[daemon]\ndrain_s = 1.0\n")
    first = change(running, new)
    again = change(first.loaded, new)
    assert (again.changed, again.needs_restart) == ((), ("model.name",))
    back = change(first.loaded, read(tmp_path, ""))
    assert (back.changed, back.needs_restart) == (("daemon.drain_s",), ())


def test_instances_stay_whether_they_were_named_or_found(tmp_path: Path) -> None:
    named = "[[instance]]\ndevice = 'cuda:0'\n"
    for before, after in (("", named), (named, ""), (named, named.replace("0", "1"))):
        running = read(tmp_path, before)
        found = change(running, read(tmp_path, f"{after}[scheduler]\nmax_waiting = 7\n"))
        assert (found.changed, found.needs_restart) == (("scheduler.max_waiting",), ("instance",))
        assert found.loaded.config.instance == running.config.instance


def test_another_policys_own_budget_is_no_difference(tmp_path: Path) -> None:
    running = read(tmp_path, "")
    found = change(running, read(tmp_path, "[scheduler]\npolicy = 'vllm'\n"))
    assert (found.changed, found.needs_restart) == (("scheduler.policy",), ())
    assert found.loaded.config.scheduler.max_batch_tokens == 512


@pytest.mark.parametrize("policy", ["sarathi", "orca"])
def test_a_flag_still_wins(tmp_path: Path, policy: str) -> None:
    running = read(tmp_path, "", scheduler__policy=policy)
    new = read(tmp_path, "[scheduler]\npolicy = 'srtf'\n", scheduler__policy=policy)
    assert change(running, new).changed == ()


def test_keys_come_and_go(tmp_path: Path) -> None:
    running = read(tmp_path, "")
    new = read(tmp_path, f"[[key]]\nname = 'alice'\nhash = '{'0' * 64}'\n")
    found = change(running, new)
    assert found.changed == ("key",)
    assert [key.name for key in found.loaded.config.key] == ["alice"]
    assert change(found.loaded, read(tmp_path, "")).loaded.config.key == ()
