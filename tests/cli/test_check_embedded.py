"""`llmd check` where no model is named: what the installation made is not made again."""

import json
import struct
from pathlib import Path

import msgspec
import pytest

from daemon.cli import check
from daemon.cli.main import main
from daemon.models import embedded
from daemon.models.gguf_index import GgufIndex
from tests.cli.test_check import small_model


@pytest.fixture
def gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the place of the embedded one, and what an installation made of it."""
    file, installed = tmp_path / "small.gguf", tmp_path / "installed"
    file.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 0))
    for module in (embedded, check):
        monkeypatch.setattr(module, "embedded_gguf", lambda: file)
    monkeypatch.setattr(embedded, "INSTALLED", installed)
    made = small_model(embedded.converted_folder(file, installed))
    (made / "gguf.json").write_bytes(msgspec.json.encode(GgufIndex(4, True, ())))
    return file


def test_a_conversion_that_is_installed_is_copied_and_nothing_is_converted(
    gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    assert main(["check", "--port", "0", "--json", "--set", f"daemon.cache={cache}"]) == 0
    printed = capsys.readouterr()
    assert "converting" not in printed.err
    folder = Path(json.loads(printed.out)["model"]["folder"])
    assert folder == embedded.converted_folder(gguf, cache) and folder.is_dir()
