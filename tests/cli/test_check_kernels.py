"""`llmd check` tells which kernels of a card torch stands in for."""

import json
from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest

from daemon.cli.main import main
from daemon.config import cuda
from daemon.engine.verify.kernels import kept
from tests.cli.test_check import CHECK, DARK, alone, model  # noqa: F401 - fixtures
from tests.engine.verify.kernels.subject import SUBJECT

pytestmark = pytest.mark.usefixtures("quick_python")


def test_what_a_self_test_left_to_torch_is_told(
    model: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda, "cuda_devices", lambda: cuda.Devices((DARK,)))
    versions = {name: version(name) for name in ("torch", "triton")}
    card = kept.CardStack("Fake 9000", "9.0", "580.1", cuda="13.0", **versions)
    faults = {"decode": "it was not done within 60 s"}
    subject = msgspec.structs.replace(SUBJECT, device="cuda:0")
    for tried, told in (
        (card, faults),
        (msgspec.structs.replace(card, triton="0.1"), {"norm": "of other libraries"}),
    ):
        kept.keep(tmp_path, kept.Verdict(tried, subject, kept.code(), told))
    other = msgspec.structs.replace(subject, device="cuda:7")
    kept.keep(tmp_path, kept.Verdict(card, other, kept.code(), {"norm": "of another card"}))
    flags = ["--model", str(model), "--instance", "cuda:0", "--set", f"daemon.cache={tmp_path}"]
    assert main([*CHECK, "--json", *flags]) == 0
    notes = [one["text"] for one in json.loads(capsys.readouterr().out)["notes"]]
    (note,) = [one for one in notes if "torch computes" in one]
    assert "decode (attention of single tokens" in note and faults["decode"] in note
    assert str(tmp_path / "kernels") in note
    assert main([*CHECK, "--json", *flags, "--set", "engine.kernels=torch"]) == 0
    notes = [one["text"] for one in json.loads(capsys.readouterr().out)["notes"]]
    assert [one for one in notes if "torch" in one] == [
        "torch computes all, slower than llmd's own kernels"
    ]
    assert main([*CHECK, *flags, "--set", "engine.kernels=cuda"]) == 2
