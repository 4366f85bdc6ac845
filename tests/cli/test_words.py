"""Wrong words are answered in one sentence with status 2, and every help says what it should."""

import argparse
from collections.abc import Iterator

import msgspec
import pytest

from daemon.cli.argument_parser import Parser
from daemon.cli.main import main
from daemon.cli.parser import build_parser
from daemon.cli.printed import EVERYTHING
from daemon.config.load import flatten
from daemon.config.schema import Config, MemoryConfig, PredictConfig, SchedulerConfig
from daemon.lab.simulator.scenario import Scenario, ScenarioLimits
from daemon.scheduler.policies import POLICIES
from tui.app import main as top
from tui.arguments import parser as viewer_parser

PROFILE = ("--profile", "opt-13b@a100-80g")
NOBODY = ("--url", "http://127.0.0.1:9")


def said(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """Status and stderr of a command line."""
    status: object
    try:
        status = main(words.split())
    except SystemExit as left:
        status = left.code
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("srve", "llmd: unknown command 'srve'; did you mean 'serve'?"),
        ("serve --modle x", "llmd serve: unknown flag '--modle'; did you mean '--model'?"),
        ("serve --modle=x", "llmd serve: unknown flag '--modle'; did you mean '--model'?"),
        ("serve --zzz", "llmd serve: unknown flag '--zzz'; llmd serve --help names all"),
        ("--vesion", "llmd: unknown flag '--vesion'; did you mean '--version'?"),
        ("ctl polcy", "llmd ctl: unknown verb 'polcy'; did you mean 'policy'?"),
        ("ctl --sokcet x status", "unknown flag '--sokcet'; did you mean '--socket'?"),
        ("ctl status --jsn", "llmd ctl status: unknown flag '--jsn'; did you mean '--json'?"),
        ("bench --ulr http://x", "unknown flag '--ulr'; did you mean '--url'?"),
        ("key nwe me", "unknown verb 'nwe'; did you mean 'new'?"),
        ("serve --policy sarthi", "got 'sarthi'; did you mean 'sarathi'?"),
        ("serve --predictor retreival", "got 'retreival'; did you mean 'retrieval'?"),
        ("check --dtype blfoat16", "got 'blfoat16'; did you mean 'bfloat16'?"),
        ("serve --set scheduler.polcy=x", "unknown key; did you mean scheduler.policy?"),
        ("serve --set memory.swap=proactiv", "did you mean 'proactive'?"),
        (
            "simulate --profile opt-13b@a100",
            "unknown profile 'opt-13b@a100'; did you mean 'opt-13b@",
        ),
        ("simulate P --workload sharegtp --rate 1", "did you mean 'sharegpt'?"),
        ("simulate P --workload alpaca --rate 1 --policy mflq", "did you mean 'mlfq'?"),
        ("simulate P --workload alpaca --rate 1 --predictor orcle", "did you mean 'oracle'?"),
        ("simulate P --workload alpaca --rate 1 --swap defr", "did you mean 'defer'?"),
        ("simulate P --workload alpaca --arrivals poison --rate 1", "did you mean 'poisson'?"),
        ("profile import vidr x --model opt-13b", "did you mean 'vidur'?"),
    ],
)
def test_a_mistyped_word_is_told_with_what_was_meant(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if words.startswith("simulate --profile"):
        words += " --workload alpaca --rate 1"
    status, error = said(words.replace(" P ", f" {' '.join(PROFILE)} "), capsys)
    assert status == 2 and sentence in error and error.count("\n") == 1, error


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("status", "`llmd ctl status`"),
        ("status --json", "`llmd ctl status`"),
        ("ps", "`llmd ctl status`"),
        ("top", "`llmd-top`"),
        ("run llama3", "`llmd serve --model MODEL`"),
        ("list", "`llmd ctl status`"),
        ("pull org/name", "`llmd serve --model ORG/NAME`"),
        ("stop", "Ctrl-C"),
        ("flip a decode", "`llmd ctl flip`"),
        ("drain", "`llmd ctl drain`"),
    ],
)
def test_commands_of_other_programs_are_told_what_to_type(
    words: str, instead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, error = said(words, capsys)
    command, *_ = words.split()
    assert status == 2 and error.count("\n") == 1
    assert error.startswith(f"llmd: there is no command {command!r}: ") and instead in error


def test_what_is_told_instead_is_no_command_of_its_own() -> None:
    parser = build_parser()
    assert isinstance(parser, Parser)
    (commands,) = parser.below
    assert not set(parser.elsewhere) & set(commands.choices)


@pytest.mark.parametrize(("words", "named"), [("", "serve"), ("ctl", "status"), ("key", "new")])
def test_without_a_command_help_is_given(
    words: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words.split())
    told = capsys.readouterr()
    assert left.value.code in (0, None) and told.err == ""
    assert told.out.startswith("usage: llmd") and f"    {named} " in told.out


def test_llmd_top_tells_one_sentence_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        top(["--sokcet", "x"])
    assert left.value.code == 2
    wanted = "llmd-top: unknown flag '--sokcet'; did you mean '--socket'?\n"
    assert capsys.readouterr().err == wanted


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("ctl --socket x", "required: VERB"),
        ("key new", "required: NAME"),
        ("compare", "required: A, B"),
        ("bench", "required: --url"),
        ("bench N", "give --trace FILE or --workload NAME"),
        ("bench N --workload alpaca", "give --rate R"),
        ("bench N --workload alpaca --rate x", "argument --rate: invalid float value: 'x'"),
        ("bench N --workload alpaca --rate 1 --prompt-form txt", "did you mean 'text'?"),
        ("simulate", "give --profile NAME, or a scenario file"),
        ("simulate P", "give --trace FILE or --workload NAME"),
        ("simulate P --workload sharegpt", "give --rate R"),
        ("simulate P --workload sharegpt --sweep --policies vllm", "give --rate R"),
        ("simulate P --workload alpaca --rate 1 --rate-scale 2", "not allowed with"),
        ("simulate P --workload alpaca --rate-scale 2", "use --rate"),
        ("simulate P --workload alpaca --rate 0", "give --rate R"),
        ("simulate P --workload alpaca --rate -1", "rate: must be a finite number above 0"),
        ("simulate P --workload alpaca --rate 1 --requests -1", "must not be below 0"),
        ("simulate P --workload alpaca --rate 1 --instances 0", "must be at least 1"),
        ("simulate P --workload alpaca --rate 1 --power-cap 2", "at most 1"),
        ("simulate P --workload alpaca --rate 1 --kv-bytes -1", "must be a number from 0 on"),
        ("simulate P --workload alpaca --rate 1 --kv-bytes nan", "must be a number from 0 on"),
        ("simulate P --workload alpaca --rate 1 --starve-s 0", "must be a number above 0"),
        ("simulate P --workload alpaca --rate 1 --max-running 0", "must be at least 1"),
        ("simulate P --workload alpaca --rate 1 --slo x:y", "argument --slo: "),
        ("simulate P --workload alpaca --rate 1 --sweep --rates 1,x", "numbers with commas"),
        ("simulate P --workload alpaca --rate 1 --capacity --attainment 3", "at most 1"),
        ("simulate P --workload alpaca --rate 1 --pareto x.svg", "--pareto needs --sweep"),
        ("profile --budget-s x", "invalid float value"),
        ("profile import", "required: KIND, SOURCE, --model"),
        ("profile --from-journal x", "needs all of --from-journal, --profile and --out"),
        ("serve --port x", "argument --port: invalid int value: 'x'"),
        ("serve --port 70000", "must be at most 65535"),
        ("serve --instance gpu", "must be cpu or cuda:N, got 'gpu'"),
        ("serve --model", "argument --model: expected one argument"),
        ("check --kv-blocks -3", "must be at least 0"),
        ("--print-completion fsh", "must be one of bash, zsh, got 'fsh'"),
    ],
)
def test_what_lacks_or_is_wrong_is_one_sentence_and_status_2(
    words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"{words} ".replace(" P ", f" {' '.join(PROFILE)} ").replace(
        " N ", f" {' '.join(NOBODY)} "
    )
    status, error = said(given, capsys)
    assert status == 2 and sentence in error and error.count("\n") == 1, error


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and all below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


EVERY = [*parsers(build_parser([EVERYTHING])), viewer_parser()]


@pytest.mark.parametrize("parser", EVERY, ids=lambda parser: parser.prog)
def test_every_flag_is_explained_and_says_its_default(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        where = f"{parser.prog} {action.option_strings or action.metavar}"
        assert action.help, where
        ordinary = (None, False, True, [], argparse.SUPPRESS)
        if action.option_strings and action.default not in ordinary:
            shown = action.help % {"default": action.default}
            assert "(default: " in shown, where
            if action.default:
                wanted = str(action.default).removesuffix(".0")
                assert wanted in shown.partition("(default: ")[2], where
    parser.format_help()


@pytest.mark.parametrize("command", ["serve", "check", "profile"])
def test_flags_of_the_configuration_say_its_defaults(command: str) -> None:
    defaults = flatten(Config())
    (parser,) = [one for one in EVERY if one.prog == f"llmd {command}"]
    found = [action for action in parser._actions if action.dest in defaults]
    assert len(found) >= 10
    for action in found:
        said_default = (action.help or "").partition("(default: ")[2]
        assert said_default, action.dest
        if defaults[action.dest]:
            assert said_default.startswith(str(defaults[action.dest])), action.dest


DIFFERENT = {"max_waiting", "max_len", "exact_max_tokens", "max_pause_s", "predictor", "roles"}
"""A simulated queue has no bound, so that overload is seen; a model's context is its profile's; a
pause follows from the gaps that a workload promises; a simulated prompt has no text for `features`
to read; a scenario's instances have the roles that it gives them."""


def test_simulate_has_the_defaults_of_serve() -> None:
    served = msgspec.structs.asdict(SchedulerConfig()) | msgspec.structs.asdict(MemoryConfig())
    simulated = {
        field.name: field.default
        for field in (*msgspec.structs.fields(ScenarioLimits), *msgspec.structs.fields(Scenario))
    }
    same = {name: value for name, value in simulated.items() if name in served} | {
        "predictor": simulated["predictor"],
        "handoff": simulated["handoff"].mode,
    }
    served["predictor"] = PredictConfig().kind
    wrong = {name for name, value in same.items() if served[name] != value}
    assert wrong <= DIFFERENT and len(same) > 8
    assert set(msgspec.structs.asdict(ScenarioLimits())) - set(same) <= DIFFERENT
    (parser,) = [one for one in EVERY if one.prog == "llmd simulate"]
    helps = {action.dest: action.help or "" for action in parser._actions}
    for name in ("policy", "predictor", "max_running", "block_size", "starve_s"):
        assert f"(default: {simulated[name]})" in helps[name]


def test_every_policy_has_a_meaning_that_fits_a_line() -> None:
    meanings = {policy.meaning for policy in POLICIES.values()}
    assert len(meanings) == len(POLICIES)
    assert max(map(len, meanings)) <= 65 and min(map(len, meanings)) > 20


@pytest.mark.parametrize("command", ["serve --help", "simulate --help", "ctl policy --help"])
def test_help_says_what_each_policy_means(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(command.split())
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert {f"{name} {policy.meaning}" for name, policy in POLICIES.items()} <= set(lines)
