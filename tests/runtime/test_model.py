"""Finding the model: beside the loop, left behind when nobody waits any more."""

import asyncio
import re
import threading
import time
from pathlib import Path

import msgspec
import pytest

from daemon.config.core_shares import CoreShare
from daemon.config.cuda import Card, Devices
from daemon.config.load import load
from daemon.config.pool import plan_pool
from daemon.config.schema import Config, InstanceSpec, ModelConfig, SchedulerConfig
from daemon.engine.loading.resolve import resolve_here
from daemon.models.embedded import EMBEDDED_NAME
from daemon.models.shape import ModelError
from daemon.runtime import model
from daemon.runtime.model import UNKNOWN_WAKE_S, find_model, served_name
from daemon.runtime.start_times import StartTimes, start_name
from daemon.runtime.threads import in_thread
from tests.config.driver import LARGE, SMALL, build_driver, pretend
from tests.e2e.tiny import tiny_folder
from tests.hangs import HANG_S
from tests.runtime.ends import SERVED


async def test_the_result_comes_and_the_loop_goes_on() -> None:
    here = threading.get_ident()
    beats = 0

    def work() -> int:
        time.sleep(0.05)
        return threading.get_ident()

    async with asyncio.timeout(HANG_S):
        finding = asyncio.ensure_future(in_thread(work))
        while not finding.done():
            beats += 1
            await asyncio.sleep(0.005)
    assert await finding != here
    assert beats > 3


async def test_work_may_have_no_result() -> None:
    result: object = await in_thread(lambda: None)
    assert result is None


async def test_a_fault_belongs_to_who_waits() -> None:
    def work() -> None:
        raise ModelError("not a model")

    with pytest.raises(ModelError, match="not a model"):
        await in_thread(work)


async def test_who_stops_waiting_is_free_at_once() -> None:
    finish = threading.Event()
    finding = asyncio.ensure_future(in_thread(finish.wait))
    await asyncio.sleep(0.01)
    finding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await finding
    finish.set()
    await asyncio.sleep(0.01)


def test_worker_and_core_are_told_the_same_limits_of_each_instance() -> None:
    """A worker's slots and buffers have their size; a step that is larger would end it."""
    specs = (
        InstanceSpec("cpu", "mixed", "own", policy="orca", max_running=7, max_batch_tokens=96),
        InstanceSpec("cpu", "mixed", "rest"),
    )
    scheduler = SchedulerConfig(
        policy="vllm", placement="another", max_running=5, max_batch_tokens=64, prefill_chunk=16
    )
    config = Config(instance=specs, scheduler=scheduler)
    pools = tuple(plan_pool(config, SERVED.shape, spec, Devices()) for spec in specs)
    cores = (CoreShare(1, (0,)),) * 2
    served = msgspec.structs.replace(SERVED, instances=specs, pools=pools, cores=cores)
    told = served.configured(config, 0.0)
    assert [one.policy for one in told.instances] == ["orca", "vllm"]
    assert told.placement == "another"
    for index, wanted in enumerate([(7, 96), (5, 64)]):
        core, worker = told.instances[index], served.load(config, index)
        assert (core.max_running, core.max_batch_tokens) == wanted
        assert (worker.max_slots, worker.max_batch_tokens) == wanted


def test_an_asleep_instance_is_taken_to_wake_as_its_last_start_took(tmp_path: Path) -> None:
    specs = (
        InstanceSpec("cpu", "mixed", "awake"),
        InstanceSpec("cpu", "mixed", "asleep", asleep=True),
        InstanceSpec("cpu", "mixed", "known", asleep=True, wake_s=7.0),
    )
    pools = tuple(plan_pool(Config(), SERVED.shape, spec, Devices()) for spec in specs)
    cores = (CoreShare(1, (0,)),) * 3
    served = msgspec.structs.replace(SERVED, instances=specs, pools=pools, cores=cores)
    times = StartTimes(tmp_path / "starts.json")

    def wakes_in_s() -> list[float]:
        told = served.configured(Config(), 0.0, times=times)
        return [instance.wakes_in_s for instance in told.instances]

    assert wakes_in_s() == [0.0, UNKNOWN_WAKE_S, 7.0]
    times.keep(start_name(served.load(Config(), 1)), {"imports": 2.0, "weights": 0.5})
    assert wakes_in_s() == [0.0, 2.5, 7.0]


def test_a_chunk_is_the_policys_own_unless_somebody_wrote_it() -> None:
    def own(**written: object) -> list[bool]:
        return [chunk for chunk, _ in both(**written)]

    def both(**written: object) -> list[tuple[bool, bool]]:
        loaded = load(None, {key.replace("__", "."): value for key, value in written.items()})
        found = loaded.config.instance or (InstanceSpec("cpu"), InstanceSpec("cpu"))
        served = msgspec.structs.replace(SERVED, instances=found)
        told = served.configured(loaded.config, 0.0, loaded.written)
        return [(one.chunk_is_own, one.budget_is_own) for one in told.instances]

    two = [{"device": "cpu"}, {"device": "cpu", "prefill_chunk": 64}]
    assert own() == [True, True], "found, not written"
    assert own(instance=two) == [True, False]
    assert own(instance=two[:1], scheduler__policy="sarathi") == [True]
    assert own(scheduler__prefill_chunk=512) == [False, False]
    assert own(scheduler__max_batch_tokens=512) == [False, False]
    assert both(scheduler__prefill_chunk=512) == [(False, True)] * 2, "the budget is not the chunk"
    assert both(scheduler__max_batch_tokens=512) == [(False, False)] * 2


@pytest.mark.parametrize(
    ("policy", "device", "budget", "asked"),
    [
        ("packed", "cuda:0", 0, True),
        ("packed", "cuda:0", 700, False),  # somebody wrote it
        ("packed", "cpu", 0, False),
        ("sarathi", "cuda:0", 0, False),
    ],
)
def test_a_worker_measures_its_target_forward_size_where_that_counts(
    policy: str, device: str, budget: int, asked: bool
) -> None:
    written = {"scheduler.policy": policy, "scheduler.max_batch_tokens": budget}
    config = load(None, {name: value for name, value in written.items() if value}).config
    pool = plan_pool(config, SERVED.shape, InstanceSpec("cpu"), Devices())
    served = msgspec.structs.replace(
        SERVED, instances=(InstanceSpec(device),), pools=(pool,), cores=(CoreShare(1, (0,)),)
    )
    assert served.load(config, 0).finds_size == asked


@pytest.mark.parametrize(
    ("written", "device", "role", "tokens"),
    [
        ({}, "cuda:0", "mixed", 2048),  # the load may make it one that computes prompts
        ({"scheduler.roles": "mixed"}, "cuda:0", "mixed", 512),
        ({"scheduler.roles": "mixed"}, "cuda:0", "prefill", 2048),
        ({"scheduler.max_batch_tokens": 700}, "cuda:0", "prefill", 700),
        ({"scheduler.policy": "vllm"}, "cuda:0", "prefill", 2560),
        ({}, "cpu", "prefill", 512),
    ],
)
def test_a_worker_has_memory_for_the_chunks_of_a_prefill_instance(
    written: dict[str, object], device: str, role: str, tokens: int
) -> None:
    config = load(None, written).config
    pool = plan_pool(config, SERVED.shape, InstanceSpec("cpu"), Devices())
    pair = InstanceSpec(device, role=role), InstanceSpec("cuda:1", role="decode")
    share = CoreShare(1, (0,))
    served = msgspec.structs.replace(SERVED, instances=pair, pools=(pool,) * 2, cores=(share,) * 2)
    told = served.load(config, 0)
    assert told.max_batch_tokens == tokens and told.finds_size == (tokens == 2048)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("fails", [False, True])
def test_a_thread_that_outlives_the_loop_is_silent(fails: bool) -> None:
    finish = threading.Event()
    threads: list[threading.Thread] = []

    def work() -> None:
        threads.append(threading.current_thread())
        finish.wait(5)
        if fails:
            raise ModelError("too late")

    async def give_up() -> None:
        finding = asyncio.ensure_future(in_thread(work))
        while not threads:
            await asyncio.sleep(0.001)
        finding.cancel()

    asyncio.run(give_up())
    finish.set()
    threads[0].join(5)
    assert threads[0].daemon and not threads[0].is_alive()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (ModelConfig(), EMBEDDED_NAME),
        (ModelConfig(path="/models/tiny.gguf"), "tiny"),
        (ModelConfig(path="/models/folder"), "folder"),
        (ModelConfig(path="/models/Qwen2.5-0.5B"), "Qwen2.5-0.5B"),
        (ModelConfig(path="Qwen/Qwen2.5-0.5B"), "Qwen/Qwen2.5-0.5B"),
        (ModelConfig(path="Qwen/Qwen2.5-0.5B@main"), "Qwen/Qwen2.5-0.5B"),
        (ModelConfig(path="/models/folder", name="mine"), "mine"),
    ],
)
def test_the_name_that_clients_use(model: ModelConfig, name: str) -> None:
    assert served_name(Config(model=model)) == name


@pytest.mark.parametrize("path", [".", "./", "sub/..", "../tiny-folder", "../tiny-folder/."])
def test_a_folder_that_is_said_without_its_name_has_it(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny-folder" / "sub").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "tiny-folder")
    assert served_name(Config(model=ModelConfig(path=path))) == "tiny-folder"
    monkeypatch.chdir(tmp_path / "tiny-folder" / "sub")
    assert served_name(Config(model=ModelConfig(path=".."))) == "tiny-folder"


def test_serving_finds_its_gpus_and_logs_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, library = tiny_folder(tmp_path / "tiny"), tmp_path / "driver"
    library.mkdir()
    build_driver(library)
    settings = {"model.path": str(folder), "daemon.cache": str(tmp_path / "cache")}
    config = load(None, settings).config

    def log_of(*cards: str) -> list[tuple[str, str]]:
        pretend(monkeypatch, library, *cards)
        caplog.clear()
        served = find_model(config, resolve_here)
        devices.append([spec.device for spec in served.instances])
        assert served.configured(config, 0.0).instances[0].device == served.load(config, 0).device
        assert len(served.pools) == len(served.cores) == len(served.instances)
        heads = (re.split(": needs|: sequences", one.getMessage())[0] for one in caplog.records)
        return [*zip((one.levelname for one in caplog.records), heads, strict=True)]

    devices: list[list[str]] = []
    caplog.set_level("INFO", "daemon.runtime.model")
    assert log_of(LARGE, SMALL, LARGE) == [
        ("INFO", "cuda:0 (NVIDIA RTX 4090) serves"),
        ("INFO", "cuda:1 (NVIDIA GT 1030) does not serve: too little memory"),
        ("INFO", "cuda:2 (NVIDIA RTX 4090) serves"),
        ("INFO", "can be served: cuda:0 cuda:2"),
    ]
    assert log_of(SMALL) == [
        ("WARNING", "cuda:0 (NVIDIA GT 1030) does not serve: too little memory"),
        ("WARNING", "the CPU serves: the one GPU here cannot serve this model: too little memory"),
        ("INFO", "can be served: cpu"),
    ]
    assert log_of() == [
        ("INFO", "the CPU serves: the NVIDIA driver shows no GPU to this process"),
    ]
    assert devices == [["cuda:0", "cuda:2"], ["cpu"], ["cpu"]]
    assert config.instance == ()


def test_memory_that_is_being_freed_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"model.path": str(tiny_folder(tmp_path)), "daemon.cache": str(tmp_path / "cache")}
    config = load(None, settings).config
    monkeypatch.setattr(model, "FREEING_S", 0.0)

    def served(*free_gib: float) -> tuple[str, int]:
        """By what device, and how often the driver was asked: each time so much was free."""
        cards = [Card("A", "", (9, 0), 24 << 30, int(gib * 2**30)) for gib in free_gib]
        told = iter([Devices((one,)) for one in cards])
        monkeypatch.setattr(model, "ask_for", lambda _named: next(told))
        device = find_model(config, resolve_here).instances[0].device
        return device, len(free_gib) - len(list(told))

    assert served(1.0, 2.0, 20.0, 23.0) == ("cuda:0", 3)  # a killed daemon's
    assert served(1.0, 1.0, 23.0) == ("cpu", 2)  # another program's, which keeps it
    assert served(23.5, 23.5) == ("cuda:0", 1)


@pytest.mark.parametrize(
    ("instance", "devices", "layers"),
    [
        ({"device": "cuda:0,2", "parallel": "tp2"}, ["cuda:0", "cuda:2"], ()),
        ({"device": "cuda:0,2", "parallel": "pp2"}, ["cuda:2", "cuda:0"], (1, 1)),
        ({"device": "cuda:2,cpu", "parallel": "pp2"}, ["cpu", "cuda:2"], (1, 1)),
    ],
)
def test_each_rank_is_told_its_own_device(
    instance: dict[str, str],
    devices: list[str],
    layers: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, library = tiny_folder(tmp_path / "tiny"), tmp_path / "driver"
    library.mkdir()
    build_driver(library)
    pretend(monkeypatch, library, LARGE, SMALL, LARGE)
    settings = {"model.path": str(folder), "daemon.cache": str(tmp_path / "cache")}
    config = load(None, {**settings, "model.dtype": "bfloat16", "instance": [instance]}).config
    served = find_model(config, resolve_here)
    loads = served.loads(config, 0)
    assert [one.device for one in loads] == devices
    assert [one.dtype for one in loads] == [
        "float32" if device == "cpu" else "bfloat16" for device in devices
    ]
    assert {one.stage_layers for one in loads} == {layers}
    assert (
        len({one.num_blocks for one in loads}) == len({one.num_host_blocks for one in loads}) == 1
    )
    assert loads[0].num_blocks > 0 and served.configured(config, 0.0).instances[0].ahead
    assert len(served.cards[0]) == sum(device != "cpu" for device in devices)
