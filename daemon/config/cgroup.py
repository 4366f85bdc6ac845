"""The limits of this process's control group (version 2), and of the groups around it."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def limits(name: str, root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Folder and text of a control file, for the process's own group and each group around it.

    Groups without the file are left out: the outermost one, and those hidden by a container.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    if own is None:
        return
    top = root / "sys/fs/cgroup"
    group = Path(own.lstrip("/"))
    for inner in (group, *group.parents):
        try:
            text = (top / inner / name).read_text(encoding="ascii")
        except (OSError, ValueError):
            continue
        yield top / inner, text.strip()
