"""The one command line of llmd."""

import argparse
from collections.abc import Collection, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from daemon import __version__
from daemon.cli.printed import add_printing, asks_for_all
from daemon.config.checks import DTYPES
from daemon.config.instances import parse_instance
from daemon.config.load import parse_value
from daemon.config.unknown import ONE_MODEL
from daemon.predict.lengths import LIVE
from daemon.scheduler.policies import POLICIES

_FLAGS: tuple[tuple[str, str, type, str, str], ...] = (
    ("--host", "server.host", str, "H", "address of the HTTP API"),
    ("--port", "server.port", int, "N", "port of the HTTP API; 0 takes a free one"),
    ("--socket", "control.socket", str, "PATH", "control socket, read by llmd-top and llmd ctl"),
    ("--policy", "scheduler.policy", str, "P", f"who runs when: {', '.join(POLICIES)}"),
    ("--predictor", "predict.kind", str, "KIND", f"of answer lengths: {', '.join(LIVE)}"),
    ("--kv-blocks", "memory.kv_blocks", int, "N", "size of the KV pool, instead of the formula"),
    ("--dtype", "model.dtype", str, "D", f"number format: {', '.join(DTYPES)}"),
    ("--max-batch-tokens", "scheduler.max_batch_tokens", int, "N", "token budget of a step"),
    ("--prefill-chunk", "scheduler.prefill_chunk", int, "N", "prompt tokens of a step, at most"),
)


def build_parser(asked: Collection[str] = ()) -> argparse.ArgumentParser:
    """The parser of every command. Those of the workbench bring libraries along, and their flags:
    only the ones whose names are among `asked` are filled in, so that `serve` starts fast.
    """
    parser = argparse.ArgumentParser(
        prog="llmd", description="Serve language models on this machine."
    )
    parser.add_argument("--version", action="version", version=f"llmd {__version__}")
    add_printing(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run the daemon in the foreground")
    add_config_flags(serve)
    check = commands.add_parser("check", help="show the configuration and the memory formula")
    check.add_argument("--json", action="store_true", help="one JSON object, faults included")
    add_config_flags(check)
    _add_ctl(commands.add_parser("ctl", help="ask or direct a running daemon"))
    for name, help_text in (
        ("chat", "talk to a running daemon"),
        ("simulate", "the same scheduler on a workload, in virtual time"),
        ("bench", "put a workload on a real endpoint"),
        ("compare", "two reports side by side"),
        ("profile", "measure this machine, or import a published table"),
        ("key", "make an API key"),
    ):
        if name in asked or asks_for_all(asked):
            import_module(f"daemon.cli.{name}").add_arguments(
                commands.add_parser(name, help=help_text)
            )
        else:
            commands.add_parser(name, help=help_text)
    return parser


def overrides(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the flags say, by dotted key; `--set` comes last and wins."""
    given = vars(arguments)
    keys = ["model.path", *(key for _, key, *_ in _FLAGS)]
    found = {key: given[key] for key in keys if given[key] is not None}
    if arguments.instance:
        found["instance"] = [
            {"device": spec.device, "role": spec.role}
            for spec in map(parse_instance, arguments.instance)
        ]
    return found | dict(arguments.set)


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of `llmd serve`, for every command that starts what it would start."""
    parser.add_argument("--config", type=Path, metavar="F", help="TOML file; flags override it")
    for flag, key, kind, metavar, help_text in _FLAGS:
        parser.add_argument(flag, dest=key, type=kind, metavar=metavar, help=help_text)
    parser.add_argument(
        "--model",
        dest="model.path",
        action=_OneModel,
        metavar="FOLDER|FILE.gguf",
        help="model; without it the embedded one",
    )
    parser.add_argument(
        "--instance",
        nargs="+",
        action="extend",
        metavar="DEVICE:ROLE",
        help="workers, such as cpu:mixed or cuda:0:mixed",
    )
    parser.add_argument(
        "--set",
        type=_assignment,
        action="append",
        default=[],
        metavar="section.key=value",
        help="any other value of the configuration, in TOML",
    )


def _add_ctl(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--socket", type=Path, metavar="PATH", help="the daemon's control socket")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    status = verbs.add_parser("status", help="instances, queues and KV occupancy, once")
    status.add_argument("--json", action="store_true", help="one JSON object")
    policy = verbs.add_parser(
        "policy",
        help="show the policies, or change to another one",
        description="Without a name: every policy, with a star where one is in use. With a name: "
        "sequences are ranked by that policy from now on, and none is lost. The token budget of "
        "a step stays as configured; what becomes of victims is the policy's own choice unless "
        "memory.swap is set. A restarted daemon has its configured policy again.",
    )
    policy.add_argument("name", nargs="?", metavar="NAME", help=", ".join(POLICIES))
    reload = verbs.add_parser(
        "reload",
        help="read the configuration again",
        description="As SIGHUP does. What can change while requests run does; what needs a "
        "restart is named and stays; a file with a fault changes nothing.",
    )
    drain = verbs.add_parser(
        "drain",
        help="take no new requests, finish those that are here",
        description="The daemon stays, not ready, until it is resumed or stopped.",
    )
    resume = verbs.add_parser("resume", help="take requests again, after drain")
    for verb in (status, policy, reload, drain, resume):
        # SUPPRESS: without the flag here, the subparser must not erase the one before the verb
        verb.add_argument("--socket", type=Path, metavar="PATH", default=argparse.SUPPRESS)


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
