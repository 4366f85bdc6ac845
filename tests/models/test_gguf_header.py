"""Headers of GGUF files: what is cut, a part of several, or no such file is told at once."""

import hashlib
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from daemon.models.embedded import model_folder
from daemon.models.formats import FORMATS
from daemon.models.gguf_header import KINDS, read_gguf_header
from daemon.models.shape import ModelError
from tests.engine.loading.gguf_files import write


def all_alike(_name: str) -> str:
    return "Q4_0"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", all_alike).read_bytes()


def test_it_reads_what_the_gguf_package_reads(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", lambda name: "Q6_K" if "attn_v" in name else "Q4_0")
    header, reader = read_gguf_header(path), gguf.GGUFReader(path)
    for name, field in reader.fields.items():
        if not name.startswith("GGUF."):
            assert header.fields[name] == field.contents(), name
    assert len(header.tensors) == len(reader.tensors)
    for ours, theirs in zip(header.tensors, reader.tensors, strict=True):
        assert (ours.name, ours.start) == (theirs.name, theirs.data_offset)
        assert ours.size_bytes == theirs.n_bytes
        assert ours.shape == tuple(int(side) for side in reversed(theirs.shape))
        assert KINDS[ours.kind] == theirs.tensor_type.name


def test_every_format_has_its_number() -> None:
    assert set(KINDS.values()) == {name for name in FORMATS if "/" not in name}
    for number, name in KINDS.items():
        assert gguf.GGMLQuantizationType(number).name == name


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999999])
def test_a_file_that_was_cut_is_not_whole(share: float, whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match=r"cut\.gguf is not whole: it (has|ends in its header)"):
        model_folder(str(path), tmp_path / "cache")


def test_the_missing_bytes_are_counted(whole: bytes, tmp_path: Path) -> None:
    (path := tmp_path / "cut.gguf").write_bytes(whole[:-1000])
    last = read_gguf_header(write(tmp_path / "tiny.gguf", all_alike)).tensors[-1]
    needed = last.start + last.size_bytes
    missing = needed - len(whole) + 1000
    with pytest.raises(ModelError, match=rf"tells of {needed:,}, so {missing:,} are missing"):
        read_gguf_header(path)


def test_what_the_header_shows_is_told_before_all_is_read(
    whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("all of the file was read")

    monkeypatch.setattr(hashlib, "file_digest", read)
    (path := tmp_path / "cut.gguf").write_bytes(whole[:-1000])
    with pytest.raises(ModelError, match="is not whole"):
        model_folder(str(path), tmp_path / "cache")
    path.write_bytes(whole)
    with pytest.raises(AssertionError, match="all of the file"):
        model_folder(str(path), tmp_path / "cache")


@pytest.mark.parametrize("number", [2, 3])
def test_a_later_part_of_a_split_file_names_the_first(number: int, tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", all_alike, parts_of=8)
    path = tmp_path / f"tiny-{number:05d}-of-00003.gguf"
    said = rf"is part {number} of 3 of a split file: --model takes the first one, .*/tiny-00001-of"
    with pytest.raises(ModelError, match=said):
        model_folder(str(path), tmp_path / "cache")
    assert not list((tmp_path / "cache" / "models").glob("[!.]*"))


def test_a_split_file_has_the_tensors_of_all_its_parts(tmp_path: Path) -> None:
    whole = read_gguf_header(write(tmp_path / "whole.gguf", all_alike))
    write(tmp_path / "tiny.gguf", all_alike, parts_of=8)
    header = read_gguf_header(tmp_path / "tiny-00001-of-00003.gguf")
    assert [tensor.name for tensor in header.tensors] == [tensor.name for tensor in whole.tensors]
    assert [tensor.part for tensor in header.tensors] == [0] * 8 + [1] * 8 + [2] * 5


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.unlink(), "00002-of-00003.gguf is missing, part 2 of 3"),
        (
            lambda path: path.write_bytes(path.read_bytes()[:-900]),
            "00002-of-00003.gguf is not whole",
        ),
        (
            lambda path: path.write_bytes(path.with_name("tiny-00003-of-00003.gguf").read_bytes()),
            "does not say that it is part 2 of 3",
        ),
    ],
    ids=["missing", "cut", "another part"],
)
def test_a_part_that_is_not_there_is_named(
    spoil: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    write(tmp_path / "tiny.gguf", all_alike, parts_of=8)
    spoil(tmp_path / "tiny-00002-of-00003.gguf")
    with pytest.raises(ModelError, match=said):
        model_folder(str(tmp_path / "tiny-00001-of-00003.gguf"), tmp_path / "cache")


def test_a_first_part_of_another_name_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", all_alike, parts_of=8)
    path = (tmp_path / "tiny-00001-of-00003.gguf").rename(tmp_path / "tiny.gguf")
    with pytest.raises(ModelError, match="first of 3 parts: their names end as in tiny-00001-of-"):
        model_folder(str(path), tmp_path / "cache")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_whole_file_with_the_name_of_a_part_is_refused(
    number: int, whole: bytes, tmp_path: Path
) -> None:
    (path := tmp_path / f"tiny-{number:05}-of-00002.gguf").write_bytes(whole)
    with pytest.raises(ModelError, match="is named as a part of a split file"):
        model_folder(str(path), tmp_path / "cache")


def test_tensors_that_share_bytes_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny.gguf", all_alike)
    first, second = gguf.GGUFReader(path).tensors[:2]
    *before, offset = second.field.parts
    at = second.field.offset + sum(part.nbytes for part in before)
    data = bytearray(path.read_bytes())
    data[at : at + offset.nbytes] = first.field.parts[-1].tobytes()
    path.write_bytes(data)
    with pytest.raises(ModelError, match=f"{second.name} lies at .* {first.name} before it ends"):
        read_gguf_header(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"GGML" + bytes(40), "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "is of GGUF's version 1, and llmd reads 2 and 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "is written for a machine of another byte order"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "is not whole: it ends in its header"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62), "is not whole: it ends in its header"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<I", 77),
            "a field of the kind 77",
        ),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"\xff", "a name is no text"),
    ],
)
def test_what_is_no_gguf_file_is_told(data: bytes, said: str, tmp_path: Path) -> None:
    (path := tmp_path / "odd.gguf").write_bytes(data)
    with pytest.raises(ModelError, match=said):
        read_gguf_header(path)


def test_a_name_that_comes_twice_is_refused(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "twice.gguf"
    path.write_bytes(whole.replace(b"blk.1.attn_norm", b"blk.0.attn_norm"))
    with pytest.raises(ModelError, match=r"has the tensor blk\.0\.attn_norm\.weight twice"):
        read_gguf_header(path)
