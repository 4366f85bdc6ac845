"""An operator's orders: whole, or refused with a reason and nothing changed."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.base import notify
from daemon.config.load import Loaded, load
from daemon.control.orders import RefusalError
from daemon.protocol import api as protocol
from daemon.protocol.api import RequestRejected
from daemon.runtime.gpus import GpuWatch
from daemon.runtime.operations import Operations
from daemon.runtime.serving import ServingStatus
from daemon.runtime.status import DaemonStatus
from tests.runtime.ends import SERVED, House, generate, parts_of, until

Build = Callable[..., House]
CPU = "[[instance]]\ndevice = 'cpu'\n"


class Operated:
    """A house whose orders are carried out, over a configuration file of its own."""

    def __init__(self, folder: Path, house: House, text: str = "", starting: bool = False) -> None:
        self.file = folder / "llmd.toml"
        self.write(text)
        self.parts = parts_of(self.read(), house.link)
        self.status = DaemonStatus(self.parts)
        if not starting:
            self.status = ServingStatus(self.parts, "", SERVED, house.runtime, GpuWatch(()))
        self.operations = Operations(self.parts, self.read, lambda: self.status)
        self.operations.tell_settings()
        self.status.tell()
        if not starting:
            house.ready()

    def write(self, text: str) -> None:
        self.file.write_text(text, encoding="utf-8")

    def read(self) -> Loaded:
        return load(self.file, {"memory.block_size": 8, "model.name": "tiny"})


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the service manager is told."""
    words: list[str] = []
    monkeypatch.setattr(notify, "reloading", lambda: words.append("reloading"))
    monkeypatch.setattr(notify, "ready", lambda text: words.append(f"ready: {text}"))
    monkeypatch.setattr(notify, "status", words.append)
    return words


async def test_what_can_change_changes_everywhere(
    house_of: Build, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    house = house_of()
    operated = Operated(tmp_path, house)
    operated.status.started = True
    level = logging.getLogger().level
    monkeypatch.setenv("LLMD_LOG_LEVEL", "info")  # what children inherit is put back
    operated.write(
        "[scheduler]\npolicy = 'srtf'\nmax_waiting = 3\nstarve_s = 0.5\nmax_pause_s = 2.5\n"
        "pair = 'arrival'\nmixed_pool = true\n"
        "[server]\nkeepalive_s = 4.0\ncors_origins = ['http://a']\nport = 9\n"
        "[daemon]\nlog_level = 'error'\ndrain_s = 1.0\n"
        f"[[key]]\nname = 'alice'\nhash = '{'0' * 64}'\n"
    )
    try:
        answer = await operated.operations.reload()
        assert logging.getLogger().level == logging.ERROR
    finally:
        logging.getLogger().setLevel(level)
    assert answer.file == str(operated.file)
    assert set(answer.changed) == {
        *("scheduler.policy", "scheduler.max_waiting", "scheduler.starve_s", "daemon.drain_s"),
        *("scheduler.max_pause_s", "scheduler.pair", "scheduler.mixed_pool"),
        *("server.keepalive_s", "server.cors_origins", "daemon.log_level", "key"),
    }
    assert answer.needs_restart == ("server.port",)
    core = house.runtime.core
    assert (core.config.max_waiting, core.config.starve_s) == (3, 0.5)
    assert core.config.max_pause_s == 2.5
    assert core.config.pair == "arrival" and core.config.mixed_pool
    assert core.instances[0].scheduler.policy.name == "srtf"
    assert operated.parts.config.daemon.drain_s == 1.0
    assert operated.parts.config.server.port == 8000
    await until(lambda: len(house.api.of(protocol.Settings)) == 2)
    first, second = house.api.of(protocol.Settings)
    assert (first.keepalive_s, second) == (15.0, protocol.Settings(4.0, "error"))
    access = house.api.of(protocol.Access)[-1]
    assert access.cors_origins == ("http://a",) and [key.name for key in access.keys] == ["alice"]
    assert said == ["reloading", "ready: tiny at "]


async def test_a_policy_goes_to_one_instance_and_the_files_own_to_those_without(
    house_of: Build, tmp_path: Path
) -> None:
    house = house_of(instances=2)
    own, rest = house.runtime.core.instances
    text = (
        f"[[instance]]\ndevice = 'cpu'\nname = '{own.config.name}'\npolicy = 'mlfq'\n"
        f"[[instance]]\ndevice = 'cpu'\nname = '{rest.config.name}'\n"
    )
    operated = Operated(tmp_path, house, text=text)

    def policies() -> list[str]:
        return [one.scheduler.policy.name for one in (own, rest)]

    operated.operations.choose_policy("srtf", own.config.name)
    assert policies() == ["srtf", "sarathi"]
    with pytest.raises(RefusalError, match="unknown instance 'other'"):
        operated.operations.choose_policy("orca", "other")
    operated.write(f"{text}[scheduler]\npolicy = 'orca'\n")
    assert (await operated.operations.reload()).changed == ("scheduler.policy",)
    assert policies() == ["srtf", "orca"], "the first has a policy of its own in the file"
    operated.operations.choose_policy("vllm")
    assert policies() == ["vllm", "vllm"]


async def test_a_budget_goes_to_one_instance_or_all_and_to_none_above_its_own(
    house_of: Build, tmp_path: Path
) -> None:
    house = house_of(instances=2)
    operated = Operated(tmp_path, house)
    own, rest = house.runtime.core.instances
    most = own.limits.max_batch_tokens
    operated.operations.choose_budget(16, own.config.name)
    assert (own.step_tokens, rest.step_tokens) == (16, most)
    for tokens, name, said in (
        (most + 1, "", f"a step of {own.config.name} has {most} tokens at most, as configured"),
        (16, "other", "unknown instance 'other'"),
    ):
        with pytest.raises(RefusalError, match=said):
            operated.operations.choose_budget(tokens, name)
    operated.operations.choose_budget(8)
    assert (own.step_tokens, rest.step_tokens) == (8, 8)
    operated.operations.choose_budget(0)
    assert (own.step_tokens, rest.step_tokens) == (most, most)


async def test_a_broken_file_changes_nothing_and_no_answer_is_touched(
    house_of: Build, tmp_path: Path, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    house = house_of()
    operated = Operated(tmp_path, house)
    operated.status.started = True
    before = operated.parts.config
    house.paused = True
    house.api.send(generate(1, [1, 2, 3]))
    await until(lambda: bool(house.plans))
    endless = "[scheduler]\nmax_waiting = 3\nmax_pause_s = inf\n"
    for text in (endless, "[scheduler]\npolicy = 'lifo'\n", "max = = 3", "[x]\ny = 1\n"):
        operated.write(text)
        with pytest.raises(RefusalError, match=r"the configuration stays as it was: .*llmd\.toml"):
            await operated.operations.reload()
    operated.file.unlink()
    await operated.operations.hang_up()
    assert len(caplog.records) == 5
    said_last = f"the configuration stays as it was: {operated.file}: No such file or directory"
    assert caplog.records[-1].getMessage() == said_last
    assert operated.parts.config is before
    assert house.runtime.core.config.max_waiting == 1000
    assert said == ["reloading", "ready: tiny at "] * 5
    house.resume()
    await house.ended(1)


async def test_before_it_is_ready_a_reload_says_nothing_to_the_manager(
    house_of: Build, tmp_path: Path, said: list[str]
) -> None:
    """READY=1 would be taken for the end of its start."""
    operated = Operated(tmp_path, house_of(), CPU, starting=True)
    operated.write(f"{CPU}[scheduler]\npolicy = 'mlfq'\n")
    assert (await operated.operations.reload()).changed == ("scheduler.policy",)
    assert said == []
    assert operated.parts.config.scheduler.policy == "mlfq", "what the Core will be built with"
    assert operated.status.snapshot().instances[0].policy == "mlfq"


async def test_drain_finishes_what_runs_and_resume_takes_more(
    house_of: Build, tmp_path: Path, said: list[str]
) -> None:
    house = house_of()
    operated = Operated(tmp_path, house)
    operated.status.started = True
    house.paused = True
    house.api.send(generate(1, [1, 2, 3]))
    await until(lambda: bool(house.plans))
    operated.operations.drain()
    assert operated.status.draining and not operated.status.ready
    house.api.send(generate(2, [1, 2, 3]))
    await until(lambda: bool(house.api.of(RequestRejected)))
    house.resume()
    await house.ended(1)
    assert house.runtime.empty.is_set()
    operated.operations.resume()
    assert operated.status.ready and not house.runtime.empty.is_set()
    house.api.send(generate(3, [1, 2, 3]))
    await house.ended(2)
    assert [one.kind for one in house.api.of(RequestRejected)] == ["draining"]
    servings = [one.draining for one in house.api.of(protocol.Serving)]
    assert servings[-2:] == [True, False]
    assert said == [
        "draining: requests are refused until llmd ctl resume",
        "tiny at ",
    ]


async def test_a_start_that_was_drained_ends_when_requests_are_taken(
    house_of: Build, tmp_path: Path, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Its workers came up meanwhile; a service manager that hears no READY=1 ends the daemon."""
    operated = Operated(tmp_path, house_of())
    caplog.set_level(logging.INFO)
    operated.operations.drain()
    operated.status.announce()
    assert not operated.status.started and said == [
        "draining: requests are refused until llmd ctl resume"
    ]
    operated.operations.resume()
    assert operated.status.started and said[1:] == ["tiny at ", "ready: tiny at "]
    assert "tiny is served at " in caplog.messages
    operated.operations.drain()
    operated.operations.resume()
    assert said[4:] == ["tiny at "], "it is ready as before"


async def test_orders_come_too_early_too_late_or_to_a_daemon_without_a_file(
    house_of: Build, tmp_path: Path
) -> None:
    house = house_of()
    operated = Operated(tmp_path, house, starting=True)
    operations = operated.operations
    for order in (operations.drain, operations.resume, lambda: operations.choose_policy("srtf")):
        with pytest.raises(RefusalError, match=r"yet: starting$"):
            order()
    operated.parts.life.told_to_stop()
    for order in (operations.drain, operations.resume):
        with pytest.raises(RefusalError, match="is stopping"):
            order()
    with pytest.raises(RefusalError, match="is stopping"):
        await operations.reload()
    without = Operations(parts_of(load(), house.link), load, lambda: operated.status)
    with pytest.raises(RefusalError, match="started without --config"):
        await without.reload()
    assert operated.parts.life.fault == ""


async def test_a_core_that_takes_an_order_by_halves_is_hopeless(
    house_of: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = house_of()
    operated = Operated(tmp_path, house)

    def broken(_event: object) -> None:
        raise ZeroDivisionError("by halves")

    monkeypatch.setattr(house.runtime.core, "handle", broken)
    with pytest.raises(ZeroDivisionError):
        operated.operations.drain()
    assert operated.parts.life.fault == "internal error: by halves"
    monkeypatch.undo()


async def test_two_reloads_at_once_come_one_after_the_other(
    house_of: Build, tmp_path: Path
) -> None:
    operated = Operated(tmp_path, house_of())
    operated.write("[daemon]\ndrain_s = 2.0\n")
    answers = await asyncio.gather(*(operated.operations.reload() for _ in range(2)))
    assert sorted(len(answer.changed) for answer in answers) == [0, 1]


async def test_a_placement_is_chosen_and_the_files_own_comes_back_when_it_changes(
    house_of: Build, tmp_path: Path
) -> None:
    house = house_of(instances=2)
    operated = Operated(tmp_path, house)
    operated.operations.choose_placement("jsq")
    assert house.runtime.core.dispatch.placement.name == "jsq"
    assert operated.status.snapshot().placement == "jsq"
    assert (await operated.operations.reload()).changed == ()
    operated.write(f"{CPU}[scheduler]\nplacement = 'jsq'\n")
    assert (await operated.operations.reload()).changed == ("scheduler.placement",)
    assert house.runtime.core.dispatch.placement.name == "jsq"
    early = Operated(tmp_path, house, starting=True)
    with pytest.raises(RefusalError, match="no placement can be chosen yet"):
        early.operations.choose_placement("jsq")
