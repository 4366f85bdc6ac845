"""Readers: what they find, and where they say a fault lies."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from daemon.lab.workload.traces import MOONCAKE_BLOCK, read_trace
from daemon.lab.workload.workload import WorkloadError
from tests.lab.workload.samples import AZURE, LENGTHS, MOONCAKE, written


def test_azure_times_keep_their_seventh_digit(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, AZURE))
    assert trace.prompt_tokens.tolist() == [374, 3000, 10, 879]
    assert trace.output_tokens.tolist() == [44, 1100, 0, 55]
    assert trace.time_s is not None
    assert trace.time_s == pytest.approx([0, 1.0000001, 2, 4], abs=1e-9)


def test_azure_reads_alike_however_it_is_stored(tmp_path: Path) -> None:
    plain = read_trace(written(tmp_path, AZURE, "a.txt"))
    zipped = tmp_path / "b"
    zipped.write_bytes(gzip.compress(AZURE.encode()))
    reordered = (
        "\ufeffGeneratedTokens,model,TIMESTAMP,ContextTokens\n"
        "44,x,2023-11-16T18:15:46.6805900Z,374\n\n"
        "1100,x,2023-11-16 18:15:47.6805901+00:00,3000\n"
        "0,x,2023-11-16 18:15:48.6805900,10\n55,x,2023-11-16 18:15:50.6805900,879\n"
    )
    for path in (zipped, written(tmp_path, reordered, "c.jsonl")):
        other = read_trace(path)
        assert np.array_equal(other.prompt_tokens, plain.prompt_tokens)
        assert np.array_equal(other.output_tokens, plain.output_tokens)
        assert other.time_s is not None and plain.time_s is not None
        assert np.array_equal(other.time_s, plain.time_s)


def test_lengths_stay_in_file_order_without_times(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, LENGTHS))
    assert trace.time_s is None and trace.prefixes == []
    assert trace.prompt_tokens.tolist() == [3742, 18, 11, 26, 2000]
    assert trace.output_tokens.tolist() == [284, 243, 306, 279, 48]


def test_mooncake_is_put_in_order_and_shares_whole_blocks_alone(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, MOONCAKE))
    assert trace.time_s is not None
    assert trace.time_s.tolist() == [0, 0.25, 1.5, 3]
    assert trace.prompt_tokens.tolist() == [1100, 1024, 30, 90000]
    assert trace.prefixes == [(7, 8), (7, 8), (), (7,)]
    assert trace.prefix_block == MOONCAKE_BLOCK


def test_what_fits_is_asked_and_answered_within_the_context(tmp_path: Path) -> None:
    azure = read_trace(written(tmp_path, AZURE))
    assert azure.within(4099).tolist() == [True, False, False, True]
    assert azure.within(4100).tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["line 1", "header"]),
        ("a,b\n1,2\n", ["line 1", "no known trace", "num_prefill_tokens"]),
        (AZURE.splitlines()[0], ["no requests"]),
        (AZURE.replace("3000", "many"), ["line 3", "ContextTokens", "'many'"]),
        (AZURE.replace(",1100", ""), ["line 3", "2 values"]),
        (AZURE.replace("3000", "3000000000"), ["line 3", "at most"]),
        (AZURE.replace("18:15:48", "18.15"), ["line 4", "TIMESTAMP"]),
        (AZURE.replace("11-16 18:15:48", "13-16 18:15:48"), ["line 4", "TIMESTAMP"]),
        (LENGTHS.replace("306", "3e2"), ["line 4", "num_decode_tokens", "'3e2'"]),
        (MOONCAKE.replace("30,", "30.5,"), ["line 5", "input_length"]),
        (MOONCAKE.replace('"output_length": 4, ', "", 1), ["line 2", "output_length"]),
        (MOONCAKE[:-5], ["line 5"]),
        (MOONCAKE.replace("90000", "9000000000"), ["line 4", "above"]),
    ],
)
def test_faults_name_the_file_and_the_line(tmp_path: Path, text: str, words: list[str]) -> None:
    path = written(tmp_path, text)
    with pytest.raises(WorkloadError) as caught:
        read_trace(path)
    for word in [str(path), *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("cut", [5, 40, -4])
def test_a_damaged_archive_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "trace.gz"
    path.write_bytes(gzip.compress(AZURE.encode())[:cut])
    with pytest.raises(WorkloadError, match="damaged"):
        read_trace(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(b"TIMESTAMP\xff\xfe,1\n")
    with pytest.raises(WorkloadError, match="not a text file"):
        read_trace(path)


def test_a_missing_file_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none")
