"""The comparison with other servers adds up memory, and shows what it measured."""

import os

import pytest

from benchmarks.peers.load import Answer
from benchmarks.peers.memory import add_up, tree_memory
from benchmarks.peers.report import processor_time, summarise, table

PRIVATE = """7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Rss:                4096 kB
Pss:                4096 kB
Anonymous:          4096 kB
"""
SHARED = """7f1000000000-7f1000200000 rw-s 00000000 00:01 12      /memfd:plans (deleted)
Rss:                2048 kB
Pss:                1024 kB
Anonymous:             0 kB
"""
FILE = """7f2000000000-7f2000800000 r--p 00001000 fe:00 77      /models/a file.gguf
Rss:                8192 kB
Pss:                 100 kB
Anonymous:          1024 kB
"""


@pytest.mark.parametrize(
    ("processes", "rss_mb", "pss_mb"),
    [
        ([PRIVATE], 4, 4),
        ([PRIVATE + SHARED, SHARED], 8, 6),
        ([FILE], 8, 8),  # others map it too, and it counts whole
        ([FILE, FILE], 16, 9),  # once for both, but for what each changed
        ([], 0, 0),
    ],
)
def test_shared_pages_count_once(processes: list[str], rss_mb: float, pss_mb: float) -> None:
    memory = add_up(processes)
    assert (memory.rss_mb, memory.pss_mb) == (rss_mb, pss_mb)


def test_this_process_is_seen() -> None:
    memory = tree_memory(os.getpid())
    assert memory.rss_mb >= memory.pss_mb > 1


def test_the_table_has_a_column_for_each_server() -> None:
    runs = [
        {"server": server, "mode": "c8", "tok_per_s": speed, "ttft_mean_ms": 10.0}
        for server, speed in (("llmd", 300.0), ("llmd", 320.0), ("llama", 200.0), ("vllm", 155.0))
    ]
    shown = table({"q8_0": summarise(runs, ["llmd", "vllm", "llama"])}).splitlines()
    assert shown == [
        "",
        "| q8_0 | llmd | vllm | llama | llmd to the best of them |",
        "| --- | --- | --- | --- | --- |",
        "| c8: output tok/s | 310 (300-320) | 155 (155-155) | 200 (200-200) | 1.55 |",
        "| c8: TTFT mean ms | 10 (10-10) | 10 (10-10) | 10 (10-10) | 1.00 |",
    ]


def test_processor_time_is_that_of_all_tokens_and_requests() -> None:
    answers = [Answer(4, tokens=3), Answer(4, tokens=5)]
    found = processor_time(answers, {"server": 1.6, "wall_s": 0.5})
    assert found == {"cpu_ms_per_token": 100.0, "cpu_ms_per_request": 400.0}
    assert "cpu_ms_per_token" not in processor_time([Answer(4)], {"server": 1.0, "wall_s": 1.0})
