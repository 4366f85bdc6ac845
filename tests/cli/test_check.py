"""`llmd check` on a small model folder: values, shape, and terms that add up."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from daemon.cli.main import main

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 1024,
    "dtype": "bfloat16",
    "eos_token_id": 1,
}
FLOAT32_BLOCK_BYTES = 2 * 2 * 16 * 2 * 16 * 4


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {}}}', encoding="utf-8")
    save_file({"embed": np.zeros((512, 64), np.float32)}, folder / "model.safetensors")
    return folder


def test_values_come_with_their_sources(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "llmd.toml"
    file.write_text("[scheduler]\nmax_running = 4\n", encoding="utf-8")
    assert main(["check", "--config", str(file), "--model", str(model), "--port", "9000"]) == 0
    table = capsys.readouterr().out.partition("\n\n")[0]
    lines = {line.split()[0]: line.split()[1:] for line in table.splitlines()}
    assert lines["scheduler.max_running"] == ["4", str(file)]
    assert lines["server.port"] == ["9000", "flag"]
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
    assert main(["check", "--json", "--config", str(file), "--model", str(model)]) == 0
    out = capsys.readouterr().out
    assert secret not in out
    found = json.loads(out)
    assert found["ok"] and found["faults"] == [] and found["file"] == str(file)
    assert found["values"]["scheduler.max_running"] == {"value": 4, "source": str(file)}
    assert found["values"]["model.path"] == {"value": str(model), "source": "flag"}
    assert found["values"]["key"]["value"] == ["alice"]
    assert found["model"]["num_params"] == 32768
    (instance,) = found["instances"]
    assert (instance["name"], instance["pool"]["size"]["max_len"]) == ("cpu", 1024)


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
    assert main(["check", "--model", str(model), "--set", "scheduler.max_running=4"]) == 0
    out = capsys.readouterr().out
    assert "llama: 32,768 parameters stored as bfloat16, 2 layers, 4 heads (2 of keys) of 16" in out
    assert f"{FLOAT32_BLOCK_BYTES / 1024:,.1f} KiB = 2 layers * 2 * 16 tokens * 2 kv heads" in out
    assert re.search(r"blocks +256 +\(all that max_running sequences", out)
    assert re.search(r"longest +1,024 tokens", out)


def test_a_pool_of_8_bits_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--model", str(model), "--set", "memory.kv_dtype=int8"]) == 0
    said = "2.5 KiB = 2 layers * 2 * 16 tokens * 2 kv heads * 16 * 1 byte of int8, and a scale of 4"
    assert said in capsys.readouterr().out


def test_the_host_pool_is_said(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["check", "--model", str(model), "--kv-blocks", "8"]
    assert main(flags) == 0
    said = r"host pool +32  \(four times the KV pool\) = 0\.2 MiB, 8\.0 KiB a block"
    assert re.search(said, capsys.readouterr().out)
    assert main([*flags, "--set", "memory.compress=true"]) == 0
    assert re.search(r"host pool +102  .* 2\.5 KiB a block", capsys.readouterr().out)
    assert main([*flags, "--set", "memory.swap=recompute"]) == 0
    assert re.search(r"host pool +none  \(who gives way is not swapped\)", capsys.readouterr().out)
    assert main([*flags, "--set", "memory.host_bytes=100"]) == 1
    assert "does not hold one block of 8192 bytes" in capsys.readouterr().err


def test_an_override_replaces_the_formula(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--model", str(model), "--kv-blocks", "8"]) == 0
    assert re.search(r"longest +128 tokens", capsys.readouterr().out)


def test_a_gpu_that_cannot_be_asked_is_said_so(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["check", "--model", str(model), "--instance", "cuda:0"]) == 0
    out = capsys.readouterr().out
    assert "instance cuda0 on cuda:0 in bfloat16" in out
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
    assert main(["check", "--model", str(model), *arguments]) == 1
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
    assert main(["check", "--model", str(model)]) == 1
    assert "python-daemon also installs a package named daemon" in capsys.readouterr().err
