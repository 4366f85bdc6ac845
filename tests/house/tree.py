"""The tree in docs/tree.md, made from module docstrings.

`python -m tests.house.tree --write` brings it up to date; without `--write` it is printed.
"""

import sys
from pathlib import Path

from tests.house.source import PACKAGES, ROOT, purpose_of, python_files

DOCUMENT = ROOT / "docs" / "tree.md"
BEGIN, END = "<!-- tree: begin -->\n```text\n", "```\n<!-- tree: end -->"


def build() -> str:
    """One line a folder and a file: indentation, name, purpose."""
    lines: list[str] = []
    for package in PACKAGES:
        _folder(ROOT / package, 0, lines)
    return "\n".join(lines) + "\n"


def written() -> str:
    """The tree as the document has it."""
    return DOCUMENT.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]


def write() -> None:
    """Put the real tree into the document."""
    head, rest = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)
    tail = rest.split(END)[1]
    DOCUMENT.write_text(head + BEGIN + build() + END + tail, encoding="utf-8")


def named_files(tree: str) -> list[str]:
    """The Python files that a tree names, as paths from the root."""
    folders: list[str] = []
    files = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name = line.split()[0]
        del folders[depth:]
        if name.endswith("/"):
            folders.append(name)
        else:
            files.append("".join(folders) + name)
    return files


def _folder(folder: Path, depth: int, lines: list[str]) -> None:
    init = folder / "__init__.py"
    lines.append(_line(depth, f"{folder.name}/", purpose_of(init) if init.exists() else ""))
    if init.exists():
        lines.append(_line(depth + 1, init.name, ""))
    for path in sorted(folder.glob("*.py")):
        if path != init:
            lines.append(_line(depth + 1, path.name, purpose_of(path)))
    for below in sorted(path for path in folder.iterdir() if path.is_dir()):
        if python_files(str(below.relative_to(ROOT))):
            _folder(below, depth + 1, lines)


def _line(depth: int, name: str, purpose: str) -> str:
    return f"{'  ' * depth + name:<30} {purpose}".rstrip()


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        write()
    else:
        print(build(), end="")
