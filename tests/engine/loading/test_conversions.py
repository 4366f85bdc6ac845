"""Where GGUF files are kept: conversions made once, whole or not at all, found by content."""

import hashlib
import os
import shutil
import struct
import threading
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from daemon.models import embedded
from daemon.models.content import content_digest
from daemon.models.gguf_index import GgufIndex
from daemon.models.kept_folder import Tell, is_converted
from daemon.models.shape import ModelError

GGUF = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)
"""A whole file, without fields and tensors."""


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
    gguf.write_bytes(GGUF)

    def convert(_source: Path, target: Path, _told: Tell) -> None:
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
    gguf.write_bytes(GGUF)
    cache.write_text("no folder")
    with pytest.raises(ModelError, match=rf"into {cache}/models: Not a directory; daemon\.cache"):
        embedded.model_folder(str(gguf), cache)


def test_starts_at_once_convert_once(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(GGUF)
    calls: list[Path] = []

    def convert(source: Path, target: Path, _told: Tell) -> None:
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
    gguf.write_bytes(GGUF + b"2")
    assert embedded.converted_folder(gguf, tmp_path / "cache") != found[0]


def test_a_new_cache_begins_with_what_the_installation_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the embedded model alone; what is not whole, or of another content, is converted."""
    gguf, installed = tmp_path / "embedded.gguf", tmp_path / "installed"
    gguf.write_bytes(GGUF)
    monkeypatch.setattr(embedded, "embedded_gguf", lambda: gguf)
    monkeypatch.setattr(embedded, "INSTALLED", installed)
    calls: list[Path] = []

    def convert(source: Path, target: Path, _told: Tell) -> None:
        calls.append(source)
        write_conversion(target)

    def found(cache: str) -> Path:
        return embedded.model_folder("", tmp_path / cache, convert)

    whole = found("first")
    for name in ("configurations", "trials"):
        (tmp_path / "first" / name).mkdir()
        (tmp_path / "first" / name / "key.json").write_text("{}")
    embedded.keep_installed(tmp_path / "first")
    assert found("second").name == whole.name and calls == [gguf], "it was copied"
    for name in ("configurations", "trials"):
        assert (tmp_path / "second" / name / "key.json").read_text() == "{}"
    assert [one.name for one in (installed / "models").iterdir()] == [whole.name], "no lock"
    (installed / "models" / whole.name).chmod(0o555)
    assert (found("read-only").stat().st_mode & 0o777) == 0o755
    (installed / "models" / whole.name).chmod(0o755)
    left = {one.name for one in (tmp_path / "second" / "models").iterdir()}
    assert left == {whole.name}, "no halves are left"
    (installed / "models" / whole.name / "tokenizer.json").unlink()
    assert is_converted(found("third")) and len(calls) == 2
    gguf.write_bytes(GGUF + b"2")
    found("fourth")
    assert len(calls) == 3
    shutil.rmtree(installed)
    installed.write_text("no folder")
    found("fifth")
    assert len(calls) == 4
    (other := tmp_path / "other.gguf").write_bytes(GGUF + b"another")
    embedded.model_folder(str(other), tmp_path / "sixth", convert)
    assert len(calls) == 5


def test_a_conversion_of_an_earlier_version_is_not_copied_from_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a log that says it can be removed says so again after it was."""
    (tmp_path / "installed" / "models").mkdir(parents=True)
    former = tmp_path / "installed" / "models" / f"embedded-{'0' * 16}-v1"
    write_conversion(former)
    monkeypatch.setattr(embedded, "INSTALLED", tmp_path / "installed")
    embedded.begin_with_installed(tmp_path / "cache")
    assert not (tmp_path / "cache" / "models" / former.name).exists()
    assert embedded.former_folders(tmp_path / "installed") == [former]


def test_a_copy_elsewhere_is_not_converted_again(tmp_path: Path) -> None:
    calls: list[Path] = []

    def convert(source: Path, target: Path, _told: Tell) -> None:
        calls.append(source)
        write_conversion(target)

    places = [tmp_path / "one" / "model.gguf", tmp_path / "two" / "renamed.gguf"]
    for number, place in enumerate(places):
        place.parent.mkdir()
        place.write_bytes(GGUF + b"one model")
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
    gguf.write_bytes(GGUF)
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
    with pytest.raises(ModelError, match="is not a GGUF file"):
        embedded.model_folder(str(gguf), tmp_path / "cache")
    assert not (tmp_path / "cache" / "models").exists()


def test_the_embedded_model_is_found_without_importing_it() -> None:
    import sys

    assert embedded.embedded_gguf().suffix == ".gguf"
    assert embedded.EMBEDDED_PACKAGE not in sys.modules
