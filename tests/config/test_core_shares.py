"""Cores dealt out to workers: nobody's twice, whole ones, and near their memory."""

from hypothesis import given
from hypothesis import strategies as st

from daemon.config.core_shares import CoreShare, core_shares, deal
from daemon.config.cores import Cores, CpuCore
from daemon.config.load import load


def cores(*sizes: int, smt: int = 1, quota: float = 0.0) -> Cores:
    """Nodes of so many cores, each of `smt` hardware threads."""
    total, found = sum(sizes), []
    for node, size in enumerate(sizes):
        for _ in range(size):
            first = len(found)
            found.append(CpuCore(tuple(first + total * thread for thread in range(smt)), node))
    return Cores(tuple(found), quota)


def test_one_worker_has_all_and_is_kept_nowhere() -> None:
    assert deal(cores(2), 1) == [CoreShare(2, (), "2 cores")]


def test_two_workers_on_two_cores_have_one_each() -> None:
    first, second = deal(cores(2), 2)
    assert (first.threads, first.cpus, second.threads, second.cpus) == (1, (0,), 1, (1,))
    assert first.why == "1 of 2 cores for 2 workers"
    assert str(first) == "cpus 0, 1 thread"


def test_hardware_threads_of_a_core_stay_together_and_one_of_them_computes() -> None:
    first, second = deal(cores(4, smt=2), 2)
    assert (first.cpus, first.threads) == ((0, 1, 4, 5), 2)
    assert (second.cpus, second.threads) == ((2, 3, 6, 7), 2)
    assert "2 of 4 cores (4 hardware threads)" in first.why


def test_a_worker_stays_on_a_node_where_there_is_one_for_it() -> None:
    assert [share.cpus for share in deal(cores(4, 4), 2)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    three = deal(cores(4, 4), 3)
    assert [share.cpus for share in three] == [(0, 1), (2, 3), (4, 5, 6, 7)]
    assert three[2].why == "4 of 8 cores, NUMA node 1 for 3 workers"


def test_fewer_workers_than_nodes_have_whole_nodes() -> None:
    assert [share.cpus for share in deal(cores(2, 2, 2), 2)] == [(0, 1, 4, 5), (2, 3)]
    (alone,) = deal(cores(2, 2), 1)
    assert (alone.threads, alone.cpus) == (4, ())


def test_more_workers_than_cores_share_them_with_a_thread_each() -> None:
    shares = deal(cores(2), 3)
    assert {(share.threads, share.cpus) for share in shares} == {(1, ())}
    assert shares[0].why == "2 cores for 3 workers, which share them"


def test_a_quota_below_the_cores_says_how_many_threads() -> None:
    (alone,) = deal(cores(8, quota=2.5), 1)
    assert (alone.threads, alone.cpus) == (2, ())
    assert alone.why == "8 cores; the control group grants 2.5 processors"
    both = deal(cores(8, quota=3.0), 2)
    assert [(share.threads, share.cpus) for share in both] == [
        (2, (0, 1, 2, 3)),
        (1, (4, 5, 6, 7)),
    ]


def test_threads_that_were_asked_for_are_kept_where_they_fit() -> None:
    first, second = deal(cores(4), 2, threads=2)
    assert (first.threads, first.cpus, second.cpus) == (2, (0, 1), (2, 3))
    assert first.why.startswith("daemon.threads; ")
    assert [share.threads for share in deal(cores(4, quota=1.0), 2, threads=2)] == [2, 2]
    too_many = deal(cores(2), 2, threads=2)
    assert {(share.threads, share.cpus) for share in too_many} == {(2, ())}
    assert "not kept" in too_many[0].why


def test_workers_of_gpus_take_part_in_nothing() -> None:
    devices = [{"device": device} for device in ("cpu", "cuda:0", "cpu")]
    first, gpu, second = core_shares(load(None, {"instance": devices}).config, cores(4))
    assert (first.cpus, second.cpus) == ((0, 1), (2, 3))
    assert (gpu.threads, gpu.cpus) == (0, ())
    assert str(gpu) == "any cpu"


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 12),
    st.integers(1, 2),
    st.sampled_from([0.0, 0.5, 1.0, 2.7, 40.0]),
)
def test_whatever_the_machine(sizes: list[int], workers: int, smt: int, quota: float) -> None:
    found = cores(*sizes, smt=smt, quota=quota)
    shares = deal(found, workers)
    assert len(shares) == workers
    node_of = {cpu: core.node for core in found.cores for cpu in core.cpus}
    kept = [share.cpus or found.cpus for share in shares]
    if workers <= len(found.cores):
        used = [cpu for cpus in kept for cpu in cpus]
        assert len(used) == len(set(used)), "a CPU belongs to two workers"
        assert sum(share.threads for share in shares) <= max(workers, found.granted)
        if len(sizes) <= workers:
            assert all(len({node_of[cpu] for cpu in cpus}) == 1 for cpus in kept)
    for share, cpus in zip(shares, kept, strict=True):
        assert 1 <= share.threads <= len(cpus)
        assert all(
            set(core.cpus) <= set(cpus) or not set(core.cpus) & set(cpus) for core in found.cores
        )
    if len(sizes) == 1 and workers <= len(found.cores):
        held = [len(cpus) for cpus in kept]
        assert max(held) - min(held) <= smt


def test_each_rank_has_cores_of_its_own() -> None:
    devices = [{"device": "cpu", "parallel": "tp2"}, {"device": "cpu"}]
    config = load(None, {"instance": devices, "scheduler": {"roles": "mixed"}}).config
    ranks, single = core_shares(config, cores(6))
    assert [share.cpus for share in ranks.ranks] == [(0, 1), (2, 3)]
    assert ranks.of_rank(1).threads == 2 and ranks.threads == 4
    assert single.cpus == (4, 5) and single.of_rank(0) is single
    assert str(ranks) == "cpus 0-1, 2 threads; cpus 2-3, 2 threads"


def test_a_stage_on_the_cpu_has_cores_beside_those_of_gpus() -> None:
    devices = [
        {"device": "cuda:0,cpu", "parallel": "pp2"},
        {"device": "cuda:1,2", "parallel": "tp2"},
    ]
    config = load(None, {"instance": devices, "scheduler": {"roles": "mixed"}}).config
    mixed, gpus = core_shares(config, cores(6))
    assert mixed.of_rank(0).threads == 6, "the last stage is the first rank"
    assert mixed.of_rank(1).threads == gpus.of_rank(1).threads == 0
