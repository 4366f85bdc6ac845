"""Cores as /sys, the affinity mask and the control group tell of them."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.config.cores import Cores, CpuCore, parse_cpus, read_cores, written_ranges
from tests.config.machines import machine, put


def test_hardware_threads_of_a_core_are_one_core(tmp_path: Path) -> None:
    root = machine(tmp_path, [(0, 4), (1, 5), (2, 6), (3, 7)])
    found = read_cores(root, range(8))
    assert [core.cpus for core in found.cores] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert found.granted == 4 and found.cpus == tuple(range(8))


def test_what_the_mask_leaves_out_is_not_there(tmp_path: Path) -> None:
    root = machine(tmp_path, [(0, 4), (1, 5), (2, 6), (3, 7)], {0: "0-3", 1: "4-7"})
    found = read_cores(root, {1, 2, 6, 7})
    assert found.cores == (CpuCore((1,), 0), CpuCore((2, 6), 0), CpuCore((7,), 1))


def test_cores_come_in_the_order_of_their_nodes(tmp_path: Path) -> None:
    root = machine(tmp_path, [(cpu,) for cpu in range(4)], {0: "0,2", 1: "1,3"})
    assert [(core.cpus[0], core.node) for core in read_cores(root, range(4)).cores] == [
        (0, 0),
        (2, 0),
        (1, 1),
        (3, 1),
    ]


def test_a_kernel_that_says_nothing_has_single_cores(tmp_path: Path) -> None:
    assert read_cores(tmp_path, {0, 3}) == Cores((CpuCore((0,)), CpuCore((3,))))


def test_an_older_kernel_names_siblings_otherwise(tmp_path: Path) -> None:
    for cpu in (0, 1):
        put(tmp_path / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", "0-1")
    assert read_cores(tmp_path, {0, 1}).cores == (CpuCore((0, 1)),)


@pytest.mark.parametrize(
    ("groups", "quota", "granted"),
    [
        ({}, 0.0, 4),
        ({"/a/b": {"cpu.max": "max 100000"}}, 0.0, 4),
        ({"/a/b": {"cpu.max": "250000 100000"}}, 2.5, 2),
        ({"/a/b": {"cpu.max": "50000 100000"}}, 0.5, 1),
        ({"/a/b": {"cpu.max": "900000 100000"}}, 9.0, 4),
        ({"/a/b": {"cpu.max": "max 100000"}, "/a": {"cpu.max": "300000 100000"}}, 3.0, 3),
        ({"/": {"cpu.max": "100000 100000"}, "/a/b": {"cpu.max": "300000 100000"}}, 1.0, 1),
        ({"/a/b": {"cpu.max": "what 0"}}, 0.0, 4),
    ],
)
def test_the_tightest_control_group_counts(
    tmp_path: Path, groups: dict[str, dict[str, str]], quota: float, granted: int
) -> None:
    root = machine(tmp_path, [(cpu,) for cpu in range(4)], groups=groups, group="/a/b")
    found = read_cores(root, range(4))
    assert (found.quota, found.granted) == (quota, granted)


def test_this_machine_has_the_cores_of_this_process() -> None:
    assert set(read_cores().cpus) == os.sched_getaffinity(0)


@given(st.frozensets(st.integers(0, 300)))
def test_lists_of_cpus_read_as_they_are_written(cpus: frozenset[int]) -> None:
    assert parse_cpus(written_ranges(cpus)) == cpus


def test_lists_of_cpus_are_short() -> None:
    assert written_ranges({3, 0, 1, 2, 8}) == "0-3,8"
