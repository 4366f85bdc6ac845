"""The parser of llmd's programs: one sentence for wrong words, with what was probably meant."""

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from daemon.base.nearest import did_you_mean, not_one_of, unknown

FILE, FOLDER = "file", "folder"
"""Kinds of path that shell completion can look for."""

_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$|-inf$|-nan$", re.IGNORECASE)
"""A negative number as `float` reads it; argparse takes some of them for flags."""


def offer(action: argparse.Action, values: Sequence[str] | str) -> None:
    """Say which values shell completion offers for a flag: these words, a FILE or a FOLDER.

    Unlike with `choices`, other values are not refused here: the code that reads them does that.
    """
    action.offered = values  # type: ignore[attr-defined]


def add_flags(to: argparse._ActionsContainer, *flags: tuple[str, Any, Any, str, str]) -> None:
    """Add flags that take a value: the name, type, default, metavar and help of each."""
    for name, kind, default, metavar, text in flags:
        to.add_argument(name, type=kind, default=default, metavar=metavar, help=text)


class Parser(argparse.ArgumentParser):
    """argparse's parser, with an error in one sentence, nearest match included, and no usage."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        named.setdefault("formatter_class", _Lines)
        super().__init__(*arguments, **named)
        self._negative_number_matcher = _NEGATIVE
        self.elsewhere: Mapping[str, str] = {}
        """Commands that do not exist, and what to type instead."""

    def error(self, message: str) -> NoReturn:
        """Print the message, and end with status 2."""
        self.exit(2, f"{self.prog}: {message}\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write, and let a broken pipe raise, which argparse would ignore."""
        stream = file or sys.stderr
        if message and stream is not None:
            stream.write(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, after a check for unknown flags: argparse reports missing ones first
        and suggests nothing. Without any word where a command is required, print help.
        """
        words = sys.argv[1:] if args is None else list(args)
        if not words and any(action.required for action in self.below):
            self.print_help()
            self.exit()
        for flag in self._own_flags(words):
            if not any(known.startswith(flag) for known in self._option_string_actions):
                known_flags = [
                    name for name in self._option_string_actions if name.startswith("--")
                ]
                meant = did_you_mean(flag, known_flags) or f"; {self.prog} --help names all"
                self.error(f"unknown flag {flag!r}{meant}")
        return super().parse_known_args(words, namespace)

    def _own_flags(self, words: Sequence[str]) -> Iterator[str]:
        """The long flags among `words` that are this parser's own, not a subcommand's."""
        below = self.below
        for word in words:
            if word == "--":
                return
            if not word.startswith("-") and any(
                action.required or word in action.choices for action in below
            ):
                return
            if word.startswith("--") and " " not in word.partition("=")[0]:
                yield word.partition("=")[0]

    @property
    def below(self) -> "list[argparse._SubParsersAction[Any]]":
        """The actions that take a subcommand's name, if the parser has subcommands."""
        return [
            action for action in self._actions if isinstance(action, argparse._SubParsersAction)
        ]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            if value in self.elsewhere:
                self.error(f"there is no {action.dest} {value!r}: {self.elsewhere[value]}")
            self.error(unknown(action.dest, value, list(action.choices)))
        raise argparse.ArgumentError(
            action, not_one_of(value, [str(choice) for choice in action.choices])
        )


class _Lines(argparse.HelpFormatter):
    """Keeps the line breaks of a description or epilog of several lines."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "\n".join(f"{indent}{line}" for line in text.splitlines())
