"""`llmd check` on a small model folder: values, shape, and terms that add up."""

import json
import os
import re
import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import pytest
from huggingface_hub import constants
from safetensors.numpy import save_file

from daemon.cli.main import main
from daemon.config import cuda, host_pool
from daemon.control import client
from daemon.models import fitting
from daemon.runtime import preflight
from tests.config.driver import LARGE, SMALL, build_driver, pretend
from tests.e2e.live import free_port
from tests.shapes import tiny_config
from tests.tui import scenario

pytestmark = pytest.mark.usefixtures("quick_python")

CONFIG = tiny_config(
    intermediate_size=128, vocab_size=512, max_position_embeddings=1024, dtype="bfloat16"
)
FLOAT32_BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 4


CHECK = ("check", "--port", "0")
DARK = cuda.Card("NVIDIA X", "", (9, 0), 80 << 30)
"""A card whose free memory nobody tells."""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other daemon's socket, folders that nobody else writes, and no GPU."""
    monkeypatch.setenv(cuda.VISIBLE, "")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(client, "SERVICE_SOCKET", tmp_path / "none")


TOKENIZER = {"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return small_model(tmp_path / "small")


def small_model(folder: Path) -> Path:
    """A folder that looks like a model of `CONFIG`."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER), encoding="utf-8")
    layer = {f"self_attn.{name}_proj": (64, 64) for name in "qo"}
    layer |= {f"self_attn.{name}_proj": (32, 64) for name in "kv"}
    layer |= {"mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64), "mlp.down_proj": (64, 128)}
    layer |= {"input_layernorm": (64,), "post_attention_layernorm": (64,)}
    sides = {"model.embed_tokens": (512, 64), "lm_head": (512, 64), "model.norm": (64,)} | {
        f"model.layers.{number}.{name}": shape
        for number in range(2)
        for name, shape in layer.items()
    }
    tensors = {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in sides.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_values_come_with_their_sources(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "llmd.toml"
    file.write_text("[scheduler]\nmax_running = 4\n", encoding="utf-8")
    port = str(free_port())
    assert main(["check", "--config", str(file), "--model", str(model), "--port", port]) == 0
    table = capsys.readouterr().out.partition("\n\n")[0]
    lines = {line.split()[0]: line.split()[1:] for line in table.splitlines()}
    assert lines["scheduler.max_running"] == ["4", str(file)]
    assert lines["server.port"] == [port, "flag"]
    assert lines["memory.block_size"] == ["16", "default"]
    assert lines["control.socket"][0].endswith('llmd.sock"')


def test_json_has_all_that_the_text_says(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "llmd.toml"
    secret = "5" * 64
    file.write_text(
        f"[scheduler]\nmax_running = 4\n[[key]]\nname = 'alice'\nhash = '{secret}'\n",
        encoding="utf-8",
    )
    assert main([*CHECK, "--json", "--config", str(file), "--model", str(model)]) == 0
    out = capsys.readouterr().out
    assert secret not in out
    found = json.loads(out)
    assert found["ok"] and found["faults"] == [] and found["file"] == str(file)
    assert found["values"]["scheduler.max_running"] == {"value": 4, "source": str(file)}
    assert found["values"]["model.path"] == {"value": str(model), "source": "flag"}
    assert found["values"]["key"]["value"] == ["alice"]
    assert found["model"]["num_params"] == 139584
    (instance,) = found["instances"]
    assert (instance["name"], instance["pool"]["size"]["max_len"]) == ("cpu", 1024)


def test_json_has_the_kinds_of_layers_and_what_a_sequence_holds(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
    (model / "config.json").write_text(json.dumps(CONFIG | own | {"sliding_window": 128}))
    status = main([*CHECK, "--json", "--model", str(model)])
    found = json.loads(capsys.readouterr().out)
    assert status == 0, found["faults"]
    kind = {"kind": "window", "layers": 2, "page_tokens": 16, "window": 128}
    assert found["layout"] == [kind]
    # The blocks of 128 tokens, and two that are partly in front of them.
    assert found["kv_bytes_by_tokens"] == {"1024": 10 * FLOAT32_BLOCK_BYTES}


def test_every_fault_has_its_place_its_key_and_what_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "llmd.toml"
    file.write_text("[server]\nport = 70000\n[memory]\nblock_size = 3\n", encoding="utf-8")
    flags = ["check", "--config", str(file), "--policy", "lifo"]
    assert main(flags) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert lines[0] == f"llmd: {file}: server.port: must be at most 65535, got 70000"
    assert lines[1].startswith("llmd: command line: scheduler.policy: must be one of vllm, sarathi")
    assert main([*flags, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert not found["ok"] and found["values"] == {} and found["model"] is None
    assert [(one["source"], one["key"]) for one in found["faults"]] == [
        (str(file), "server.port"),
        ("command line", "scheduler.policy"),
        (str(file), "memory.block_size"),
    ]


def test_an_unknown_key_names_the_one_that_was_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "llmd.toml"
    file.write_text("[scheduler]\nmax_runing = 4\n", encoding="utf-8")
    assert main(["check", "--config", str(file)]) == 2
    said = f"llmd: {file}: scheduler.max_runing: unknown key; did you mean scheduler.max_running?\n"
    assert capsys.readouterr().err == said


def test_two_models_are_refused_in_the_file_and_as_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "llmd.toml"
    file.write_text("[[model]]\npath = '/a'\n[[model]]\npath = '/b'\n", encoding="utf-8")
    assert main(["check", "--config", str(file)]) == 2
    assert f"{file}: model: one daemon serves one model" in capsys.readouterr().err
    with pytest.raises(SystemExit) as exit_:
        main(["serve", "--model", "/a", "--model", "/b"])
    assert exit_.value.code == 2
    assert "--model is given twice: one daemon serves one model" in capsys.readouterr().err


def test_the_terms_add_up(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CHECK, "--model", str(model), "--set", "scheduler.max_running=4"]) == 0
    out = capsys.readouterr().out
    assert (
        "llama: 139,584 parameters stored as bfloat16, 2 layers, 4 heads (2 of keys) of 16" in out
    )
    assert f"{FLOAT32_BLOCK_BYTES / 1024:,.1f} KiB = 2 layers * 2 * 16 tokens * 2 kv heads" in out
    assert re.search(r"blocks +256 +\(all that max_running sequences", out)
    assert re.search(r"longest +1,024 tokens", out)


def test_of_layers_of_unlike_kinds_the_tokens_that_fit_and_the_pages_are_said(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {"model_type": "cwm", "architectures": ["CwmForCausalLM"], "head_dim": 16}
    own |= {"sliding_window": 128, "layer_types": ["full_attention", "sliding_attention"]}
    (model / "config.json").write_text(json.dumps(CONFIG | own))
    assert main([*CHECK, "--model", str(model), "--set", "scheduler.max_running=4"]) == 0
    out = capsys.readouterr().out
    # Each of the four has 64 pages of the full layer, and 10 of the other: 37 blocks of both.
    assert re.search(r"blocks +148 .* = 1\.2 MiB, 4,096 tokens of sequences of 1,024", out), out
    assert re.search(r"pages +296  of 4\.0 KiB, each of layers of one kind", out)
    assert re.search(r"held +296\.0 KiB by one sequence of 1,024 tokens", out)


def test_a_pool_of_8_bits_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CHECK, "--model", str(model), "--set", "memory.kv_dtype=int8"]) == 0
    said = "2.5 KiB = 2 layers * 2 * 16 tokens * 2 kv heads * 16 * 1 byte of int8, and a scale of 4"
    assert said in capsys.readouterr().out


def test_the_host_pool_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [*CHECK, "--model", str(model), "--kv-blocks", "8"]
    assert main(flags) == 0
    said = r"host pool +32  \(four times the KV pool\) = 0\.2 MiB, 8\.0 KiB a block"
    assert re.search(said, capsys.readouterr().out)
    assert main([*flags, "--set", "memory.compress=true"]) == 0
    assert re.search(r"host pool +102  .* 2\.5 KiB a block", capsys.readouterr().out)
    assert main([*flags, "--set", "memory.swap=recompute"]) == 0
    without = r"host pool +none  \(preempted sequences are not swapped\)"
    assert re.search(without, capsys.readouterr().out)
    assert main([*flags, "--set", "memory.host_bytes=100"]) == 1
    assert "does not hold one block of 8192 bytes" in capsys.readouterr().err


def test_an_override_replaces_the_formula(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CHECK, "--model", str(model), "--kv-blocks", "8"]) == 0
    assert re.search(r"longest +128 tokens", capsys.readouterr().out)


def test_a_gpu_that_cannot_be_asked_for_its_memory_is_said_so(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "cuda_devices", lambda: cuda.Devices((DARK,)))
    assert main([*CHECK, "--model", str(model), "--instance", "cuda:0"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"instance cuda0 on cuda:0\n +cores +any cpu .*\n +computes in +bfloat16", out)
    assert "the worker sizes its pool at its start" in out


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--kv-blocks", "1"], "the KV pool would have 1 blocks"),
        (["--kv-blocks", "8", "--set", "model.max_len=512"], "one sequence of 512 tokens"),
    ],
)
def test_a_pool_of_no_use_is_status_1(
    model: Path, arguments: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*CHECK, "--model", str(model), *arguments]) == 1
    assert fault in capsys.readouterr().err


def test_a_missing_model_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--model", str(tmp_path / "none")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("llmd: ")
    assert error.count("\n") == 1


def test_another_package_named_daemon_is_refused(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    info = tmp_path / "python_daemon-3.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: python-daemon\nVersion: 3.0\n")
    (info / "top_level.txt").write_text("daemon\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main([*CHECK, "--model", str(model)]) == 1
    assert "python-daemon also installs a package named daemon" in capsys.readouterr().err


def faults(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What `llmd check --json` found, and that it is the status."""
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] == (not found["faults"])
    return [
        f"{one['key']}: {one['text']}" if one["key"] else one["text"] for one in found["faults"]
    ]


def test_a_missing_gpu_and_a_pool_beyond_ram_are_told_together(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "cuda_devices", lambda: cuda.Devices((DARK,)))
    flags = [*CHECK, "--json", "--model", str(model), "--instance", "cpu", "cpu", "cuda:1"]
    flags += ["--kv-blocks", "100000000", "--set", "model.max_len=100000"]
    assert main([*flags, "--set", f"memory.host_bytes={1 << 60}"]) == 1
    told = faults(capsys)
    assert told[0] == "instance: cuda:1 is not there: this machine has cuda:0 alone"
    assert told[1].startswith("model.max_len = 100000 is beyond the model's context of 1024 tokens")
    assert told[2].startswith("memory.kv_blocks asks for 100,000,000 blocks of 8192 bytes, 762.94")
    assert told[3].startswith(f"memory.host_bytes = {1 << 60} for each of 3 instances is more than")
    assert len(told) == 4


def test_alike_instances_have_a_fault_once_whatever_ram_does_meanwhile(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = count(10**9)
    monkeypatch.setattr(host_pool, "available_ram_bytes", lambda: next(readings))
    flags = [*CHECK, "--json", "--model", str(model), "--instance", "cpu", "cpu"]
    assert main([*flags, "--kv-blocks", "8", "--set", f"memory.host_bytes={1 << 60}"]) == 1
    (told,) = faults(capsys)
    assert told.startswith("memory.host_bytes")


def test_a_model_by_name_is_looked_for_in_the_hubs_cache(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    assert main([*CHECK, "--json", "--model", "org/small"]) == 1
    (fault,) = faults(capsys)
    assert f"not in Hugging Face's cache {tmp_path / 'hub'}" in fault
    assert "hf download org/small --include" in fault
    repo = tmp_path / "hub" / "models--org--small"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text("c" * 40)
    (repo / "snapshots").mkdir()
    model.rename(repo / "snapshots" / ("c" * 40))
    assert main([*CHECK, "--json", "--model", "org/small"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"]["folder"] == str(repo / "snapshots" / ("c" * 40))


def test_nothing_is_converted_for_a_gpu_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "cuda_devices", lambda: cuda.Devices(fault="no driver"))
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    flags = ["--json", "--model", str(gguf), "--instance", "cuda:0"]
    assert main([*CHECK, *flags, "--set", f"daemon.cache={tmp_path / 'cache'}"]) == 1
    device, file = faults(capsys)
    assert device == "instance: cuda:0 cannot be used: no driver"
    assert file == f"{gguf} is not whole: it ends in its header, behind 4 bytes"
    assert not (tmp_path / "cache" / "models").exists()


@pytest.fixture
def listening() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def test_a_port_and_a_socket_that_are_taken_are_told(
    model: Path, tmp_path: Path, listening: int, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken.sock"
    flags = ["check", "--json", "--model", str(model), "--port", str(listening)]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(taken))
        server.listen()
        assert main([*flags, "--socket", str(taken)]) == 1
        assert faults(capsys) == [
            f"control.socket: another daemon answers at {taken}; --socket PATH gives this one a "
            "socket of its own",
            f"server.port: cannot listen on 127.0.0.1:{listening}: Address already in use; --port "
            "N listens on another port, --port 0 on a free one",
        ]
    assert main([*CHECK, "--model", str(model), "--socket", str(taken)]) == 0, "a dead one's"


@pytest.mark.parametrize(
    ("place", "fault"),
    [
        ("file/llmd.sock", "file is not a folder"),
        ("file", "file exists and is not a socket"),
        (
            "no/such/llmd.sock",
            "no/such: there is no such folder for the socket llmd.sock; --socket",
        ),
        ("x" * 120, "a socket's path has at most 107 bytes"),
    ],
)
def test_a_control_socket_that_cannot_be_made_is_told(
    model: Path, tmp_path: Path, place: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine", encoding="ascii")
    flags = [*CHECK, "--json", "--model", str(model), "--socket", str(tmp_path / place)]
    assert main(flags) == 1
    (told,) = faults(capsys)
    assert told.startswith("control.socket: ") and fault in told
    assert sorted(os.listdir(tmp_path)) == ["file", "small"], "nothing was made"


def test_folders_that_cannot_be_written_are_no_fault_but_told(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="ascii")
    folders = [
        "--set",
        f"journal.folder={tmp_path}/file",
        "--set",
        f"daemon.cache={tmp_path}/file/x",
    ]
    assert main([*CHECK, "--model", str(model), *folders]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told == [
        f"llmd: daemon.cache: {tmp_path}/file is not a folder: what is compiled is not kept "
        "(no fault)",
        f"llmd: journal.folder: {tmp_path}/file is not a folder: there is no journal (no fault)",
    ]


def test_cores_are_said(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0})
    flags = [*CHECK, "--model", str(model), "--instance", "cpu", "cpu"]
    assert main(flags) == 0
    said = re.findall(r"instance (.+) on cpu\n +cores +(.+)", capsys.readouterr().out)
    share = "any cpu, 1 thread (the one core for 2 workers, which share them)"
    assert said == [("cpu", share), ("cpu-2", share)]
    assert main([*flags, "--json"]) == 0
    first, _ = json.loads(capsys.readouterr().out)["instances"]
    assert (first["cores"]["threads"], first["cores"]["cpus"]) == (1, [])


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """The folder of a driver's libraries."""
    folder = tmp_path / "driver"
    folder.mkdir()
    return build_driver(folder)


def told(capsys: pytest.CaptureFixture[str], what: str | tuple[str, ...]) -> list[str]:
    """The lines of a report that begin so."""
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(what)]


def test_every_gpu_that_can_serves_and_each_says_why(
    model: Path, driver: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [*CHECK, "--model", str(model)]
    pretend(monkeypatch, driver, LARGE, LARGE)
    assert main(flags) == 0
    lines = told(capsys, ("instance", "cuda:", "the CPU"))
    room = "has 21.04 GiB of 24.00 GiB (memory.utilization = 0.9)"
    assert re.sub(r"needs 1\.\d+ GiB", "needs", "\n".join(lines)).splitlines() == [
        f"{'instance':<28} {'cuda0=cuda:0:mixed cuda1=cuda:1:mixed':<40} found",
        f"cuda:0 (NVIDIA RTX 4090) serves: needs, {room}",
        f"cuda:1 (NVIDIA RTX 4090) serves: needs, {room}",
        "instance cuda0 on cuda:0",
        "instance cuda1 on cuda:1",
    ]

    pretend(monkeypatch, driver, SMALL, LARGE)
    assert main(flags) == 0
    lines = told(capsys, ("instance ", "cuda:", "the CPU"))
    assert lines[1].startswith("cuda:0 (NVIDIA GT 1030) does not serve: too little memory: needs 1")
    assert lines[2].startswith("cuda:1 (NVIDIA RTX 4090) serves: ")
    assert lines[3:] == ["instance cuda1 on cuda:1"]

    assert main([*flags, "--instance", "cpu"]) == 0
    assert told(capsys, ("instance ", "cuda:", "the CPU"))[1:] == ["instance cpu on cpu"]


def test_it_says_what_the_machine_could_do_and_what_of_that_it_serves(
    model: Path, driver: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"DRIVER_CLOCK": "9751000", "DRIVER_BUS": "384", "DRIVER_NVLINKS": "4"}
    pretend(monkeypatch, driver, LARGE, LARGE, **sizes)
    flags = [*CHECK, "--model", str(model)]
    assert main(flags) == 0
    lines = told(capsys, ("  would give more: ", "  can be served: "))
    assert lines[-1].startswith("  can be served: cuda:0 cuda:1: sequences of up to 1,024 tokens, ")
    assert main([*flags, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["device"] for one in found["instances"]] == ["cuda:0", "cuda:1"]
    (ranks,) = [one for one in found["proposals"] if one["instances"] == ["cuda:0,1:tp2"]]
    assert ranks["longest"] == 1024 and ranks["token_s"] > 0.0


@pytest.mark.parametrize("instance", ["cuda:0,1:tp2", "cuda:0,1:pp2", "cuda:1,cpu:pp2"])
def test_several_devices_of_one_instance_are_checked_together(
    instance: str,
    model: Path,
    driver: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, driver, LARGE, LARGE)
    flags = [*CHECK, "--json", "--model", str(model), "--instance", instance]
    assert main([flag for flag in flags if flag != "--json"]) == 0
    lines = told(capsys, ("  rank ", "  nccl "))
    assert [line[:8] for line in lines if "rank" in line] == ["  rank 0", "  rank 1"]
    assert sum("MiB of sums over GPUs" in line for line in lines) == 2 * (":tp" in instance)
    assert main(flags) == 0
    (found,) = json.loads(capsys.readouterr().out)["instances"]
    assert {rank["size"]["num_blocks"] for rank in found["pool"]["ranks"]} == {
        found["pool"]["size"]["num_blocks"]
    }
    pretend(monkeypatch, driver, LARGE)
    assert main(flags) == 1
    faults = json.loads(capsys.readouterr().out)["faults"]
    said = "cuda:1 is not there: this machine has cuda:0 alone"
    assert [fault["text"] for fault in faults] == [said]


def test_roles_of_instances_that_compute_in_unlike_types_are_told(
    model: Path, driver: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, driver, LARGE)
    flags = [*CHECK, "--json", "--instance", "cuda:0:prefill", "cpu:decode", "--model", str(model)]
    assert main([*flags, "--dtype", "bfloat16"]) == 0
    assert capsys.readouterr().out.count("bfloat16 and float32 differ") == 2


def test_where_no_gpu_can_the_cpu_serves_and_json_says_why_too(
    model: Path, driver: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, driver, SMALL, "61:24576:24000:0:Tesla P40")
    assert main([*CHECK, "--json", "--model", str(model)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["device"] for one in found["instances"]] == ["cpu"]
    assert found["values"]["instance"] == {"value": ["cpu=cpu:mixed"], "source": "found"}
    why = "none of the 2 GPUs here can serve this model: too little memory, not supported"
    assert found["found"]["why_cpu"] == why
    assert [one["card"] for one in found["found"]["gpus"]] == ["NVIDIA GT 1030", "Tesla P40"]


def test_a_gpu_that_the_running_daemon_holds_comes_free(
    model: Path, driver: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, driver, "90:81920:512:0:NVIDIA H100")
    flags = [*CHECK, "--model", str(model)]
    assert main(flags) == 0
    (line,) = told(capsys, "cuda:0")
    assert "does not serve: taken: other programs hold 79.50 GiB of its memory" in line
    serving = scenario.snapshot(1)
    assert "cuda:0" in [one.device for one in serving.instances]
    monkeypatch.setattr(preflight, "fetch_snapshot", lambda _path: serving)
    assert main(flags) == 0
    (line,) = told(capsys, "cuda:0")
    assert line.startswith("cuda:0 (NVIDIA H100) serves: needs 1.")


def test_all_gpus_that_the_running_daemons_instance_holds_come_free(
    model: Path, driver: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, driver, *["90:81920:512:0:NVIDIA H100"] * 3)
    shown = scenario.snapshot(1)
    together = msgspec.structs.replace(shown.instances[0], device="cuda:0,2:tp2")
    serving = msgspec.structs.replace(shown, instances=(together,))
    monkeypatch.setattr(preflight, "fetch_snapshot", lambda _path: serving)
    assert main([*CHECK, "--model", str(model)]) == 0
    verdicts = [line.partition(") ")[2].partition(":")[0] for line in told(capsys, "cuda:")]
    assert verdicts == ["serves", "does not serve", "serves"]


def test_what_files_say_and_nobody_uses_is_noted(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It serves all the same: a token beyond the embedding is a 400, a bad template the chat's."""
    vocabulary = {f"t{number}": number for number in range(512)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    tokenizer = {
        "model": {**TOKENIZER["model"], "vocab": vocabulary},
        "added_tokens": [{"id": 512, "content": "<extra>", **flags}],
    }
    (model / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (model / "chat_template.jinja").write_text("{{ messages | length }}", encoding="utf-8")
    (model / "generation_config.json").write_text('{"num_beams": 4}', encoding="utf-8")
    (model / "config.json").write_text(json.dumps(CONFIG | {"a_field_of_tomorrow": 1}))
    assert main([*CHECK, "--model", str(model)]) == 0
    said = capsys.readouterr().err
    assert "beyond the model's vocabulary of 512: '<extra>' (512)" in said
    assert "what a user says does not come out of it" in said
    assert "generation_config.json says what has no effect here: num_beams 4 (no fault)" in said
    assert "fields of config.json that are of no use here: a_field_of_tomorrow (no fault)" in said


def test_weights_of_another_configuration_are_found_by_headers_and_fitting_ones_once(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [*CHECK, "--model", str(model), "--set", f"daemon.cache={tmp_path / 'own'}"]
    (model / "config.json").write_text(json.dumps(CONFIG | {"attention_bias": True}))
    assert main(flags) == 1
    assert "lacks 8 of its weights: model.layers.0.self_attn.k_proj" in capsys.readouterr().err
    (model / "config.json").write_text(json.dumps(CONFIG))
    assert main(flags) == 0
    monkeypatch.setattr(fitting, "_LIMIT_S", 0.0)
    assert main(flags) == 0  # kept
    (model / "config.json").write_text(json.dumps(CONFIG | {"head_dim": 32}))
    assert main(flags) == 1  # nothing can be asked in no time
    assert "its weights were not looked at in 0 s" in capsys.readouterr().err


def test_a_cut_file_is_no_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert main([*CHECK, "--model", str(model)]) == 1
    assert "model.safetensors is not whole" in capsys.readouterr().err


def test_a_tokenizer_that_no_library_reads_is_told(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process of the API would answer every request with a 503."""
    for wrong in ({"pre_tokenizer": 7}, {"model": {"vocab": {"a": 0}}}):
        (model / "tokenizer.json").write_text(json.dumps(TOKENIZER | wrong), encoding="utf-8")
        assert main([*CHECK, "--model", str(model)]) == 1
        said = capsys.readouterr().err
        assert "the tokenizer cannot be read: " in said and "tokenizer.json: " in said
