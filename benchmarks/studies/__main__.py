"""Runs a study: `python -m benchmarks.studies NAME [OPTIONS]`; without a name it lists them.

A study is a file beside this one: `options` declares its options, `study` prints its tables.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

SHARED = {"__init__", "__main__", "frame"}


def names() -> list[str]:
    """The studies."""
    return sorted({path.stem for path in Path(__file__).parent.glob("*.py")} - SHARED)


def main(words: list[str]) -> int:
    """Run one; 2 if there is none of that name."""
    name = words[0] if words else ""
    if name not in names():
        for each in names():
            purpose = import_module(f"benchmarks.studies.{each}").__doc__ or ""
            print(f"{each:<24}{purpose.splitlines()[0]}")
        return 2 if name else 0
    module = import_module(f"benchmarks.studies.{name}")
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.studies {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.options(parser)
    module.study(parser.parse_args(words[1:]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
