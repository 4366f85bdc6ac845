"""Drivers that refuse, cards that are lost, disks that are full: told in words, and made good."""

import json
from pathlib import Path

import pytest

from tests.powerd.fake_cards import (
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    NO_PERMISSION,
    NOT_SUPPORTED,
    ORIGINAL_MW,
    FakeCards,
    needs_compiler,
    uuid_of,
)
from tests.powerd.live import Powerd

pytestmark = needs_compiler

NOT_FOUND = "GPU-fake-1: its power limits cannot be read: Not Found"


def test_a_driver_that_refuses_is_quoted(powerd: Powerd, cards: FakeCards) -> None:
    talk = powerd.talk()
    assert talk.read(0)["ok"]
    num_inits = cards.machine.num_inits
    cards.cards[0].set_code = NO_PERMISSION
    error = "GPU-fake-0: its power limit cannot be set: Insufficient Permissions"
    assert talk.lease(0, 250) == {"ok": False, "error": error}
    cards.cards[1].look_code = NOT_SUPPORTED
    assert talk.lease(1, 250)["error"].endswith("cannot be read: Not Supported")
    assert talk.read(1)["error"].endswith("cannot be read: Not Supported")
    assert talk.lease(2, 150)["cap_watts"] == 150
    assert cards.machine.num_inits == num_inits
    cards.cards[0].set_code = 0
    assert talk.lease(0, 280)["cap_watts"] == 280
    assert powerd.saved()[uuid_of(0)] == ORIGINAL_MW[0]
    talk.close()
    powerd.until(lambda: cards.limits_mw() == ORIGINAL_MW)


def test_a_refused_change_leaves_the_lease_before_it(powerd: Powerd, cards: FakeCards) -> None:
    talk, other = powerd.talk(), powerd.talk()
    talk.lease(0, 250)
    cards.cards[0].set_code = NO_PERMISSION
    assert not talk.lease(0, 150)["ok"] and not talk.lease(0, 320)["ok"]
    cards.cards[0].set_code = 0
    assert other.lease(0, 120)["cap_watts"] == 250
    talk.close()
    powerd.until(lambda: cards.limits_mw()[0] == 120_000)


def test_a_lost_card_is_restored_once_it_is_back(powerd: Powerd, cards: FakeCards) -> None:
    """Nobody asks for it: what was not done is tried again by itself."""
    talk = powerd.talk()
    talk.lease(0, 250)
    talk.lease(1, 150)
    num_inits = cards.machine.num_inits
    cards.cards[0].set_code = cards.cards[0].look_code = GPU_IS_LOST
    assert talk.read(0)["error"].endswith("GPU is lost")
    talk.close()
    powerd.until(lambda: powerd.saved() == {uuid_of(0): 300_000})
    powerd.until(lambda: "GPU is lost; the file keeps its own limit" in powerd.log())
    cards.cards[0].set_code = cards.cards[0].look_code = 0
    powerd.until(lambda: cards.limits_mw() == ORIGINAL_MW)
    powerd.until(lambda: powerd.saved() == {})
    assert cards.machine.num_inits > num_inits, "NVML is opened again after such an error"


def test_a_leased_card_that_lost_its_limit_gets_it_again(powerd: Powerd, cards: FakeCards) -> None:
    """It was reset or came back, or somebody set another: the lease says what it has."""
    talk = powerd.talk()
    talk.lease(0, 250)
    for num_others, limit_mw in enumerate((300_000, 120_000), 1):
        cards.cards[0].limit_mw = limit_mw
        assert talk.read(0)["cap_watts"] == 250
        assert cards.limits_mw()[0] == 250_000
        assert powerd.log().count("the lease's limit") == num_others
    cards.cards[0].limit_mw = 300_000
    cards.cards[0].set_code = NO_PERMISSION
    assert talk.read(0)["cap_watts"] == 300, "it is told all the same"
    cards.cards[0].set_code = 0
    powerd.until(lambda: cards.limits_mw()[0] == 250_000)
    assert powerd.saved() == {uuid_of(0): 300_000}
    talk.lease(0, None)
    cards.cards[0].limit_mw = 222_000
    assert talk.read(0)["cap_watts"] == 222, "without a lease it is left alone"


def test_a_card_that_rounds_its_limit_is_not_set_again_and_again(
    powerd: Powerd, cards: FakeCards
) -> None:
    cards.cards[0].round_mw = 1_000
    talk = powerd.talk()
    assert talk.lease(0, 250.4)["cap_watts"] == 250
    sets = cards.cards[0].sets
    assert [talk.read(0)["cap_watts"] for _ in range(3)] == [250.0] * 3
    assert cards.cards[0].sets == sets and "the lease's limit" not in powerd.log()


@pytest.mark.parametrize("look_code", [0, GPU_IS_LOST])
def test_a_lease_that_cannot_be_given_back_is_over_all_the_same(
    powerd: Powerd, cards: FakeCards, look_code: int
) -> None:
    talk, other = powerd.talk(), powerd.talk()
    talk.lease(0, 250)
    cards.cards[0].set_code = NO_PERMISSION
    cards.cards[0].look_code = look_code
    assert not talk.lease(0, None)["ok"]
    assert powerd.saved() == {uuid_of(0): 300_000}
    cards.cards[0].set_code = cards.cards[0].look_code = 0
    assert other.lease(0, 140)["cap_watts"] == 140
    assert other.lease(0, None)["cap_watts"] == 300


def test_a_stop_that_cannot_restore_says_so_and_keeps_the_limit(
    powerd: Powerd, cards: FakeCards
) -> None:
    talk = powerd.talk()
    talk.lease(0, 250)
    cards.cards[0].set_code = NO_PERMISSION
    assert powerd.kill(15) == 1
    assert powerd.saved() == {uuid_of(0): 300_000}
    assert "Insufficient Permissions" in powerd.log()
    cards.cards[0].set_code = 0
    powerd.start()
    assert cards.limits_mw() == ORIGINAL_MW and powerd.saved() == {}


def test_a_card_that_is_missing_at_the_start_is_kept_in_the_file(
    tmp_path: Path, cards: FakeCards
) -> None:
    limits = {uuid_of(0): 310_000, uuid_of(1): 260_000}
    (tmp_path / "limits.json").write_text(json.dumps({"version": 1, "limits_mw": limits}))
    cards.cards[1].present = 0
    cards.cards[1].limit_mw = 120_000
    with Powerd(tmp_path, cards) as powerd:
        assert cards.limits_mw()[0] == 310_000
        assert powerd.saved() == {uuid_of(1): 260_000}
        powerd.until(lambda: NOT_FOUND in powerd.log())
        cards.cards[1].present = 1
        talk = powerd.talk()
        assert talk.lease(1, 130)["ok"]
        assert powerd.saved() == {uuid_of(1): 260_000}, "not the limit that a crash left"
        assert talk.lease(1, None)["cap_watts"] == 260
        assert cards.limits_mw()[1] == 260_000


def test_a_driver_that_is_loaded_later_is_found(tmp_path: Path, cards: FakeCards) -> None:
    cards.machine.init_code = DRIVER_NOT_LOADED
    with Powerd(tmp_path, cards) as powerd:
        talk = powerd.talk()
        assert talk.lease(0, 250)["error"] == "NVML cannot be used: Driver Not Loaded"
        cards.machine.init_code = 0
        assert talk.lease(0, 250)["cap_watts"] == 250


def test_figures_that_a_card_does_not_have_are_null(powerd: Powerd, cards: FakeCards) -> None:
    talk = powerd.talk()
    cards.cards[0].reasons = 1  # it idles
    assert talk.read(0)["binding"] is False
    cards.cards[0].energy_code = cards.cards[0].reasons_code = NOT_SUPPORTED
    told = talk.read(0)
    assert told["ok"] and told["energy_j"] is None and told["binding"] is None


def test_an_old_driver_tells_the_reasons_by_their_old_name(
    tmp_path: Path, cards: FakeCards
) -> None:
    with Powerd(tmp_path, cards, "-DOLD_DRIVER") as powerd:
        assert powerd.talk().read(0)["binding"] is True


def test_no_card_is_changed_whose_limit_cannot_be_kept(powerd: Powerd, cards: FakeCards) -> None:
    hindrance = powerd.state.with_name(".limits.json.partial")
    hindrance.mkdir()
    talk = powerd.talk()
    assert "cannot be written" in talk.lease(0, 250)["error"]
    assert cards.limits_mw() == ORIGINAL_MW and cards.cards[0].sets == 0
    hindrance.rmdir()
    assert talk.lease(0, 250)["ok"]
    hindrance.mkdir()
    assert not talk.lease(0, None)["ok"]
    assert cards.limits_mw() == ORIGINAL_MW, "restored, though the file cannot say so"
    hindrance.rmdir()
    powerd.until(lambda: powerd.saved() == {})


def test_a_damaged_file_hinders_nobody(tmp_path: Path, cards: FakeCards) -> None:
    (tmp_path / "limits.json").write_bytes(b'{"version":1,"limits')
    with Powerd(tmp_path, cards) as powerd:
        powerd.until(lambda: "is damaged" in powerd.log())
        assert (tmp_path / "limits.json.damaged-1").exists()
        talk = powerd.talk()
        assert talk.lease(0, 250)["ok"]
        assert powerd.saved() == {uuid_of(0): 300_000}


@pytest.mark.parametrize("name", ["socket", "state"])
def test_a_place_of_no_use_is_said(tmp_path: Path, cards: FakeCards, name: str) -> None:
    (tmp_path / "file").write_text("")
    powerd = Powerd(tmp_path, cards)
    powerd.run(f"--{name}", str(tmp_path / "file" / "below"))
    assert powerd.wait() == 1
    assert "file" in powerd.log() and "Traceback" not in powerd.log()
