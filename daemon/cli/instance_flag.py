"""`--instance`, in the one spelling of every command."""

import argparse

from daemon.cli.argument_parser import offer
from daemon.config.instance_text import parse_instance
from daemon.config.schema import InstanceSpec

_INSTANCES = ("cpu", *(f"cuda:{number}" for number in range(8)))


def add_instance_flag(parser: argparse._ActionsContainer, what: str) -> None:
    """Add the flag; `what` begins its help text."""
    instance = parser.add_argument(
        "--instance",
        nargs="+",
        action="extend",
        type=_instance,
        metavar="DEVICES[:tpN|ppN][:ROLE]",
        help=f"{what}, such as cpu, cuda:0:mixed or cuda:0,1:tp2",
    )
    offer(instance, _INSTANCES)


def _instance(text: str) -> InstanceSpec:
    try:
        return parse_instance(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
