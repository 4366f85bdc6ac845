"""`llmd ctl` against a real control socket."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from daemon import placement
from daemon.cli.ctl import budgets, policies, reloaded
from daemon.cli.main import main
from daemon.cli.status import as_json, as_text
from daemon.protocol.control import (
    ByKind,
    Counters,
    KindStatus,
    PredictorStatus,
    RankStatus,
    Reloaded,
    StageStatus,
    StateStatus,
)
from daemon.scheduler.policies import POLICIES, meanings
from tests.cli.served import CHOSEN, PLACED, snapshot


def test_json_has_what_scripts_rely_on(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "--socket", str(socket_path), "status", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    first, second = status["instances"]
    names = ("name", "role", "device", "running", "waiting", "kv_blocks", "kv_free")
    assert [first[name] for name in names] == ["gpu0", "mixed", "cuda:0", 1, 2, 4, 2]
    assert second["state"] == "loading"
    assert first["block_map"] == [3, 1, 0, 0]
    assert status["sequences"][0]["num_output_tokens"] == 2
    assert status["counters"]["requests"] == 5


def test_text_and_json_tell_kinds_of_layers_apart() -> None:
    kinds = KindStatus("full", 0, 2, 6, 0, 1), KindStatus("window", 1024, 10, 4, 1, 0)
    first = msgspec.structs.replace(
        snapshot().instances[0], by_kind=ByKind(kinds, np.array([1, 0, 0, 0], np.uint8))
    )
    told = msgspec.structs.replace(snapshot(), instances=(first,))
    assert "gpu0: blocks held: 6 of full layers, 4 of window layers (1024 tokens)" in as_text(told)
    status = json.loads(as_json(told))["instances"][0]["by_kind"]
    assert status["kinds"][1] == {
        "kind": "window", "window": 1024, "groups": 10, "held": 4, "fenced": 1, "cached": 0
    }  # fmt: skip
    assert status["kind_map"] == [1, 0, 0, 0]


def test_text_tells_the_use_of_snapshots_of_states() -> None:
    states = StateStatus(pages=197, snapshots=2, made=9, hits=5, hit_tokens=8000)
    first = msgspec.structs.replace(snapshot().instances[0], states=states)
    told = msgspec.structs.replace(snapshot(), instances=(first,))
    kept = "snapshots of states: 2, each of 197 blocks"
    spared = "5 prompts went on from one, which spared 8000 tokens"
    assert f"gpu0: {kept}, {spared}" in as_text(told)
    assert "states" not in as_json(snapshot())


def test_text_shows_each_instance(socket_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", "--socket", str(socket_path), "status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "llmd 1.2.3  pid 77  up 1:02:05  loading weights 40 %"
    assert "gpu0" in lines[-2] and "1/4" in lines[-2] and "12.5 ms" in lines[-2]
    assert "gpu1" in lines[-1] and "weights 40%" in lines[-1]


def test_text_and_json_tell_ranks() -> None:
    told = snapshot()
    ranks = (RankStatus(70, "ready", 300 << 20), RankStatus(71, "stopped", 280 << 20, "cuda:1"))
    one = msgspec.structs.replace(told.instances[1], ranks=ranks)
    told = msgspec.structs.replace(told, instances=(told.instances[0], one))
    assert as_text(told).splitlines()[-2:] == [
        "  rank 0  pid 70  ready  300 MiB",
        "  rank 1  cuda:1  pid 71  stopped  280 MiB",
    ]
    first, second = json.loads(as_json(told))["instances"]
    assert first["ranks"] == []
    sizes = {"memory_bytes": 280 << 20, "device": "cuda:1"}
    assert second["ranks"][1] == {"pid": 71, "state": "stopped", **sizes}


def test_text_and_json_tell_the_bubbles_of_stages() -> None:
    told = snapshot()
    ranks = RankStatus(70, "ready", 300 << 20), RankStatus(71, "ready", 280 << 20)
    stages = StageStatus(9.0, (8.0, 7.0), 2.0, (1.5, 1.9))
    one = msgspec.structs.replace(told.instances[0], ranks=ranks, stages=stages)
    told = msgspec.structs.replace(told, instances=(one,))
    assert as_text(told).splitlines()[-2:] == [
        "  rank 0  pid 70  ready  300 MiB  5 % bubble",
        "  rank 1  pid 71  ready  280 MiB  25 % bubble",
    ]
    assert json.loads(as_json(told))["instances"][0]["stages"]["newest_computed_s"] == [1.5, 1.9]


def test_text_and_json_tell_the_node_of_an_instance() -> None:
    told = snapshot()
    one = msgspec.structs.replace(told.instances[1], node="second")
    told = msgspec.structs.replace(told, instances=(told.instances[0], one))
    lines = as_text(told).splitlines()
    assert "gpu1" in lines[-2] and lines[-1] == "  node second"
    assert [one.get("node") for one in json.loads(as_json(told))["instances"]] == [None, "second"]


def test_text_tells_what_torch_stands_in_for() -> None:
    told = snapshot()
    slow = msgspec.structs.replace(
        told.instances[0], fallbacks=(("decode", "a fault"), ("graphs", "needs decode"))
    )
    text = as_text(msgspec.structs.replace(told, instances=(slow, *told.instances[1:])))
    assert "gpu0: torch computes decode, graphs: slower than its own kernels\n" in text


def test_text_tells_how_lengths_are_predicted() -> None:
    CHOSEN[:] = ["sarathi"]
    assert "predictor" not in as_text(snapshot())
    status = PredictorStatus("features", True, asks=10, dropped=1, answers=8, took_sum_s=0.004)
    counters = Counters()
    for predicted in (11, 12, 25, 900):  # one far off rules no median
        counters.note_answer(1.0, 10, predicted)
    seen = msgspec.structs.replace(snapshot(), predictor=status, counters=counters)
    assert as_text(seen).splitlines()[3] == (
        "predictor features: 8 of 10 answers predicted, 1 dropped, 0.50 ms each; "
        "of 4 finished the median is off by 20%, 50% are within a factor of two"
    )
    seen = msgspec.structs.replace(snapshot(), predictor=PredictorStatus("mean"))
    assert as_text(seen).splitlines()[3] == (
        "predictor mean (its process is not up): 0 of 0 answers predicted, 0 dropped"
    )


def test_without_a_name_every_policy_is_listed_and_nothing_chosen(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "--socket", str(socket_path), "policy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[2:] for line in lines] == meanings()
    assert [line for line in lines if line.startswith("*")] == [f"* {meanings()[1]}"]
    assert CHOSEN == ["sarathi"]


def test_a_name_changes_the_policy(socket_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ctl", "policy", "srtf", "--socket", str(socket_path)]) == 0
    assert CHOSEN == ["sarathi", "srtf"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["srtf"]


def test_placements_are_listed_and_chosen(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for chosen, starred in (([], "least_loaded"), (["jsq"], "jsq")):
        assert main(["ctl", "--socket", str(socket_path), "placement", *chosen]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in lines if line.startswith("*")] == [starred]
        assert [line[2:] for line in lines] == list(placement.meanings().values())
    assert PLACED == ["least_loaded", "jsq"]
    PLACED.pop()


def test_a_policy_may_be_for_one_instance(socket_path: Path) -> None:
    assert main(["ctl", "--socket", str(socket_path), "policy", "srtf", "--instance", "gpu1"]) == 0
    assert CHOSEN[-1] == "srtf on gpu1"


@pytest.mark.parametrize(
    ("words", "order"),
    [(["128"], "budget 128"), (["auto", "--instance", "gpu1"], "budget 0 on gpu1")],
)
def test_a_budget_is_chosen(
    socket_path: Path, words: list[str], order: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "--socket", str(socket_path), "budget", *words]) == 0
    assert CHOSEN[-1] == order
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["gpu0", "gpu1"]


def test_budgets_are_told_with_who_chose_them(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace = msgspec.structs.replace
    told = snapshot()
    first, second = (replace(one, batch_budget=64) for one in told.instances)
    told = replace(told, instances=(first, replace(second, chosen_budget=64)))
    assert budgets(told).splitlines() == [
        "gpu0: 64 tokens a step, as configured",
        "gpu1: 64 tokens a step, as chosen",
    ]
    chosen = list(CHOSEN)
    assert main(["ctl", "--socket", str(socket_path), "budget"]) == 0
    for words in (["0"], ["-5"], ["many"], ["--instance", "gpu1"]):
        assert main(["ctl", "--socket", str(socket_path), "budget", *words]) == 2
    assert "expected a number of tokens above 0, or auto, got 'many'" in capsys.readouterr().err
    assert chosen == CHOSEN


def test_policies_name_their_instances_where_several_are_in_use() -> None:
    told = snapshot()
    first, second = told.instances
    instances = tuple(
        msgspec.structs.replace(one, policy=policy)
        for one, policy in ((first, "srtf"), (second, "mlfq"))
    )
    lines = policies(msgspec.structs.replace(told, instances=instances)).splitlines()
    starred = [line for line in lines if line.startswith("*")]
    assert [line.split()[1] for line in starred] == ["srtf", "mlfq"]
    assert starred[0].endswith(" (gpu0)") and starred[1].endswith(" (gpu1)")


@pytest.mark.parametrize("rest", [["--instance", "gpu1"], ["srtf", "--instance", ""]])
def test_an_instance_is_named_together_with_a_policy_or_nothing_is_chosen(
    socket_path: Path, capsys: pytest.CaptureFixture[str], rest: list[str]
) -> None:
    chosen = list(CHOSEN)
    assert main(["ctl", "--socket", str(socket_path), "policy", *rest]) == 2
    assert capsys.readouterr().err == "llmd: --instance takes a name, and goes with a policy's\n"
    assert chosen == CHOSEN


def test_an_unknown_policy_is_one_line_with_the_names_and_status_1(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "--socket", str(socket_path), "policy", "best"]) == 1
    assert CHOSEN == ["sarathi"]
    streams = capsys.readouterr()
    assert streams.out == ""
    names = ", ".join(sorted(POLICIES))
    assert streams.err == f"llmd: the daemon refused: unknown policy 'best'; known are {names}\n"
    assert main(["ctl", "--socket", str(socket_path), "policy", "sarthi"]) == 1
    assert "'sarthi'; did you mean 'sarathi'?" in capsys.readouterr().err


def test_reload_says_what_changed_and_what_needs_a_restart(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "reload", "--socket", str(socket_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "read llmd.toml again; changed: daemon.drain_s",
        "needs a restart: server.port",
    ]
    assert reloaded(Reloaded("f", (), ())) == "read f again; changed: nothing"


def test_drain_and_resume_are_ordered_and_say_so(
    socket_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "drain", "--socket", str(socket_path)]) == 0
    assert capsys.readouterr().out == "no new requests are taken; answers under way: 3\n"
    assert main(["ctl", "--socket", str(socket_path), "resume"]) == 0
    assert capsys.readouterr().out.startswith("requests are taken again")
    assert CHOSEN == ["sarathi", "drained", "resumed"]


def test_a_policy_that_this_program_does_not_know_is_listed_too() -> None:
    CHOSEN[:] = ["from-a-newer-daemon"]
    assert policies(snapshot()).splitlines()[-1] == "* from-a-newer-daemon"


def test_the_help_says_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["ctl", "policy", "--help"])
    assert exit_.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "token budget of a step stays as configured" in said
    assert all(name in said for name in POLICIES)


@pytest.mark.parametrize(
    "verb",
    [
        *("status", "policy", "placement", "reload", "drain", "resume", "drain a", "resume a"),
        *("flip a decode", "migrate 1 a", "budget 64"),
    ],
)
def test_without_a_daemon_one_line_and_status_1(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ctl", "--socket", str(tmp_path / "none.sock"), *verb.split()]) == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("llmd: no llmd daemon answers at ")
    assert streams.err.count("\n") == 1
