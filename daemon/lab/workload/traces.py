"""Read request traces: Azure's CSV, Mooncake's JSON lines, and tables of lengths."""

import contextlib
import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TextIO

import msgspec
import numpy as np
import numpy.typing as npt

from daemon.base.files import lines_of
from daemon.lab.workload.workload import Float64, WorkloadError

MOONCAKE_BLOCK = 512  # tokens under one hash id
_MAX_TOKENS = 2**31 - 1
_GZIP_MAGIC = b"\x1f\x8b"
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_LENGTHS = ("num_prefill_tokens", "num_decode_tokens")
_UTC_TIME = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:Z|\+00:00)?")


@dataclass(frozen=True)
class Trace:
    """N requests of a file, counts unchecked; in order of time where it has times."""

    prompt_tokens: npt.NDArray[np.int32]  # [N]
    output_tokens: npt.NDArray[np.int32]  # [N]
    time_s: Float64 | None = None  # [N] any origin, never falls
    prefixes: list[tuple[int, ...]] = field(default_factory=list)  # [N] or empty
    prefix_block: int = 0  # tokens

    def __len__(self) -> int:
        return int(self.prompt_tokens.size)

    def take(self, index: npt.NDArray[np.intp]) -> "Trace":
        """The rows at `index`, in its order."""
        return replace(
            self,
            prompt_tokens=self.prompt_tokens[index],
            output_tokens=self.output_tokens[index],
            time_s=None if self.time_s is None else self.time_s[index],
            prefixes=[self.prefixes[i] for i in index] if self.prefixes else [],
        )

    def within(self, max_len: int) -> npt.NDArray[np.bool_]:
        """[N] whether a request has a prompt and an answer that fit `max_len` tokens together."""
        total = self.prompt_tokens.astype(np.int64) + self.output_tokens
        return (self.prompt_tokens > 0) & (self.output_tokens > 0) & (total <= max_len)


def read_trace(path: Path) -> Trace:
    """The trace in a file, gzipped or not; its kind is recognised by its first line.

    Raises WorkloadError with the file and the line at fault, OSError where it cannot be read.
    """
    try:
        with _opened(path) as text:
            lines = lines_of(text)
            head = next(lines, "")
            if not head.strip():
                raise WorkloadError(f"{path}, line 1: a trace begins with its header or first row")
            reader = _read_mooncake if head.lstrip().startswith("{") else _read_csv
            trace = reader(path, chain([head], lines))
    except (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile, csv.Error) as error:
        raise WorkloadError(f"{path}: not a text file or damaged: {error}") from error
    if not len(trace):
        raise WorkloadError(f"{path}: the trace holds no requests")
    if trace.time_s is None:
        return trace
    return trace.take(np.argsort(trace.time_s, kind="stable"))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    with path.open("rb") as raw:
        zipped = raw.read(2) == _GZIP_MAGIC
        raw.seek(0)
        with contextlib.ExitStack() as stack:
            plain = stack.enter_context(gzip.GzipFile(fileobj=raw)) if zipped else raw
            # csv needs line ends unchanged; utf-8-sig skips a byte order mark.
            yield io.TextIOWrapper(plain, encoding="utf-8-sig", newline="")


def _read_csv(path: Path, lines: Iterable[str]) -> Trace:
    rows = csv.reader(lines)
    columns = [name.strip() for name in next(rows)]
    for wanted in (_AZURE, _LENGTHS):
        if set(wanted) <= set(columns):
            index = [columns.index(name) for name in wanted]
            break
    else:
        raise WorkloadError(
            f"{path}, line 1: columns {', '.join(columns)!r} are of no known trace; "
            f"known are {', '.join(_AZURE)} and {', '.join(_LENGTHS)}"
        )
    times_ns: list[np.datetime64] = []
    counts: list[tuple[int, int]] = []
    for row in rows:
        if not row:
            continue
        place = f"{path}, line {rows.line_num}"
        if len(row) <= max(index):
            raise WorkloadError(f"{place}: {len(row)} values, the header names {len(columns)}")
        *time, prompt, output = (row[i].strip() for i in index)
        counts.append((_count(place, wanted[-2], prompt), _count(place, wanted[-1], output)))
        if time:
            times_ns.append(_instant(place, time[0]))
    prompts, outputs = np.array(counts, np.int32).reshape(-1, 2).T
    if not times_ns:
        return Trace(prompts, outputs)
    stamps = np.array(times_ns, "datetime64[ns]")
    # Subtract while whole nanoseconds: a float of today's time is accurate to 200 ns only.
    return Trace(prompts, outputs, (stamps - stamps[0]) / np.timedelta64(1, "s"))


def _count(place: str, column: str, text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        raise WorkloadError(f"{place}: {column} must be a whole number, got {text!r}") from None
    if abs(count) > _MAX_TOKENS:
        raise WorkloadError(f"{place}: {column} must be at most {_MAX_TOKENS}, got {text}")
    return count


def _instant(place: str, text: str) -> np.datetime64:
    found = _UTC_TIME.fullmatch(text)
    try:
        if found:
            return np.datetime64(found[1], "ns")
    except ValueError:
        pass  # a month of 13 and the like
    raise WorkloadError(
        f"{place}: {_AZURE[0]} must be a time such as 2023-11-16 18:15:46.6805900, got {text!r}"
    )


class _MooncakeRow(msgspec.Struct):
    timestamp: float  # ms
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def _read_mooncake(path: Path, lines: Iterable[str]) -> Trace:
    decoder = msgspec.json.Decoder(_MooncakeRow)
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise WorkloadError(f"{path}, line {number}: {error}") from error
        if max(abs(row.input_length), abs(row.output_length)) > _MAX_TOKENS:
            raise WorkloadError(f"{path}, line {number}: a length is above {_MAX_TOKENS} tokens")
        rows.append(row)
    # The last id may stand for a partial block, and partial blocks are never shared.
    prefixes = [row.hash_ids[: max(row.input_length, 0) // MOONCAKE_BLOCK] for row in rows]
    shared = any(prefixes)
    return Trace(
        prompt_tokens=np.array([row.input_length for row in rows], np.int32),
        output_tokens=np.array([row.output_length for row in rows], np.int32),
        time_s=np.array([row.timestamp for row in rows], np.float64) / 1000,
        prefixes=prefixes if shared else [],
        prefix_block=MOONCAKE_BLOCK if shared else 0,
    )
