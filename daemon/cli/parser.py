"""The one command line of llmd."""

import argparse
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from daemon import __version__
from daemon.cli.argument_parser import FILE, Parser, offer
from daemon.cli.ctl_flags import add_ctl
from daemon.cli.defaults import PLACEMENTS_BELOW, POLICIES_BELOW, by_default
from daemon.cli.instance_flag import add_instance_flag
from daemon.cli.printed import add_printing, asks_for_all
from daemon.config.checks import DTYPES, QUANTIZE
from daemon.config.load import flatten, parse_value
from daemon.config.schema import Config
from daemon.config.unknown import ONE_MODEL
from daemon.length_models.registry import LIVE
from daemon.placement import PLACEMENTS
from daemon.scheduler.policies import POLICIES
from daemon.state.role import ROLES_MODES
from daemon.state.transfer_mode import HANDOFF_MODES

_FIRST = """\
first: llmd serve serves the embedded model; then, in another terminal,
  llmd chat talks to it, and llmd-top shows what it does."""
SOCKET = "in the runtime folder, as llmd check says"
EMBEDDED = "the embedded one"

_FLAGS: tuple[tuple[str, str, type, str, str, str], ...] = (
    ("--host", "server.host", str, "H", "address of the HTTP API", ""),
    ("--port", "server.port", int, "N", "port of the HTTP API; 0 takes a free one", ""),
    ("--socket", "control.socket", str, "PATH", "control socket of llmd-top and llmd ctl", SOCKET),
    ("--policy", "scheduler.policy", str, "P", "scheduling policy: one of those below", ""),
    ("--placement", "scheduler.placement", str, "P", "which instance takes a sequence", ""),
    (
        *("--roles", "scheduler.roles", str, "R"),
        *(
            "what gives instances their roles: auto, low_load, idle (the load), mixed (nothing)",
            "",
        ),
    ),
    (
        *("--handoff", "scheduler.handoff", str, "H"),
        *("when a prompt's KV goes to another instance: auto, serialized, layered", ""),
    ),
    (
        *("--predictor", "predict.kind", str, "KIND"),
        *(f"of answer lengths: {', '.join(LIVE)}, ranges:TOKENS", ""),
    ),
    ("--kv-blocks", "memory.kv_blocks", int, "N", "size of the KV pool", "the memory formula's"),
    ("--dtype", "model.dtype", str, "D", f"number format: {', '.join(DTYPES)}", ""),
    (
        *("--quantize", "model.quantize", str, "KIND"),
        *(f"round plain weights, once, to blocks: {', '.join(QUANTIZE)}", ""),
    ),
    (
        *("--generation-config", "model.generation_config", str, "auto|llmd|FOLDER"),
        *("default sampling: the model's own, neutral, or that of a folder's file", ""),
    ),
    (
        *("--max-batch-tokens", "scheduler.max_batch_tokens", int, "N"),
        *("token budget of a step", "the policy's own"),
    ),
    (
        *("--prefill-chunk", "scheduler.prefill_chunk", int, "N"),
        *("prompt tokens of one sequence in a step, at most", "as the budget"),
    ),
)
"""Flag, dotted key, type, metavar, what it is, and what a default of 0 or nothing stands for."""

_SERVED = "one daemon serves one model, which `llmd ctl status` names"
_SERVE = "`llmd serve --model MODEL` serves a model, and `llmd chat` talks to it"
_PULL = (
    "`llmd serve --model ORG/NAME` serves a model of the Hugging Face Hub that was downloaded, and "
    "else says which command downloads it"
)
_STATUS = "`llmd ctl status` asks a running daemon, and `llmd-top` watches it"
_ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("status", "ps", "health"), _STATUS),
    **dict.fromkeys(("top", "watch", "monitor"), "`llmd-top` shows what a running daemon does"),
    **dict.fromkeys(("run", "start", "up"), _SERVE),
    **dict.fromkeys(("list", "ls", "models", "show"), f"{_SERVED}; {_SERVE}"),
    **dict.fromkeys(("pull", "download", "get"), _PULL),
    **dict.fromkeys(
        ("stop", "down", "kill"),
        "Ctrl-C ends a daemon in a terminal, and `systemctl stop llmd` the service",
    ),
    "logs": "a daemon logs to its terminal; `journalctl -u llmd` has the service's log",
    "help": "`llmd --help` names all, and `llmd COMMAND --help` explains one",
    "version": "`llmd --version`",
}
"""Commands of other servers and programs, each with what llmd has in its place."""

_OFFERED: dict[str, Sequence[str] | str] = {
    "control.socket": FILE,
    "scheduler.policy": tuple(POLICIES),
    "scheduler.roles": ROLES_MODES,
    "scheduler.placement": tuple(PLACEMENTS),
    "scheduler.handoff": HANDOFF_MODES,
    "predict.kind": LIVE,
    "model.dtype": DTYPES,
    "model.quantize": QUANTIZE,
}
"""Values that shell completion offers, by dotted key."""


def build_parser(named: Collection[str] = ()) -> argparse.ArgumentParser:
    """The parser of every command. Workbench commands import large libraries for their flags:
    only those in `named` get them, so that `serve` starts fast.
    """
    parser = Parser(prog="llmd", description="Serve language models on this machine.")
    parser.add_argument("--version", action="version", version=f"llmd {__version__}")
    add_printing(parser)
    parser.epilog = _FIRST
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run the daemon in the foreground")
    add_config_flags(serve)
    check = commands.add_parser("check", help="show the configuration and the memory formula")
    check.add_argument("--json", action="store_true", help="one JSON object, faults included")
    add_config_flags(check)
    add_ctl(ctl := commands.add_parser("ctl", help="ask or direct a running daemon"))
    verbs = {
        verb: f"`llmd ctl {verb}` asks a running daemon"
        for subparsers in ctl.below
        for verb in subparsers.choices
    }
    parser.elsewhere = verbs | _ELSEWHERE
    for name, help_text in (
        ("chat", "talk to a running daemon"),
        ("simulate", "the same scheduler on a workload, in virtual time"),
        ("plan", "the deployment that serves a workload best, found by simulations"),
        ("bench", "put a workload on a real endpoint"),
        ("compare", "two reports side by side"),
        ("profile", "measure this machine, or import a published table"),
        ("key", "make an API key"),
    ):
        if name in named or asks_for_all(named):
            import_module(f"daemon.cli.{name}").add_arguments(
                commands.add_parser(name, help=help_text)
            )
        else:
            commands.add_parser(name, help=help_text)
    return parser


def overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """Values given by flags, by dotted key; `--set` comes last and wins."""
    given = vars(arguments)
    keys = ["model.path", *(key for _, key, *_ in _FLAGS)]
    found = {key: given[key] for key in keys if given[key] is not None}
    if arguments.instance:
        found["instance"] = [msgspec.to_builtins(spec) for spec in arguments.instance]
    return found | dict(arguments.set)


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmd serve`, for every command that starts what it would start."""
    parser.add_argument("--config", type=Path, metavar="F", help="TOML file; flags override it")
    for flag, key, kind, metavar, what, otherwise in _FLAGS:
        help_text = f"{what} {by_default(key, otherwise)}"
        action = parser.add_argument(flag, dest=key, type=kind, metavar=metavar, help=help_text)
        if key in _OFFERED:
            offer(action, _OFFERED[key])
    model = parser.add_argument(
        "--model",
        dest="model.path",
        action=_OneModel,
        metavar="FOLDER|FILE.gguf|ORG/NAME",
        help=f"model; ORG/NAME is in Hugging Face's cache {by_default('model.path', EMBEDDED)}",
    )
    offer(model, FILE)
    add_instance_flag(parser, "workers (default: all GPUs that can, or the CPU)")
    value = parser.add_argument(
        "--set",
        type=_assignment,
        action="append",
        default=[],
        metavar="section.key=value",
        help="any other value of the configuration, in TOML; once for each",
    )
    offer(value, [f"{key}=" for key in flatten(Config()) if "." in key])
    parser.epilog = f"{POLICIES_BELOW}\n{PLACEMENTS_BELOW}"


class _OneModel(argparse.Action):
    """Takes one model; of two, argparse would take the last without a word."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"--model is given twice: {ONE_MODEL}")
        setattr(namespace, self.dest, values)


def _assignment(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    section, dot, name = key.strip().partition(".")
    if not (equals and dot and section and name and "." not in name):
        raise argparse.ArgumentTypeError(f"expected section.key=value, got {text!r}")
    return key.strip(), parse_value(value.strip())
