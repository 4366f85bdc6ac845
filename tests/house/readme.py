"""The README shows the example scripts as they are: `python -m tests.house.readme --write`."""

import re
import sys

from tests.house.source import ROOT

README = ROOT / "README.md"
_SHOWN = re.compile(r"(\(`(examples/[\w.]+)`[^\n]*:\n\n```\w+\n)(.*?)(```\n)", re.DOTALL)


def shown() -> dict[str, str]:
    """Each example named before a code block, and the code that the README shows."""
    text = README.read_text(encoding="utf-8")
    return {match[2]: match[3] for match in _SHOWN.finditer(text)}


def write() -> None:
    """Put the scripts into the README."""

    def fresh(match: re.Match[str]) -> str:
        return match[1] + (ROOT / match[2]).read_text(encoding="utf-8") + match[4]

    README.write_text(_SHOWN.sub(fresh, README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__" and "--write" in sys.argv[1:]:
    write()
