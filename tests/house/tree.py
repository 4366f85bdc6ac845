"""The tree of the product's files with their purposes, made from module docstrings: `make tree`."""

from pathlib import Path

from tests.house.source import PACKAGES, ROOT, purpose_of, python_files


def build() -> str:
    """One line a folder and a file: indentation, name, purpose."""
    lines: list[str] = []
    for package in PACKAGES:
        _folder(ROOT / package, 0, lines)
    return "\n".join(lines) + "\n"


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
    print(build(), end="")
