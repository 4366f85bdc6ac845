"""The planner process's part beside a served control socket and a journal."""

import argparse
import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from pathlib import Path

import msgspec
import pytest

from daemon.control.client import ControlError
from daemon.control.orders import RefusalError
from daemon.control.server import ControlServer
from daemon.core.values.snapshot import FlipStatus
from daemon.lab.autoplan.from_journal import seen_in
from daemon.lab.autoplan.pilot import SettingsForecast
from daemon.lab.autoplan.process import (
    LivePlanner,
    may_split,
    only_flipped_by_itself,
    settings_of,
)
from daemon.lab.autoplan.search import SeenRequests, SettingsSearch
from daemon.lab.autoplan.settings import LiveSettings
from daemon.lab.autoplan.simulated import seen_of
from daemon.lab.planner.errors import PlannerError
from daemon.lab.simulator.journal import read_incident
from daemon.lab.simulator.run import Options, prepare, run
from daemon.protocol.control import Flipped, RolesStatus, Snapshot
from daemon.state.role import Role
from tests.cli import served
from tests.control.orders import Written
from tests.lab.autoplan.test_driving import SLO, START, grown, scenario
from tests.lab.planner.toys import toy_units

END_S = 44.0
SEARCH_S = 20.0
"""What a search takes: a trial begins behind it."""


IN_FORCE = [START.policy]
"""The policy of snapshots."""


def snapshot() -> Snapshot:
    """A ready daemon of one instance."""
    served.CHOSEN[:] = IN_FORCE
    one = served.instance("toy", "ready", 1.0)
    return msgspec.structs.replace(served.snapshot(), instances=(one,), ready=True, max_len=256)


@contextmanager
def serving(folder: Path, shown: Callable[[], Snapshot], written: Written) -> Iterator[None]:
    """A served control socket."""
    loop, is_up = asyncio.new_event_loop(), threading.Event()

    async def serve(stop: asyncio.Event) -> None:
        server = ControlServer(folder / "llmd.sock", shown, written)
        await server.start()
        is_up.set()
        await stop.wait()
        await server.close()

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(stop),))
    thread.start()
    assert is_up.wait(10)
    yield
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Written]:
    """The orders that a served control socket gets."""
    written = Written()
    with serving(tmp_path, snapshot, written):
        yield written
    IN_FORCE[:] = [START.policy]


def test_a_journal_shows_what_a_run_shows(tmp_path: Path) -> None:
    prepared = prepare(scenario(toy_units(tmp_path, 1)[0]), grown(5.0, 10.0))
    log = run(prepared, Options(journal=tmp_path))
    from_run = seen_of(log.requests, SLO, 100.0)
    from_journal = seen_in(read_incident(tmp_path / "journal.llmd"), SLO, 100.0)
    assert from_journal.prompt_tokens.tolist() == from_run.prompt_tokens.tolist()
    assert from_journal.output_tokens.tolist() == from_run.output_tokens.tolist()
    assert from_journal.ended.all() and from_run.ended.all()
    assert from_journal.attainment == pytest.approx(from_run.attainment, abs=0.02)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The journal's folder of a load that another policy serves better."""
    folder = tmp_path_factory.mktemp("journal")
    truth = toy_units(folder, 1)[0]
    run(prepare(scenario(truth), grown(1.0, 44.0, 34.0)), Options(journal=folder))
    return folder


@contextmanager
def planner(folder: Path, clock: Callable[[], float], journal: Path) -> Iterator[LivePlanner]:
    """A planner behind the journal's load. Its profile is of a machine three times as fast, on
    which any policy would do: the journal's steps put it right.
    """
    unit = toy_units(folder, 1, device="fast", faster=3.0)[0]
    arguments = argparse.Namespace(
        socket=folder / "llmd.sock",
        journal=journal,
        profile=unit.profile,
        period_s=40.0,
        slo_ttft=SLO.ttft_s,
        slo_tpot=SLO.tpot_s,
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield LivePlanner(arguments, folder, theirs, clock)


def test_orders_go_over_the_control_socket(tmp_path: Path, orders: Written, journal: Path) -> None:
    """The daemon hears plan and prediction."""
    times_s = chain((END_S,), repeat(END_S + SEARCH_S))
    with planner(tmp_path, lambda: next(times_s), journal) as live:
        note = live.look()
    assert note.startswith("changed: vllm")
    assert orders.orders in (["sarathi"], ["gittins"])
    assert live.status(note).applied_s == END_S + SEARCH_S


def test_what_an_operator_chose_during_a_search_is_not_overridden(
    tmp_path: Path, orders: Written, journal: Path
) -> None:
    def clock() -> float:
        IN_FORCE[:] = ["static"]  # behind the look's first snapshot
        return END_S

    with planner(tmp_path, clock, journal) as live:
        note = live.look()
    assert note.startswith("the settings were changed during the search")
    assert orders.orders == []
    assert live.status(note).words.startswith("vllm: ")  # no plan


class Obedient(Written):
    """Two instances that show what was ordered; flips of `refuses` are refused."""

    def __init__(self) -> None:
        super().__init__()
        self.policy, self.roles = START.policy, {"one": Role.MIXED, "two": Role.MIXED}
        self.refuses: set[str] = set()

    def choose_policy(self, policy: str, instance: str = "") -> None:
        super().choose_policy(policy, instance)
        self.policy = policy

    async def flip(self, instance: str, role: str, wait_s: float) -> Flipped:
        if instance in self.refuses:
            raise RefusalError(f"the worker of {instance} is not ready")
        self.roles[instance] = Role(role)
        return await super().flip(instance, role, wait_s)

    def snapshot(self) -> Snapshot:
        one = served.instance("one", "ready", 1.0)
        instances = tuple(
            msgspec.structs.replace(one, name=name, role=role, policy=self.policy, device="cpu")
            for name, role in self.roles.items()
        )
        return msgspec.structs.replace(snapshot(), instances=instances)


SPLIT = LiveSettings(policy="gittins", roles=(Role.PREFILL, Role.DECODE))


def split_gains(
    _search: SettingsSearch, _seen: SeenRequests, present: LiveSettings, *_others: object
) -> list[SettingsForecast]:
    """Forecasts by which prompts and answers apart would keep all."""
    return [
        SettingsForecast(settings=present, shares=(0.1, 0.1)),
        SettingsForecast(settings=SPLIT, shares=(1.0, 1.0)),
    ]


def test_a_plan_is_given_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: Path
) -> None:
    """The orders before a refused one are taken back; what was refused is not tried again."""
    monkeypatch.setattr(SettingsSearch, "forecasts", split_gains)
    daemon = Obedient()
    daemon.refuses = {"two"}
    with (
        serving(tmp_path, daemon.snapshot, daemon),
        planner(tmp_path, lambda: END_S, journal) as live,
    ):
        with pytest.raises(ControlError, match="is not ready"):
            live.look()
        assert daemon.policy == START.policy and set(daemon.roles.values()) == {Role.MIXED}
        assert "gittins" in daemon.orders
        num_orders = len(daemon.orders)
        live.look()
    assert len(daemon.orders) == num_orders
    assert live.status("").settings == "vllm, 2 mixed"


def test_orders_that_could_not_be_taken_back_are_no_operators_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, journal: Path
) -> None:
    """A later look takes them back."""
    monkeypatch.setattr(SettingsSearch, "forecasts", split_gains)
    daemon = Obedient()

    async def once(instance: str, role: str, wait_s: float) -> Flipped:
        found = await Obedient.flip(daemon, instance, role, wait_s)
        daemon.refuses = {"one", "two"}
        return found

    daemon.flip = once  # type: ignore[method-assign]
    with (
        serving(tmp_path, daemon.snapshot, daemon),
        planner(tmp_path, lambda: END_S, journal) as live,
    ):
        for _ in range(2):
            with pytest.raises(ControlError, match="is not ready"):
                live.look()
            assert daemon.roles["one"] is Role.PREFILL
        daemon.refuses = set()
        live.look()
        assert (daemon.policy, daemon.roles["one"]) == (START.policy, Role.MIXED)
    assert live.status("").settings == "vllm, 2 mixed"


def test_settings_that_no_plan_has_are_said() -> None:
    one = snapshot().instances[0]
    other = msgspec.structs.replace(one, policy="gittins")
    mixed = msgspec.structs.replace(snapshot(), instances=(one, other))
    with pytest.raises(PlannerError, match="policies of their own"):
        settings_of(mixed)
    small = msgspec.structs.replace(one, chosen_budget=64)
    with pytest.raises(PlannerError, match="budgets of their own"):
        settings_of(msgspec.structs.replace(snapshot(), instances=(one, small)))
    assert settings_of(msgspec.structs.replace(snapshot(), instances=(small,))).budget == 64
    cpu, ranks = (msgspec.structs.replace(one, device=text) for text in ("cpu", "cpu:tp2"))
    for unlike in ((one, cpu), (cpu, ranks)):
        with pytest.raises(PlannerError, match="unlike devices"):
            settings_of(msgspec.structs.replace(snapshot(), instances=unlike))
    by_load = msgspec.structs.replace(snapshot(), roles=RolesStatus(mode="auto", present="1:1"))
    assert settings_of(by_load).mode == "auto"
    assert settings_of(by_load).roles == (Role.MIXED,)


def test_roles_that_a_hand_has_set_stay() -> None:
    """By the configuration, by a flip beside automatic roles, and where instances have none."""
    replace = msgspec.structs.replace
    one = replace(snapshot().instances[0], role=Role.MIXED, device="cpu")
    two = replace(snapshot(), instances=(one, one))
    assert may_split(two)
    first = replace(one, role=Role.PREFILL)
    assert not may_split(replace(two, instances=(first, replace(one, role=Role.DECODE))))
    auto = RolesStatus(mode="auto")
    assert may_split(replace(two, instances=(first, one), roles=auto))
    assert not may_split(replace(two, roles=replace(auto, pinned=("toy",))))
    assert may_split(replace(two, instances=(one, replace(one, node="a"))))


def test_a_flip_by_the_daemon_itself_is_no_operators_choice(tmp_path: Path) -> None:
    """The mixed pool's flips are told apart from a hand's, which end a plan."""
    replace = msgspec.structs.replace
    one = replace(snapshot().instances[0], name="one", role=Role.PREFILL, device="cpu")
    two = replace(one, name="two", role=Role.DECODE)
    shown = replace(snapshot(), instances=(one, two))
    before = LiveSettings(policy=one.policy, roles=(Role.DECODE, Role.DECODE))
    here = settings_of(shown)
    times = {"age_s": 1.0, "flip_s": 0.1, "clear_s": 0.1, "idle": False}

    def flipped(*whys: str) -> Snapshot:
        flips = [
            FlipStatus(number, "one", Role.DECODE, Role.PREFILL, why, **times)
            for number, why in enumerate(whys, 1)
        ]
        return replace(shown, flips=tuple(flips))

    assert only_flipped_by_itself(flipped("pools: 40 s in the mixed pool"), before, here)
    assert only_flipped_by_itself(flipped("operator", "pools: 40 s"), before, here)
    assert not only_flipped_by_itself(flipped("pools: 40 s", "operator"), before, here)
    assert not only_flipped_by_itself(flipped(), before, here)
    other = replace(before, policy="static")
    assert not only_flipped_by_itself(flipped("pools: 40 s"), other, here)
