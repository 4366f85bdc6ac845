"""Whatever is given to a command for a file: one sentence, and status 1 or 2."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.cli.main import main
from daemon.control import client
from tests.hangs import HANG_S
from tui.app import main as top

PROFILE = "opt-13b@a100-80g"
WORKLOAD = ("--workload", "sharegpt", "--rate", "1", "--requests", "3")
NOBODY = "http://127.0.0.1:9"

COMMANDS: dict[str, tuple[str, ...]] = {
    "configuration": ("check", "--config", "F"),
    "configuration to serve": ("serve", "--config", "F"),
    "configuration to profile": ("profile", "--config", "F"),
    "model": ("check", "--port", "0", "--model", "F"),
    "model to profile": ("profile", "--model", "F"),
    "socket to ask": ("ctl", "status", "--socket", "F"),
    "socket to order": ("ctl", "reload", "--socket", "F"),
    "report": ("compare", "F", "F"),
    "scenario": ("simulate", "F"),
    "profile": ("simulate", "--profile", "F/", *WORKLOAD),
    "profile to fit": ("profile", "--from-journal", "F", "--profile", "F/", "--out", "O"),
    "trace": ("simulate", "--profile", PROFILE, "--trace", "F", "--rate", "1"),
    "trace to send": ("bench", "--url", NOBODY, "--trace", "F"),
    "journal": ("simulate", "--journal", "F"),
    "journal again": ("simulate", "--journal", "F", "--policy", "vllm"),
    "journal to fit": ("profile", "--from-journal", "F", "--profile", PROFILE, "--out", "O"),
    "prices": ("simulate", "--profile", PROFILE, *WORKLOAD, "--sweep", "--prices", "F"),
    "workload": ("simulate", "--profile", PROFILE, "--workload", "F", "--rate", "1"),
    "endpoint": ("bench", "--url", "F", *WORKLOAD),
    "report's place": ("simulate", "--profile", PROFILE, *WORKLOAD, "--out", "F/x/y"),
    "plot's place": ("simulate", "--profile", PROFILE, *WORKLOAD, "--plot", "F/x/y.svg"),
    "trace's place": ("simulate", "--profile", PROFILE, *WORKLOAD, "--perfetto", "F/x/y"),
    "key's name": ("key", "new", "F"),
    **{
        f"table of {kind}": ("profile", "import", kind, "F", "--model", "opt-13b", "--out", "O")
        for kind in ("distserve", "vidur", "splitwise", "aiconfigurator")
    },
    "recording": ("top", "-1", "--replay", "F"),
    "socket to watch": ("top", "-1", "--socket", "F"),
}
CONTENTS: dict[str, bytes | None] = {
    "missing": None,
    "directory": None,
    "too long a name": None,
    "endless": None,
    "empty": b"",
    "binary": bytes(range(256)) * 40,
    "zeros": bytes(1000),
    "text": b"hello there\n" * 10,
    "JSON": b'{"a": [1, {"b": null}]}',
    "TOML": b'a = 1\n[b]\nc = "x"\n[price]\nx = -1\n',
    "deep JSON": b"[" * 100_000,
    "deep TOML": b"a = " + b"[" * 100_000,
    "long numbers": b'{"num_params": ' + b"9" * 5000 + b"}",
    "table": b"a,b,c\n1,2,3\n",
    "bad rows": b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,-5,x\n",
}
FINE = {
    ("configuration", "empty"),
    ("configuration to serve", "empty"),
    ("configuration to profile", "empty"),
    *((name, "directory") for name in ("report's place", "plot's place", "trace's place")),
}
"""An empty file is the default configuration, and folders are made where one is there."""
SEVERAL = {(name, "TOML") for name in COMMANDS if name.startswith("configuration")}
OFTEN = ("missing", "directory", "empty", "binary")
"""Tried whenever tests run; the others take a minute."""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setattr(client, "SERVICE_SOCKET", tmp_path / "none")


def file_of(folder: Path, name: str) -> Path:
    """A file, or none, of that name."""
    path = folder / "file"
    content = CONTENTS[name]
    if content is not None:
        path.write_bytes(content)
    elif name == "directory":
        path.mkdir()
    elif name == "too long a name":
        path = folder / ("x" * 300)
    elif name == "endless":
        path = Path("/dev/zero")
    return path


@pytest.mark.parametrize(
    "content",
    [one if one in OFTEN else pytest.param(one, marks=pytest.mark.soak) for one in CONTENTS],
)
def test_a_wrong_input_is_one_sentence(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, wrong = file_of(tmp_path, content), []
    for what, words in COMMANDS.items():
        if (what, content) in FINE:
            continue
        given = [
            word.replace("F", str(path), 1)
            if word in ("F", "F/") or word.startswith("F/")
            else word
            for word in words
        ]
        given = [str(tmp_path / "out.json") if word == "O" else word for word in given]
        status, said = _tried(given, capsys)
        lines = said.splitlines()
        one = len(lines) == 1 or (what, content) in SEVERAL or "usage: " in said
        if status not in (1, 2) or not one or "Errno" in said or "Traceback" in said:
            wrong.append((what, status, said[:300]))
    assert not wrong
    assert not (tmp_path / "out.json").exists()


def _tried(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """Status and stderr; an exception is a status of its own."""
    command: Callable[[list[str]], int] = main
    if words[0] == "top":
        command, words = top, words[1:]
    status: object
    try:
        status = command(words)
    except SystemExit as left:
        status = left.code
    except Exception as error:  # noqa: BLE001 - what is looked for
        status = repr(error)[:300]
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "--set", 'control.socket="a\\u0000b"'), "control.socket: must not hold a zero"),
        (("simulate", "--profile", PROFILE, *WORKLOAD, "--sweep", "--workers", "-1"), "--workers"),
        (("bench", "--url", NOBODY, *WORKLOAD, "--timeout-s", "inf"), "--timeout-s must be from 0"),
        (("bench", "--url", NOBODY, *WORKLOAD, "--timeout-s", "nan"), "--timeout-s must be from 0"),
        (("bench", "--url", NOBODY, *WORKLOAD, "--n", "0"), "--n must be from 1 to 128, got 0"),
        (("profile", "--instance", "cuda:1000", "--model", "F"), "cuda:1000"),
        (("check", "--instance", f"cuda:{'9' * 5000}"), "must be cpu or cuda:N"),
        (("check", "--instance", "cuda:\u0663"), "must be cpu or cuda:N"),
        (("profile", "--model", "/none", "--out", "/dev/null/x.json"), "/dev/null"),
        (("profile", "--model", "/none", "--out", "F"), "Is a directory"),
    ],
)
def test_a_wrong_value_is_one_sentence(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(tmp_path) if word == "F" else word for word in words]
    status, told = _tried(given, capsys)
    assert status in (1, 2) and said in told and told.count("\n") == 1, told


SIMULATE = ("simulate", "--profile", PROFILE, *WORKLOAD)
SWEEP, BENCH = (*SIMULATE, "--sweep"), ("bench", "--url", NOBODY, *WORKLOAD)
PLAN = ("plan", "--model", "opt-13b", "--devices", "a100-80g:1", "--workload", "sharegpt")
PLACES = (
    *((SIMULATE, flag) for flag in ("--out", "--csv", "--html", "--perfetto", "--plot")),
    *((command, flag) for command in (SWEEP, BENCH, PLAN) for flag in ("--out",)),
    *((SWEEP, "--pareto"), (BENCH, "--plot"), (BENCH, "--html"), (PLAN, "--html")),
)


@pytest.mark.parametrize(("command", "flag"), PLACES)
def test_a_place_that_cannot_be_written_is_told_before_time_is_spent(
    command: tuple[str, ...],
    flag: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("simulate.write_outputs", "searches.sweep", "plan.make_plan", "bench.measure"):
        monkeypatch.setattr(f"daemon.cli.{module}", None)  # whose call would be no sentence
    (tmp_path / "file").touch()
    slo = ("--slo-ttft", "1") if command is PLAN else ()
    places = {"none/x.svg": "No such file", "file/x.svg": "Not a directory", "": "Is a directory"}
    if flag in ("--plot", "--pareto"):
        places["x.pdf"] = "a plot is written as .svg or .png"
    for place, said in places.items():
        status, told = _tried([*command, *slo, flag, str(tmp_path / place)], capsys)
        assert status == 1 and said in told and str(tmp_path / place) in told, told


def test_unreadable_is_told_of_whoever_may_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, given = tmp_path / "mine", Path.open

    def opened(path: Path, *arguments: Any, **named: Any) -> Any:
        if path == mine:
            raise PermissionError(13, "Permission denied", str(path))
        return given(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", opened)  # whoever runs the tests as root may read anything
    for words in (("check", "--config", "F"), ("compare", "F", "F"), ("simulate", "F")):
        status, said = _tried([word.replace("F", str(mine)) for word in words], capsys)
        assert status in (1, 2) and said.count("\n") == 1 and "Permission denied" in said


@pytest.mark.parametrize("command", ["serve", "check"])
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("no/such/folder", "no/such/folder is missing: there is no such folder"),
        ("Qwen9", "a model of the Hugging Face Hub is named ORG/Qwen9"),
        ("none.gguf", "none.gguf is missing"),
        ("some-org/none", "this downloads it: hf download some-org/none"),
        ("empty", "empty is no model's folder: it has no config.json"),
        ("files", "it has no config.json; --model files/a.gguf serves a file in it"),
        ("file.bin", "file.bin is not a folder, and no GGUF file"),
    ],
)
def test_a_missing_model_is_told_before_anything_is_started(
    command: str, model: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "files").mkdir()
    for name in ("a", "b"):  # one alone would be served
        (tmp_path / "files" / f"{name}.gguf").touch()
    (tmp_path / "file.bin").touch()
    words = [sys.executable, "-X", "importtime", "-m", "daemon.cli.main", command]
    words += ["--socket", "s.sock", "--port", "0", "--model", model]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
    lines = [one for one in done.stderr.splitlines() if not one.startswith("import time:")]
    assert done.returncode == 1 and len(lines) == 1 and said in lines[0], lines
    imported = {one.rpartition("|")[2].strip() for one in done.stderr.splitlines()}
    assert not imported & {"torch", "transformers", "daemon.supervisor.early"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "file.bin", "files"]
