"""Studies in the simulator have one frame: each declares its options and prints its tables."""

import argparse
import inspect
from importlib import import_module

import pytest

from benchmarks.studies import frame
from benchmarks.studies.__main__ import main, names


@pytest.mark.parametrize("name", names())
def test_a_study_declares_its_options(name: str) -> None:
    module, parser = import_module(f"benchmarks.studies.{name}"), argparse.ArgumentParser()
    module.options(parser)
    assert vars(parser.parse_args([]))
    assert list(inspect.signature(module.study).parameters) in (["options"], ["arguments"])
    assert f"python -m benchmarks.studies {name}" in module.__doc__


def test_a_study_that_is_not_there_is_told_beside_those_that_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["poles"]) == 2 and main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(names()) and lines[0].startswith(names()[0])


def test_tables_and_lists(capsys: pytest.CaptureFixture[str]) -> None:
    frame.heads("Policy", "JCT")
    frame.row(["vllm", 1.5])
    assert capsys.readouterr().out == "| Policy | JCT |\n|---|---|\n| vllm | 1.5 |\n"
    assert frame.numbers("0.8,1.1,") == [0.8, 1.1] and frame.listed("") == []
