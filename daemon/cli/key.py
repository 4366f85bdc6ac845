"""`llmd key new NAME`: a fresh API key, and the lines of the configuration that let it in."""

import argparse
import sys

from daemon.config.keys import KEY_NAME, hash_of, new_key

_AFTER = """\
# The key above is shown this once and is stored nowhere. Add these lines to the configuration
# (limits: see docs/llmd.toml), then `llmd ctl reload`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verbs of `llmd key`."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    new = verbs.add_parser("new", help="make a key and print it, once")
    new.add_argument("name", metavar="NAME", help="the key's owner: letters, digits, . _ -")


def key(arguments: argparse.Namespace) -> int:
    """Print a key, and its section for the configuration. 0: done; 2: not a name."""
    if not KEY_NAME.fullmatch(arguments.name):
        print(
            f"llmd: a key's name takes up to 64 of A-Z a-z 0-9 . _ -, got {arguments.name!r}",
            file=sys.stderr,
        )
        return 2
    fresh = new_key()
    print(fresh)
    print(f'\n{_AFTER}[[key]]\nname = "{arguments.name}"\nhash = "{hash_of(fresh)}"')
    return 0
