"""Shell completion and the manual page, printed from a program's own command line."""

import argparse
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from daemon.cli.argument_parser import FILE, FOLDER

_PREAMBLE = {"bash": "COMP_WORDBREAKS=${COMP_WORDBREAKS//@}"}
"""A profile's name, opt-13b@h100, is one word."""

SHELLS = ("bash", "zsh")
EVERYTHING = "--print-"
"""Prefix of the printing flags, which need the whole parser."""


def add_printing(parser: argparse.ArgumentParser) -> None:
    """Add the flags that print completion and the manual page."""
    parser.add_argument(
        f"{EVERYTHING}completion",
        action=_Print,
        choices=SHELLS,
        help="print a completion script for a shell, and exit",
    )
    parser.add_argument(
        f"{EVERYTHING}man", action=_Print, nargs=0, help="print the manual page, and exit"
    )


def asks_for_all(words: Collection[str]) -> bool:
    """Whether the whole parser is needed, since it will be printed."""
    return any(word.startswith(EVERYTHING) for word in words)


def completion(parser: argparse.ArgumentParser, shell: str) -> str:
    """A script that completes the parser's program in one of SHELLS."""
    import shtab

    for action in _actions(parser):
        offered = getattr(action, "offered", FILE if action.type is Path else None)
        if offered in (FILE, FOLDER):
            action.complete = shtab.FILE if offered == FILE else shtab.DIRECTORY  # type: ignore[attr-defined]
        elif offered is not None:
            action.choices = offered
    text: str = shtab.complete(parser, shell, preamble=_PREAMBLE.get(shell, ""))
    return text


def man_page(parser: argparse.ArgumentParser) -> str:
    """The parser's program as a page of man's section 1."""
    from argparse_manpage.manpage import Manpage

    from daemon import __version__

    parser.man_short_description = (parser.description or "").partition(". ")[0].rstrip(".")  # type: ignore[attr-defined]
    page = Manpage(parser)
    page.manual, page.source, page.date = "llmd", f"llmd {__version__}", ""
    return str(page)


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every action of a parser and of those below it."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from _actions(below)


class _Print(argparse.Action):
    """Prints what its flag names, and ends the program."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        print(completion(parser, values) if isinstance(values, str) else man_page(parser))
        parser.exit()
