"""A model folder with something wrong in it is served or refused with a sentence; nothing crashes.

A child process tries the mutants, so that even a crash of a library is seen and counted.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from daemon.engine.loading.resolve import resolve_here, shape_here
from daemon.models.consistent import check_consistent, checked_shape
from daemon.models.shape import ModelError
from tests.e2e.tiny import tiny_folder
from tests.house.source import ROOT

pytestmark = pytest.mark.usefixtures("quick_python")

PROGRAM = """
import sys, tempfile
from pathlib import Path
from tests.engine.loading.mutants import mutant
from tests.engine.loading.tried_mutants import tried
good = Path(sys.argv[1])
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "m")
        what = mutant(good, folder, seed)
        print(what, "|", flush=True, end=" ")
        print(tried(folder), flush=True)
"""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("good") / "tiny")


@pytest.mark.parametrize(
    ("first", "last"), [(0, 12), pytest.param(12, 1040, marks=pytest.mark.soak)]
)
def test_no_mutant_crashes_anything(good: Path, first: int, last: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(good), str(first), str(last)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
    ends = [line.partition(" | ")[2] for line in lines]
    assert done.returncode == 0, f"{lines[-1]} crashed: {done.stderr[-2000:]}"
    assert len(ends) == last - first
    assert not [line for line, end in zip(lines, ends, strict=True) if end.startswith("unexpected")]
    refused = [end for end in ends if end.startswith("refused")]
    assert len(refused) > len(ends) / 3, "most damage must be seen"


def changed(good: Path, folder: Path, name: str, **values: Any) -> Path:
    """A copy of a good folder with other values in one of its JSON files."""
    folder.mkdir()
    for path in good.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    data = json.loads((folder / name).read_bytes())
    (folder / name).write_text(json.dumps({**data, **values}))
    return folder


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_hidden_layers": 10**9}, "num_layers must be in"),
        ({"num_hidden_layers": 3}, "config.json says 3 layers, the weights have 2"),
        ({"hidden_size": 996}, "hidden_size 996, and no weight has such a side"),
        ({"vocab_size": 77}, "vocab_size 77, and no weight has such a side"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 of keys"),
        ({"num_attention_heads": 0}, "transformers does not take it for a llama"),
        ({"head_dim": "8"}, "transformers does not take it for a llama"),
    ],
)
def test_a_shape_that_is_not_the_weights_is_refused(
    good: Path, tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    folder = changed(good, tmp_path / "m", "config.json", **values)
    with pytest.raises(ModelError, match=said):
        check_consistent(folder, shape_here(folder))


def test_text_that_is_no_text_is_refused(good: Path, tmp_path: Path) -> None:
    folder = changed(good, tmp_path / "m", "config.json", anything="\ud800")
    with pytest.raises(ModelError, match="a value of the wrong kind in its files"):
        checked_shape(folder, tmp_path, resolve_here)


def test_another_models_tokenizer_is_refused(good: Path, tmp_path: Path) -> None:
    size = shape_here(good).vocab_size
    data = json.loads((good / "tokenizer.json").read_bytes())
    data["model"]["vocab"]["a token of another model"] = size
    folder = changed(good, tmp_path / "m", "tokenizer.json", **data)
    said = f"is another model's: it has a token {size}, and this model's vocabulary has {size}"
    with pytest.raises(ModelError, match=said):
        check_consistent(folder, shape_here(folder))


GGUF_PROGRAM = """
import sys, tempfile
from pathlib import Path
from tests.engine.loading.gguf_mutants import mutant, tried
for seed in range(int(sys.argv[1]), int(sys.argv[2])):
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "tiny.gguf")
        print(mutant(path, seed), "|", flush=True, end=" ")
        print(tried(path, Path(place, "made")), flush=True)
"""


@pytest.mark.parametrize(
    ("first", "last"), [(0, 24), pytest.param(24, 700, marks=pytest.mark.soak)]
)
def test_no_gguf_file_crashes_anything(first: int, last: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GGUF_PROGRAM, str(first), str(last)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("seed ")]
    ends = [line.partition(" | ")[2] for line in lines]
    assert done.returncode == 0, f"{lines[-1]} crashed: {done.stderr[-2000:]}"
    assert len(ends) == last - first
    assert not [line for line, end in zip(lines, ends, strict=True) if end.startswith("unexpected")]
    assert len([end for end in ends if end.startswith("refused")]) > len(ends) / 2
