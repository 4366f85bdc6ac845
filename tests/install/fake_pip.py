"""Stands in for pip, as `python -m pip`: notes what is asked for, and installs a torch of a kind.

PIP_LIST is what `pip config list` prints; PIP_UNREACHABLE a part of the addresses that do not
answer; PIP_GIVES the CUDA version of the torch that the configured index has, empty for CPUs.
"""

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
arguments = [word for word in sys.argv[1:] if word != "--disable-pip-version-check"]


def put_torch(address: str) -> None:
    """The build that the index has, as far as anything looks at it."""
    name = address.rpartition("/")[2]
    named = f"{name[2:-1]}.{name[-1]}" if name.startswith("cu") else ""
    cuda = named if address else os.environ.get("PIP_GIVES", "")
    (FOLDER / "torch").mkdir(exist_ok=True)
    (FOLDER / "torch" / "__init__.py").touch()
    text = f"__version__ = '2.13.0+x'\ncuda: str | None = {cuda or None!r}\n"
    (FOLDER / "torch" / "version.py").write_text(text)


if arguments[:2] == ["config", "list"]:
    print(os.environ.get("PIP_LIST", ""))
    sys.exit()
with (FOLDER / "asked").open("a") as file:
    file.write(" ".join(arguments) + "\n")
index = arguments[arguments.index("--index-url") + 1] if "--index-url" in arguments else ""
if index and os.environ.get("PIP_UNREACHABLE", "nothing") in index:
    sys.exit(1)
if not (FOLDER / "torch").exists() or "--force-reinstall" in arguments:
    put_torch(index)
