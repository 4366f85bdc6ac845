"""Completion and the manual page are made from the one parser, and leave nothing out."""

import argparse
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.cli.main import main
from daemon.cli.parser import build_parser
from daemon.cli.printed import SHELLS
from tui.texts import write_all


def words(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Every subcommand, verb and long flag."""
    for action in parser._actions:
        yield from (flag for flag in action.option_strings if flag.startswith("--"))
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield name
                yield from words(below)


def printed(capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    with pytest.raises(SystemExit) as exit_:
        main(flags)
    assert exit_.value.code == 0
    return capsys.readouterr().out


ALL = set(words(build_parser(["--print-man"])))


def test_the_whole_parser_is_asked_for() -> None:
    assert {"serve", "check", "ctl", "reload", "drain", "resume", "simulate", "bench"} <= ALL
    assert {"--config", "--rate"} <= ALL, "flags of the workbench too"


@pytest.mark.parametrize("shell", SHELLS)
def test_a_completion_names_every_word_and_parses(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = printed(capsys, "--print-completion", shell)
    assert {word for word in ALL - {"--help"} if word not in script} == set()
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_every_programs_texts_are_written_where_they_are_looked_for(tmp_path: Path) -> None:
    write_all(tmp_path)
    for program, word in (("llmd", "drain"), ("llmd-top", "--readonly")):
        for place in (
            f"man/man1/{program}.1",
            f"bash-completion/completions/{program}",
            f"zsh/vendor-completions/_{program}",
        ):
            assert word in (tmp_path / place).read_text().replace("\\", "")


COMPLETED = [
    ("ctl rel", {"reload"}),
    ("serve --poli", {"--policy"}),
    (
        "serve --policy s",
        {
            *("sarathi", "splitwise", "static", "sjf", "srtf", "speculative", "speculative-queues"),
            *("synced-d", "synced-sd", "synced-sdo", "synced"),
        },
    ),
    ("serve --predictor r", {"retrieval", "ranges"}),
    ("serve --dtype b", {"bfloat16"}),
    ("serve --quantize i", {"int8", "int4"}),
    ("serve --instance cu", {f"cuda:{number}" for number in range(8)}),
    ("serve --set scheduler.pol", {"scheduler.policy="}),
    ("serve --config W/a", {"W/a.toml"}),
    ("serve --model W/", {"W/a.toml", "W/folder"}),
    ("ctl policy ml", {"mlfq", "mlfq-q1"}),
    ("simulate --policy ml", {"mlfq", "mlfq-q1"}),
    ("simulate --profile opt-66b@h", {"opt-66b@h100-tp2", "opt-66b@h200-tp2"}),
    ("simulate --profiles llama-3", {f"llama-3-8b@{d}" for d in ("a100-80g", "h100", "h200")}),
    ("simulate --workload sh", {"sharegpt"}),
    ("simulate --predictor or", {"oracle"}),
    ("simulate --swap re", {"reactive", "recompute"}),
    ("simulate --arrivals g", {"gamma:"}),
    ("simulate --journal-out W/", {"W/folder"}),
    ("bench --url x --workload al", {"alpaca"}),
    ("profile import v", {"vidur"}),
    ("compare W/a", {"W/a.toml"}),
]
"""What is typed, its last word unfinished, and what is offered; W is a folder."""


def test_bash_completes_names_values_and_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").touch()
    (tmp_path / "folder").mkdir()
    script = tmp_path / "folder" / "completion"
    script.write_text(printed(capsys, "--print-completion=bash"))
    lines = [f"source {script}"]
    for typed, _ in COMPLETED:
        count = len(typed.split())
        words = f"COMP_WORDS=(llmd {typed.replace('W/', f'{tmp_path}/')}); COMP_CWORD={count}"
        lines.append(f"{words}; _shtab_llmd; echo ${{COMPREPLY[@]}}")
    done = subprocess.run(
        ["bash", "-c", "\n".join(lines)], text=True, capture_output=True, check=True
    )
    assert done.stderr == ""
    offered = done.stdout.replace(f"{tmp_path}/", "W/").splitlines()
    found = {typed: set(row.split()) for (typed, _), row in zip(COMPLETED, offered, strict=True)}
    assert found == dict(COMPLETED)


def test_the_manual_page_names_every_word(capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, "--print-man")
    assert page.startswith(".TH LLMD")
    plain = page.replace("\\", "")
    assert {word for word in ALL - {"--help"} if word not in plain} == set()


@pytest.mark.skipif(shutil.which("man") is None, reason="there is no man here")
def test_man_renders_it_without_a_complaint(capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, "--print-man")
    done = subprocess.run(
        ["man", "--warnings", "--local-file", "-"], input=page, text=True, capture_output=True
    )
    assert done.returncode == 0 and "llmd ctl drain" in " ".join(done.stdout.split())
    assert done.stderr == ""
