"""The header of a GGUF file: its fields, its tensors, and how many bytes these need.

A model may lie in several files, of which the first has the fields; each has a header of its own
tensors. A truncated file, and a part without the others, show before anything else is read.
"""

import mmap
import re
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from daemon.models.formats import FORMATS
from daemon.models.gguf_kinds import check_kinds
from daemon.models.shape import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {
    number: struct.Struct("<" + letter)
    for number, letter in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_MOST_SIDES = 4
_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)
"""How the parts of a split file are named."""
_ALIGNMENT = 32
KINDS: Final = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""GGUF's numbers for the formats of `FORMATS`."""


class GgufTensor(NamedTuple):
    """A tensor's place in the file."""

    name: str
    kind: int  # GGUF's number of its format
    shape: tuple[int, ...]  # as torch has it: rows first
    start: int  # byte of the file
    part: int = 0  # of a split file

    @property
    def size_bytes(self) -> int:
        """Bytes in the file; 0 for a format that llmd does not read. Raises ValueError."""
        form = FORMATS.get(KINDS.get(self.kind, ""))
        if form is None or not self.shape:
            return 0
        rows = 1
        for side in self.shape[:-1]:
            rows *= side
        return rows * form.row_bytes(self.shape[-1])


class GgufHeader(NamedTuple):
    """The part of a file before the weights."""

    fields: dict[str, Any]  # numbers, bools, strings, and lists of these
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        """As llama.cpp calls it; empty where the file does not say."""
        return str(self.fields.get("general.architecture", ""))


def read_gguf_header(path: Path) -> GgufHeader:
    """A model's header, of all parts if `path` is the first of several. Raises ModelError for a
    file that is cut, a later part, or no GGUF file, and for fields of other kinds than llmd reads.
    """
    first = _read(path)
    count, number = first.fields.get("split.count", 1), first.fields.get("split.no", 0)
    paths = part_paths(path)
    if count < 2:
        if paths != (path,):
            said = "is named as a part of a split file, and is a whole one: give it another name"
            raise ModelError(f"{path} {said}")
        return first
    if number:
        begin = f"{path} is part {number + 1} of {count} of a split file"
        raise ModelError(f"{begin}: --model takes the first one, {paths[0]}")
    if len(paths) != count:
        named = f"{path.stem}-00001-of-{count:05}.gguf"
        raise ModelError(f"{path} is the first of {count} parts: their names end as in {named}")
    return _joined(paths, first)


def part_paths(path: Path) -> tuple[Path, ...]:
    """The parts of a split file that `path` is one of, by their names; else the path alone."""
    found = _PART.fullmatch(path.name)
    if not found:
        return (path,)
    begin, _, count, end = found.groups()
    names = (f"{begin}-{number:05}-of-{count}{end}" for number in range(1, int(count) + 1))
    return tuple(path.with_name(name) for name in names) or (path,)


def whole_name(path: Path) -> str:
    """A file's name without its end, and without the number of a part."""
    found = _PART.fullmatch(path.name)
    return found[1] if found else path.stem


def _read(path: Path) -> GgufHeader:
    """The header of one file, which must be whole."""
    try:
        with path.open("rb") as file:
            size_bytes = file.seek(0, 2)
            if not size_bytes:
                raise ModelError(f"{path} is empty")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                header = _Reader(path, mapped).header()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    _check_whole(path, header, size_bytes)
    _check_places(path, header)
    return header


def _joined(paths: tuple[Path, ...], first: GgufHeader) -> GgufHeader:
    """The header of all parts together."""
    tensors = list(first.tensors)
    seen = {tensor.name for tensor in tensors}
    for part, path in enumerate(paths[1:], 1):
        if not path.is_file():
            raise ModelError(f"{path} is missing, part {part + 1} of {len(paths)} of {paths[0]}")
        header = _read(path)
        said = [header.fields.get(f"split.{name}") for name in ("no", "count")]
        if said != [part, len(paths)]:
            raise ModelError(f"{path} does not say that it is part {part + 1} of {len(paths)}")
        for name, value in header.fields.items():
            if first.fields.get(name) != value and not name.startswith("split."):
                raise ModelError(f"{path} says {name}, and {paths[0]} does not say the same")
        for tensor in header.tensors:
            if tensor.name in seen:
                raise ModelError(f"{path} has the tensor {tensor.name} of another part")
            seen.add(tensor.name)
            tensors.append(tensor._replace(part=part))
    wanted = first.fields.get("split.tensors.count", len(tensors))
    if wanted != len(tensors):
        raise ModelError(f"{paths[0]} tells of {wanted} tensors, and its parts have {len(tensors)}")
    return GgufHeader(first.fields, tuple(tensors))


def _check_whole(path: Path, header: GgufHeader, size_bytes: int) -> None:
    for tensor in header.tensors:
        try:
            needed = tensor.start + tensor.size_bytes
        except ValueError as error:
            raise ModelError(f"{path}: {tensor.name}: {error}") from None
        if needed > size_bytes:
            whole = max(tensor.start + tensor.size_bytes for tensor in header.tensors)
            raise ModelError(
                f"{path} is not whole: it has {size_bytes:,} bytes and its header tells of "
                f"{whole:,}, so {whole - size_bytes:,} are missing"
            )


def _check_places(path: Path, header: GgufHeader) -> None:
    """Raise ModelError unless each tensor begins where the one before it ends, as llama.cpp wants
    it: else two share their bytes.
    """
    alignment = header.fields.get("general.alignment", _ALIGNMENT)
    for before, tensor in pairwise(header.tensors):
        if before.kind not in KINDS:
            return  # of an unknown size; refused by its format
        end = before.start + before.size_bytes
        if tensor.start != -(-end // alignment) * alignment:
            said = f"lies at {tensor.start:,}, and {before.name} before it ends at {end:,}"
            raise ModelError(f"{path}: {tensor.name} {said}")


class _Reader:
    """Reads on from where it is."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0

    def header(self) -> GgufHeader:
        if self._data[:4] != _MAGIC:
            raise ModelError(f"{self._path} is not a GGUF file")
        self._at = 4
        try:
            return self._header()
        except RecursionError:
            raise ModelError(f"{self._path} is not a GGUF file: lists in lists") from None
        except (struct.error, IndexError):
            said = f"it ends in its header, behind {len(self._data):,} bytes"
            raise ModelError(f"{self._path} is not whole: {said}") from None
        except UnicodeDecodeError:
            raise ModelError(f"{self._path} is not a GGUF file: a name is no text") from None

    def _header(self) -> GgufHeader:
        version = self._number(_U32)
        if version not in _VERSIONS:
            known = " and ".join(map(str, _VERSIONS))
            said = f"is of GGUF's version {version}, and llmd reads {known}"
            if version > 0xFFFF:
                said = "is written for a machine of another byte order"
            raise ModelError(f"{self._path} {said}")
        num_tensors, num_fields = self._number(_U64), self._number(_U64)
        fields = dict[str, Any]()
        for _ in range(num_fields):
            name = self._text()
            if name in fields:
                raise ModelError(f"{self._path} has the field {name} twice")
            fields[name] = self._value(self._number(_U32))
        try:
            check_kinds(fields)
        except ModelError as error:
            raise ModelError(f"{self._path}: {error}") from None
        tensors = [self._tensor() for _ in range(num_tensors)]
        alignment = fields.get("general.alignment", _ALIGNMENT)
        begin = -(-self._at // alignment) * alignment
        self._check_names([tensor.name for tensor in tensors])
        return GgufHeader(
            fields, tuple(tensor._replace(start=begin + tensor.start) for tensor in tensors)
        )

    def _check_names(self, names: list[str]) -> None:
        seen = set[str]()
        for name in names:
            if name in seen:
                raise ModelError(f"{self._path} has the tensor {name} twice")
            seen.add(name)

    def _tensor(self) -> GgufTensor:
        name, sides = self._text(), self._number(_U32)
        if sides > _MOST_SIDES:
            raise ModelError(f"{self._path}: the tensor {name} has {sides} sides")
        shape = tuple(self._number(_U64) for _ in range(sides))
        return GgufTensor(name, self._number(_U32), shape[::-1], self._number(_U64))

    def _number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return value

    def _text(self) -> str:
        length, begin = self._number(_U64), self._at
        if begin + length > len(self._data):
            raise IndexError
        self._at = begin + length
        return self._data[begin : begin + length].decode()

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            raise ModelError(f"{self._path} is not a GGUF file: a field of the kind {kind}")
        of, count = self._number(_U32), self._number(_U64)
        if count > len(self._data):
            raise IndexError
        if form := _SCALARS.get(of):
            begin, self._at = self._at, self._at + form.size * count
            return list(struct.unpack_from(f"<{count}{form.format[-1]}", self._data, begin))
        read: Callable[[], Any] = self._text if of == _STRING else lambda: self._value(of)
        return [read() for _ in range(count)]
