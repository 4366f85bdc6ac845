"""`llmd ctl status --json` on an instance that keeps room for answers by predictions."""

import json

from daemon.cli.status import as_json
from tests.tui import due, keeping, scenario


def test_json_names_what_is_lent_to_whom_and_until_when() -> None:
    first, second = json.loads(as_json(keeping.lending(10)))["instances"]
    assert second["reserved"] is None
    assert (first["kv_written"], first["batch_budget"]) == (0.41, 512)
    assert first["newest_tokens"][:3] == [0, 64, 128]
    reserved = first["reserved"]
    assert (reserved["ready"], reserved["ready_blocks"], reserved["peak"]) == (3, 21, None)
    assert reserved["groups"][0] == {"num_tokens": 512, "num_begun": 4, "num_ready": 2}
    assert reserved["lending"]["num_blocks"] == 73
    assert reserved["lending"]["shown"][1] == {
        "sequence": 1004,
        "host": 1002,
        "num_borrowed": 20,
        "due_token": 800,
        "num_tokens": 180,
        "num_held": 12,
        "num_reserved": 25,
        "num_lent": 8,
    }


def test_json_tells_the_peak_and_of_others_nothing() -> None:
    first, _ = json.loads(as_json(keeping.packing(10)))["instances"]
    assert first["reserved"]["lending"] is None
    assert first["reserved"]["peak"] == {"num_blocks": 1946, "num_steps": 83}
    assert {one["reserved"] for one in json.loads(as_json(scenario.snapshot(1)))["instances"]} == {
        None
    }


def test_the_json_tells_of_deadlines_now_and_since_the_start() -> None:
    told = json.loads(as_json(due.classes(10)))
    assert {"scale": 1.5, "kept": 90, "missed": 30} in told["counters"]["due"]
    (strict,) = [one for one in told["due"] if one["scale"] == 1.5]
    assert (strict["running"], strict["waiting"], strict["late"]) == (7, 2, 3)
    assert strict["least_left_s"] == 0.42
