"""The limits of this process's control group (version 2), and of the groups around it."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def limits(name: str, root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """The folder and the text of a control file, of the process's own group and of each around it.

    Nothing where there is no control group or the file is not there: of the outermost group, or
    inside a container whose outer groups are hidden.
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
