"""Default sampling as a folder's generation_config.json gives it."""

import json
from pathlib import Path

import pytest

from daemon.models.generation import DefaultSampling, default_sampling
from daemon.models.shape import ModelError


def folder_saying(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(text)
    return folder


SAID = {
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0.05,
    "repetition_penalty": 1.05,
    "max_new_tokens": 2048,
}


def test_what_the_models_folder_says_is_the_default(tmp_path: Path) -> None:
    folder = folder_saying(tmp_path, json.dumps(SAID | {"do_sample": False, "eos_token_id": 2}))
    found = default_sampling("auto", folder)
    assert found == DefaultSampling(
        temperature=0.6,
        top_k=20,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.05,
        max_tokens=2048,
    )
    assert "temperature 0.6" in str(found) and "max_tokens 2048" in str(found)


def test_nothing_said_is_neutral(tmp_path: Path) -> None:
    assert default_sampling("auto", tmp_path) == DefaultSampling()
    folder_saying(tmp_path, '{"temperature": null, "top_k": -1, "eos_token_id": [1, 2]}')
    found = default_sampling("auto", tmp_path)
    assert found == DefaultSampling() and str(found) == "neutral"


def test_llmd_is_neutral_whatever_the_folder_says(tmp_path: Path) -> None:
    assert default_sampling("llmd", folder_saying(tmp_path, "not JSON")) == DefaultSampling()


def test_another_folder_may_say_it(tmp_path: Path) -> None:
    model = folder_saying(tmp_path / "model", '{"temperature": 0.1}')
    other = folder_saying(tmp_path / "other", '{"top_p": 0.5}')
    assert default_sampling(str(other), model) == DefaultSampling(top_p=0.5)
    with pytest.raises(ModelError, match=r"none/generation_config\.json is missing"):
        default_sampling(str(tmp_path / "none"), model)


def test_a_file_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").symlink_to("/dev/zero")
    with pytest.raises(ModelError, match="more than"):
        default_sampling("auto", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"top_p": 0}',
        '{"temperature": "warm"}',
        '{"top_k": 1.5}',
        '{"max_new_tokens": 0}',
    ],
)
def test_what_no_request_could_say_is_refused(text: str, tmp_path: Path) -> None:
    folder = folder_saying(tmp_path, text)
    with pytest.raises(ModelError, match=r"generation_config\.json cannot be used: .*config llmd"):
        default_sampling("auto", folder)
