"""Models by name: found in a cache of the layout that downloads leave, or a command is said."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants

from daemon.models.embedded import model_folder
from daemon.models.hub import hub_folder, hub_name
from daemon.models.shape import ModelError

OLD, NEW = "a" * 40, "b" * 40
NAME = "org/Model-1.5"
SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
INDEX = json.dumps({"weight_map": dict(zip("abc", SHARDS, strict=True))})
SMALL = {"config.json": "{}", "tokenizer.json": "{}"}


def snapshot(cache: Path, commit: str, files: dict[str, str]) -> Path:
    """A commit's files, each a relative link to a blob, as downloads leave them."""
    repo = cache / "models--org--Model-1.5"
    folder = repo / "snapshots" / commit
    (repo / "blobs").mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True)
    for number, (name, text) in enumerate(files.items()):
        blob = repo / "blobs" / f"{commit[:8]}{number}"
        blob.write_text(text)
        (folder / name).symlink_to(os.path.relpath(blob, folder))
    return folder


def refer(cache: Path, ref: str, commit: str) -> None:
    path = cache / "models--org--Model-1.5" / "refs" / ref
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(commit)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_name_is_the_snapshot_that_its_branch_refers_to(cache: Path) -> None:
    old = snapshot(cache, OLD, {**SMALL, "model.safetensors": ""})
    new = snapshot(cache, NEW, {**SMALL, "model.safetensors": ""})
    refer(cache, "main", NEW)
    refer(cache, "refs/pr/1", OLD)
    assert model_folder(NAME, cache) == hub_folder(NAME) == new
    assert hub_folder(f"{NAME}@main") == hub_folder(f"{NAME}@{NEW}") == new
    assert hub_folder(f"{NAME}@refs/pr/1") == hub_folder(f"{NAME}@{OLD}") == old
    with pytest.raises(ModelError, match="not in Hugging Face's cache"):
        hub_folder(f"{NAME}@v2")


def test_a_folder_and_a_file_are_no_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("/org/name", "./name", "../name", "~/name", "org/name.gguf", "name", "a/b/c", ""):
        assert hub_name(path) == "", path
    assert hub_name("org/name") == hub_name("org/name@v1.0") == "org/name"
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "config.json").write_text("{}")
    assert hub_name("org/name") == ""
    assert model_folder("org/name", tmp_path) == tmp_path / "org" / "name"


def test_what_is_not_there_is_said_with_the_command_that_downloads_it(cache: Path) -> None:
    for path, revision in ((NAME, []), (f"{NAME}@v1", ["--revision", "v1"])):
        with pytest.raises(ModelError) as error:
            hub_folder(path)
        said, _, command = str(error.value).partition("downloads it: ")
        assert str(cache) in said
        patterns = ["model*.safetensors", "*.json", "*.jinja"]
        included = [word for pattern in patterns for word in ("--include", pattern)]
        words = ["hf", "download", NAME, *revision, *included, "--cache-dir", str(cache)]
        assert shlex.split(command) == words


@pytest.mark.parametrize(
    ("files", "lacking"),
    [
        ({**SMALL}, "model.safetensors"),
        ({"config.json": "{}", "model.safetensors": ""}, "tokenizer.json"),
        ({"model.safetensors": ""}, "config.json, tokenizer.json"),
        ({**SMALL, SHARDS[0]: ""}, "model.safetensors.index.json"),
        (
            {**SMALL, "model.safetensors.index.json": INDEX, SHARDS[1]: ""},
            f"{SHARDS[0]}, {SHARDS[2]}",
        ),
    ],
)
def test_what_an_incomplete_snapshot_lacks_is_named(
    cache: Path, files: dict[str, str], lacking: str
) -> None:
    snapshot(cache, NEW, files)
    refer(cache, "main", NEW)
    with pytest.raises(ModelError) as error:
        hub_folder(NAME)
    said, _, command = str(error.value).partition("; this completes it: ")
    assert f"lacks {lacking} (" in said and "cannot be served" in said
    assert command.startswith(f"hf download {NAME} ")


def test_a_link_whose_blob_is_gone_is_missing(cache: Path) -> None:
    index = {**SMALL, "model.safetensors.index.json": INDEX, **dict.fromkeys(SHARDS, "")}
    folder = snapshot(cache, NEW, index)
    refer(cache, "main", NEW)
    assert hub_folder(NAME) == folder
    (folder / SHARDS[1]).resolve().unlink()
    with pytest.raises(ModelError, match=rf"incomplete .*: it lacks {SHARDS[1]} "):
        hub_folder(NAME)


def test_pickled_weights_are_not_taken_for_a_broken_download(cache: Path) -> None:
    folder = snapshot(cache, NEW, {**SMALL, "pytorch_model.bin": ""})
    refer(cache, "main", NEW)
    assert hub_folder(NAME) == folder  # what is read next refuses them, and says why


@pytest.mark.parametrize(
    ("variable", "below"),
    [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("HOME", ".cache/huggingface/hub")],
)
def test_the_cache_is_where_the_hubs_own_variables_say(
    tmp_path: Path, variable: str, below: str
) -> None:
    cache = tmp_path / "cache"
    folder = snapshot(cache / below, NEW, {**SMALL, "model.safetensors": ""})
    refer(cache / below, "main", NEW)
    kept = {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HUGGINGFACE_HUB_CACHE"}
    environment = {key: value for key, value in os.environ.items() if key not in kept}
    program = f"from daemon.models.hub import hub_folder; print(hub_folder({NAME!r}))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment, variable: str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(folder)
