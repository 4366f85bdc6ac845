"""Readers of the files that profiles are converted from; errors name file, line and column."""

import csv
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from daemon.base.files import lines_of
from daemon.lab.profiles.errors import ProfileError


@dataclass(frozen=True, slots=True)
class TableRow:
    """One line of a table."""

    place: str  # "file:line"
    cells: dict[str, str]

    def text(self, column: str) -> str:
        """The cell as it stands."""
        return self.cells[column]

    def number(self, column: str) -> float:
        """The cell as a finite number. Raises ProfileError."""
        try:
            value = float(self.cells[column])
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise ProfileError(f"{self.place}: {column}: {self.cells[column]!r} is no number")
        return value

    def count(self, column: str) -> int:
        """The cell as a whole number. Raises ProfileError."""
        value = self.number(column)
        if value != int(value):
            raise ProfileError(f"{self.place}: {column}: {value} is no whole number")
        return int(value)


def rows_of(path: Path, columns: Collection[str]) -> Iterator[TableRow]:
    """The rows of a CSV file with a header that has at least `columns`. Raises ProfileError."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(lines_of(file))
            missing = sorted(set(columns) - set(reader.fieldnames or ()))
            if missing:
                raise ProfileError(f"{path}: the header lacks {', '.join(missing)}")
            for cells in reader:
                yield TableRow(f"{path}:{reader.line_num}", cells)
    except OSError as error:
        raise ProfileError(f"{path}: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise ProfileError(f"{path}: not a CSV table: {error}") from error


def one_of(folder: Path, pattern: str) -> Path:
    """The only file below `folder` that matches. Raises ProfileError where there is
    none or more.
    """
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        held = f"{len(found)} of them" if found else "none"
        raise ProfileError(f"{folder}: expected one file {pattern}, found {held}")
    return found[0]
