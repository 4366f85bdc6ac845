"""Flags become values of the configuration."""

from pathlib import Path

import pytest

from daemon import __version__
from daemon.cli.main import main
from daemon.cli.parser import build_parser, overrides
from daemon.config.load import load


def given(*arguments: str) -> dict[str, object]:
    return overrides(build_parser().parse_args(arguments))


def test_no_flag_overrides_nothing() -> None:
    assert given("serve") == {}


def test_every_flag_reaches_its_value() -> None:
    flags = given(
        *("serve", "--host", "::1", "--port", "0", "--socket", "/run/x.sock", "--model", "/m"),
        *("--policy", "orca", "--kv-blocks", "64", "--dtype", "bfloat16"),
        *("--quantize", "int4"),
        *("--max-batch-tokens", "256", "--prefill-chunk", "64"),
        *("--instance", "cpu:mixed", "cuda:1", "--instance", "cuda:0:mixed"),
        *("--set", "daemon.drain_s=1.5", "--set", "server.cors_origins=['http://a']"),
    )
    config = load(None, flags).config
    assert (config.server.host, config.server.port) == ("::1", 0)
    assert (config.control.socket, config.model.path) == ("/run/x.sock", "/m")
    assert (config.scheduler.policy, config.memory.kv_blocks) == ("orca", 64)
    assert (config.scheduler.max_batch_tokens, config.scheduler.prefill_chunk) == (256, 64)
    assert [spec.device for spec in config.instance] == ["cpu", "cuda:1", "cuda:0"]
    assert [spec.name for spec in config.instance] == ["cpu", "cuda1", "cuda0"]
    assert (config.model.dtype, config.daemon.drain_s) == ("bfloat16", 1.5)
    assert config.model.quantize == "int4"
    assert config.server.cors_origins == ("http://a",)


def test_set_wins_over_a_flag() -> None:
    assert given("check", "--port", "1", "--set", "server.port=2") == {"server.port": 2}


@pytest.mark.parametrize("text", ["port=1", "server.port", ".port=1", "server.=1", "a.b.c=1"])
def test_a_malformed_set_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        build_parser().parse_args(["serve", "--set", text])
    assert exit_.value.code == 2
    assert "expected section.key=value" in capsys.readouterr().err


@pytest.mark.parametrize(
    "order",
    [
        ("--socket", "/x", "status"),
        ("status", "--socket", "/x"),
        ("--socket", "/x", "policy", "srtf"),
        ("policy", "srtf", "--socket", "/x"),
    ],
)
def test_ctl_takes_its_socket_before_or_after_the_verb(order: tuple[str, ...]) -> None:
    assert build_parser().parse_args(["ctl", *order]).socket == Path("/x")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"llmd {__version__}\n"


def test_several_devices_that_are_not_said_to_work_together_are_refused_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--instance", "cuda:0,1"])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        "llmd serve: argument --instance: cuda:0,1 are 2 devices: say tp2 or pp2"
    )


def test_a_wrong_configuration_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "--instance", "cpu", "--policy", "fastest"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("llmd: command line: scheduler.policy: ")
    assert error.count("\n") == 1
