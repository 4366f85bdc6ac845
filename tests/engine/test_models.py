"""What is read of a model folder before anything is loaded, and where GGUF files are kept."""

import hashlib
import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from daemon.engine.resolve import resolve_here, shape_here
from daemon.models import embedded
from daemon.models.content import content_digest
from daemon.models.gguf_index import GgufIndex
from daemon.models.kept_folder import Told, is_converted
from daemon.models.resolved import Resolved
from daemon.models.resolving import ask_child, resolve
from daemon.models.shape import ModelError
from daemon.models.supported import check_folder, refusals

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "eos_token_id": 1,
    "dtype": "bfloat16",
}


ENCODERS = ("electra", "camembert", "ernie", "data2vec-text", "bert")
OWN_ATTENTION = ("falcon", "codegen", "gptj")


def folder_of(path: Path, config: dict[str, Any]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    (path / "tokenizer.json").write_text("{}")
    save_file({"a": torch.zeros(3, 4), "b": torch.zeros(5)}, path / "model.safetensors")
    return path


def test_a_shape_is_read_from_json_and_headers(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    shape = shape_here(folder)
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads) == (3, 4, 2)
    assert (shape.head_dim, shape.hidden_size, shape.vocab_size) == (16, 64, 100)
    assert (shape.context_len, shape.dtype, shape.eos_token_ids) == (256, "bfloat16", (1,))
    assert shape.num_params == 17
    assert shape.weight_bytes("float32") == 68
    assert shape.weight_bytes("bfloat16") == 34
    check_folder(folder, resolve_here(folder))


def test_generation_config_says_what_ends_an_answer(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 9]}')
    assert shape_here(folder).eos_token_ids == (7, 9)


def test_older_names_of_sizes_are_known(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 1, "n_positions": 64}
    config |= {"vocab_size": 10}
    shape = shape_here(folder_of(tmp_path / "m", config))
    assert (shape.num_kv_heads, shape.head_dim, shape.context_len) == (2, 16, 64)


def resolved(tmp_path: Path, config: dict[str, Any]) -> Resolved:
    return resolve_here(folder_of(tmp_path / "m", config))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mistral", "sliding_window": 128}, "sliding window of 128"),
        (
            {"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]},
            "linear_attention",
        ),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 64}, "MLA"),
        ({"mamba_d_state": 16}, "state-space"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"vision_config": {}}, "images"),
        ({"architectures": ["LlamaModel"]}, "not a causal language model"),
        ({"alibi": True}, "ALiBi"),
        ({"model_type": "bloom"}, "ALiBi"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"model_type": "gemma2"}, "caps attention scores"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantized by bitsandbytes"),
        ({"model_type": "t5gemma2_encoder"}, "no causal language model"),
        ({"model_type": "diffllama"}, "attend twice"),
        *(({"model_type": name}, "see those after") for name in ENCODERS),
        *(({"model_type": name}, "attention interface") for name in OWN_ATTENTION),
        ({"dtype": "float64"}, "stored as float64"),
        ({"per_layer_config": {1: {"num_key_value_heads": 4}}}, "differ in num_key_value_heads"),
    ],
)
def test_other_models_are_refused_by_what_they_do(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    found = list(refusals(resolved(tmp_path, {**LLAMA, **change})))
    assert any(words in reason for reason in found), found


def test_defaults_of_a_type_count_as_if_they_were_said(tmp_path: Path) -> None:
    """A folder of mistral without the key has transformers' window of 4096 tokens."""
    config = {**LLAMA, "model_type": "mistral", "max_position_embeddings": 8192}
    assert "a sliding window of 4096 tokens" in next(refusals(resolved(tmp_path, config)))


def test_legacy_names_are_resolved_first(tmp_path: Path) -> None:
    """phi3 called its factors by length "su" and "yarn" once; they are what is longrope now."""
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    config = {**LLAMA, "model_type": "phi3", "original_max_position_embeddings": 64}
    config |= {"rope_scaling": {"type": "yarn", **factors}}
    config |= {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 1}
    assert "length (longrope)" in next(refusals(resolved(tmp_path, config)))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"sliding_window": None},
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral"},
        {"model_type": "mistral", "sliding_window": 256},
        {"model_type": "qwen2", "sliding_window": 128, "use_sliding_window": False},
        {"model_type": "qwen3", "sliding_window": 128, "layer_types": ["full_attention"] * 3},
        {"model_type": "gpt_neox"},
    ],
)
def test_a_window_that_hides_nothing_is_fine(change: dict[str, Any], tmp_path: Path) -> None:
    assert list(refusals(resolved(tmp_path, {**LLAMA, **change}))) == []


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"model_type": "gpt_bigcode", "n_embd": 64, "n_head": 4}, 1),
        ({"model_type": "gpt_bigcode", "n_embd": 64, "n_head": 4, "multi_query": False}, 4),
        ({"model_type": "falcon", "num_attention_heads": 4, "hidden_size": 64}, 1),
        ({"model_type": "falcon", "num_attention_heads": 4, "multi_query": False}, 4),
        ({"model_type": "falcon", "num_kv_heads": 2, "new_decoder_architecture": True}, 2),
        ({"model_type": "llama", "num_attention_heads": 4}, 4),
    ],
)
def test_heads_of_keys_are_counted_as_the_models_do(
    config: dict[str, Any], heads: int, tmp_path: Path
) -> None:
    assert resolved(tmp_path, config).num_kv_heads == heads


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "tomorrow"}, "does not know the model type 'tomorrow'"),
        ({"model_type": None}, "does not say model_type"),
        ({"num_attention_heads": "four"}, "does not take it for a llama"),
        ({"rope_scaling": {"rope_type": "nobody"}}, r"of an unknown kind \(nobody\)"),
        ({"num_attention_heads": 0}, "does not take it for a llama"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(
    change: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path / "m", {**LLAMA, **change})
    with pytest.raises(ModelError, match=words) as raised:
        check_folder(folder, resolve_here(folder))
    assert str(folder) in str(raised.value) and "\n" not in str(raised.value)


class Asked:
    """Answers as the child process would, and counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, folder: Path) -> Resolved:
        self.count += 1
        return resolve_here(folder)


def test_a_configuration_is_resolved_once(tmp_path: Path) -> None:
    folder, cache, ask = folder_of(tmp_path / "m", LLAMA), tmp_path / "cache", Asked()
    first = resolve(folder, cache, ask)
    assert resolve(folder, cache, ask) == first and ask.count == 1
    (folder / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 5}))
    assert resolve(folder, cache, ask).num_layers == 5 and ask.count == 2
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    resolve(folder, cache, ask)
    assert ask.count == 3


@pytest.mark.parametrize("text", [b"", b"{}", b"\0", b'{"key": "another", "resolved": {}}', None])
def test_a_kept_configuration_that_is_corrupt_or_foreign_is_asked_for(
    text: bytes | None, tmp_path: Path
) -> None:
    folder, cache, ask = folder_of(tmp_path / "m", LLAMA), tmp_path / "cache", Asked()
    first = resolve(folder, cache, ask)
    (kept,) = (cache / "configurations").iterdir()
    whole = kept.read_bytes()
    if text is None:  # another folder's answer under this one's name
        other = folder_of(tmp_path / "other", {**LLAMA, "hidden_size": 128})
        kept.unlink()
        resolve(other, cache, ask)
        (foreign,) = (cache / "configurations").iterdir()
        text = foreign.read_bytes()
    kept.write_bytes(text)
    before = ask.count
    assert resolve(folder, cache, ask) == first and ask.count == before + 1
    assert kept.read_bytes() == whole


def test_the_child_process_says_the_same(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    assert ask_child(folder) == resolve_here(folder)
    (folder / "config.json").write_text(json.dumps({**LLAMA, "model_type": "tomorrow"}))
    with pytest.raises(ModelError, match="does not know the model type 'tomorrow'"):
        ask_child(folder)


def test_missing_and_pickled_files_are_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    found = resolve_here(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        check_folder(folder, found)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors is missing"):
        check_folder(folder, found)
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="pickled"):
        check_folder(folder, found)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"config\.json does not hold a JSON object"):
        resolve_here(folder)


def test_an_index_may_not_leave_its_folder(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "m", LLAMA)
    index = {"weight_map": {"a": "../other/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="outside the folder"):
        shape_here(folder)


def write_conversion(target: Path) -> None:
    target.mkdir()
    (target / "config.json").write_text("{}")
    (target / "tokenizer.json").write_text("{}")
    (target / "gguf.json").write_bytes(msgspec.json.encode(GgufIndex(4, True, ())))
    save_file({"a": torch.ones(3)}, target / "model.safetensors")


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "gguf.json", "model.safetensors"]
)
def test_a_conversion_that_lost_something_is_made_anew(tmp_path: Path, name: str) -> None:
    gguf, num_calls = tmp_path / "model.gguf", 0
    gguf.write_bytes(b"GGUF")

    def convert(_source: Path, target: Path, _told: Told) -> None:
        nonlocal num_calls
        num_calls += 1
        write_conversion(target)

    def size_bytes() -> int:
        folder = embedded.model_folder(str(gguf), tmp_path / "cache", convert)
        return (folder / name).stat().st_size

    whole, path = size_bytes(), embedded.converted_folder(gguf, tmp_path / "cache") / name
    path.unlink()
    assert size_bytes() == whole and num_calls == 2
    os.truncate(path, whole - 1 if name.endswith("safetensors") else 0)
    assert size_bytes() == whole and num_calls == 3
    assert size_bytes() == whole and num_calls == 3


def test_a_cache_that_takes_nothing_is_named(tmp_path: Path) -> None:
    gguf, cache = tmp_path / "model.gguf", tmp_path / "cache"
    gguf.write_bytes(b"GGUF")
    cache.write_text("no folder")
    with pytest.raises(ModelError, match=rf"into {cache}/models: Not a directory; daemon\.cache"):
        embedded.model_folder(str(gguf), cache)


def test_starts_at_once_convert_once(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    calls: list[Path] = []

    def convert(source: Path, target: Path, _told: Told) -> None:
        calls.append(source)
        write_conversion(target)

    found: list[Path] = []

    def find() -> None:
        found.append(embedded.model_folder(str(gguf), tmp_path / "cache", convert))

    threads = [threading.Thread(target=find) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [gguf]
    assert len(set(found)) == 1 and (found[0] / "config.json").exists()
    gguf.write_bytes(b"GGU2")
    assert embedded.converted_folder(gguf, tmp_path / "cache") != found[0]


def test_a_new_cache_begins_with_what_the_installation_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the embedded model alone; what is not whole, or of another content, is converted."""
    gguf, installed = tmp_path / "embedded.gguf", tmp_path / "installed"
    gguf.write_bytes(b"GGUF")
    monkeypatch.setattr(embedded, "embedded_gguf", lambda: gguf)
    monkeypatch.setattr(embedded, "INSTALLED", installed)
    calls: list[Path] = []

    def convert(source: Path, target: Path, _told: Told) -> None:
        calls.append(source)
        write_conversion(target)

    def found(cache: str) -> Path:
        return embedded.model_folder("", tmp_path / cache, convert)

    whole = found("first")
    (tmp_path / "first" / "configurations").mkdir()
    (tmp_path / "first" / "configurations" / "key.json").write_text("{}")
    embedded.keep_installed(tmp_path / "first")
    assert found("second").name == whole.name and calls == [gguf], "it was copied"
    assert (tmp_path / "second" / "configurations" / "key.json").read_text() == "{}"
    assert [one.name for one in (installed / "models").iterdir()] == [whole.name], "no lock"
    (installed / "models" / whole.name).chmod(0o555)
    assert (found("read-only").stat().st_mode & 0o777) == 0o755
    (installed / "models" / whole.name).chmod(0o755)
    left = {one.name for one in (tmp_path / "second" / "models").iterdir()}
    assert left == {whole.name}, "no halves are left"
    (installed / "models" / whole.name / "tokenizer.json").unlink()
    assert is_converted(found("third")) and len(calls) == 2
    gguf.write_bytes(b"GGU2")
    found("fourth")
    assert len(calls) == 3
    shutil.rmtree(installed)
    installed.write_text("no folder")
    found("fifth")
    assert len(calls) == 4
    (other := tmp_path / "other.gguf").write_bytes(b"GGUF of another")
    embedded.model_folder(str(other), tmp_path / "sixth", convert)
    assert len(calls) == 5


def test_a_copy_elsewhere_is_not_converted_again(tmp_path: Path) -> None:
    calls: list[Path] = []

    def convert(source: Path, target: Path, _told: Told) -> None:
        calls.append(source)
        write_conversion(target)

    places = [tmp_path / "one" / "model.gguf", tmp_path / "two" / "renamed.gguf"]
    for number, place in enumerate(places):
        place.parent.mkdir()
        place.write_bytes(b"GGUF of one model")
        os.utime(place, (number, number))
    one, two = (embedded.model_folder(str(p), tmp_path / "cache", convert) for p in places)
    assert one == two and calls == places[:1]


def test_a_file_is_hashed_again_once_it_was_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, cache = tmp_path / "file", tmp_path / "cache"
    file.write_bytes(b"before")
    first = content_digest(file, cache)
    with monkeypatch.context() as patched:
        patched.setattr(hashlib, "file_digest", None)  # it is not read again
        assert content_digest(file, cache) == first
    then = file.stat()
    file.write_bytes(b"behind")
    os.utime(file, ns=(then.st_atime_ns, then.st_mtime_ns))  # of the same size and time
    assert content_digest(file, cache) != first
    (kept,) = (cache / "contents").iterdir()
    kept.write_bytes(b"{")
    file.write_bytes(b"before")
    assert content_digest(file, cache) == first


def test_conversions_of_former_versions_are_named_and_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gguf, models = tmp_path / "model.gguf", tmp_path / "cache" / "models"
    gguf.write_bytes(b"GGUF")
    former = [models / "model-0123456789ab", models / "model-0123456789abcdef-v1"]
    others = [models / "own folder", models / ".model-0123456789ab.lock"]
    for folder in former + others:
        folder.mkdir(parents=True)
    with caplog.at_level("INFO"):
        embedded.model_folder(
            str(gguf), tmp_path / "cache", lambda _source, target, _told: target.mkdir()
        )
    assert f"can be removed: rm -r {former[0]} {former[1]}" in caplog.text
    assert not any(str(one) in caplog.text for one in others)
    assert all(folder.exists() for folder in former)


def test_a_failed_conversion_leaves_no_folder(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"not one")
    with pytest.raises(ModelError, match="could not be converted"):
        embedded.model_folder(str(gguf), tmp_path / "cache")
    assert not embedded.converted_folder(gguf, tmp_path / "cache").exists()


def test_the_embedded_model_is_found_without_importing_it() -> None:
    import sys

    assert embedded.embedded_gguf().suffix == ".gguf"
    assert embedded.EMBEDDED_PACKAGE not in sys.modules
