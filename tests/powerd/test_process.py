"""The real llmd-powerd: leases are in force, come to one limit, and end with their connections."""

import contextlib
import signal
import socket
import stat
import time
from pathlib import Path

import pytest

from tests.powerd.fake_cards import MAX_MW, MIN_MW, ORIGINAL_MW, FakeCards, needs_compiler, uuid_of
from tests.powerd.live import Powerd

pytestmark = needs_compiler

LIMITS = {"min_watts": 100.0, "max_watts": 350.0, "default_watts": 300.0}
BAD_LINES = {
    b"": "not understood",
    b"{}": "missing required field `verb`",
    b'{"verb":"fly"}': "Invalid value 'fly'",
    b'{"verb":"lease","device":"GPU-fake-0"}': "missing required field `watts`",
    b'{"verb":"lease","device":"GPU-fake-0","watts":"250"}': "watts",
    b'{"verb":"lease","device":"GPU-fake-0","watts":true}': "watts",
    b'{"verb":"lease","device":"GPU-fake-0","watts":-1}': "watts",
    b'{"verb":"lease","device":"GPU-fake-0","watts":1e999}': "not understood",
    b'{"verb":"lease","device":"GPU-fake-0","watts":NaN}': "not understood",
    b'{"verb":"lease","device":"GPU-fake-0","watts":Infinity}': "not understood",
    b'{"verb":"lease","device":"","watts":250}': "device",
    b'{"verb":"lease","device":"GPU\\n1","watts":250}': "device",
    b'{"verb":"lease","device":"GPU-fake-0","watts":250,"force":1}': "unknown field `force`",
    b'{"verb":"read","device":7}': "device",
    b'{"verb":"read","device":"GPU-none"}': "GPU-none: its power limits cannot be read: Not Found",
    b'{"device":' + b"[" * 4000: "not understood",
    b'{"\\ud800":1,"verb":"read","device":"GPU-fake-0"}': "not understood",
    b"\xff\xfe\x00": "not understood",
}


def test_a_lease_is_in_force_and_ends_with_its_connection(powerd: Powerd, cards: FakeCards) -> None:
    talk = powerd.talk()
    assert talk.lease(0, 250) == {"ok": True, "cap_watts": 250.0, **LIMITS}
    assert cards.limits_mw() == (250_000, *ORIGINAL_MW[1:])
    assert powerd.saved() == {uuid_of(0): 300_000}
    reading = {"watts": 71.5, "cap_watts": 250.0, "energy_j": 12_345.678, "binding": True}
    assert talk.read(0) == {"ok": True, **reading, **LIMITS}
    assert talk.lease(0, 150.5)["cap_watts"] == 150.5
    assert powerd.saved() == {uuid_of(0): 300_000}, "the limit before the first lease"
    talk.close()
    powerd.until(lambda: cards.limits_mw() == ORIGINAL_MW)
    powerd.until(lambda: powerd.saved() == {})


def test_a_lease_is_given_back_and_can_be_taken_again(powerd: Powerd, cards: FakeCards) -> None:
    talk = powerd.talk()
    for watts in (120, 200):
        assert talk.lease(1, watts)["cap_watts"] == watts
        assert powerd.saved() == {uuid_of(1): 250_000}
        assert talk.lease(1, None)["cap_watts"] == 250, "its own limit, not the default one"
        assert cards.limits_mw() == ORIGINAL_MW
        assert powerd.saved() == {}
    assert talk.lease(1, None)["cap_watts"] == 250, "nothing was leased"


def test_a_card_gets_no_limit_that_it_cannot_have(powerd: Powerd, cards: FakeCards) -> None:
    talk = powerd.talk()
    for watts, cap_mw in ((0, MIN_MW), (99.9, MIN_MW), (351, MAX_MW), (1e300, MAX_MW)):
        assert talk.lease(0, watts)["cap_watts"] == cap_mw / 1000
        assert cards.limits_mw()[0] == cap_mw


def test_a_card_is_one_card_however_it_is_named(powerd: Powerd, cards: FakeCards) -> None:
    talk, other = powerd.talk(), powerd.talk()
    talk.lease(0, 150)
    assert other.ask(verb="lease", device="gpu-FAKE-0", watts=180)["cap_watts"] == 180
    assert powerd.saved() == {uuid_of(0): 300_000}
    assert talk.ask(verb="lease", device="GPU-Fake-0", watts=None)["cap_watts"] == 180
    assert other.lease(0, None)["cap_watts"] == 300
    assert cards.limits_mw() == ORIGINAL_MW and powerd.saved() == {}


def test_two_clients_come_to_the_higher_limit(powerd: Powerd, cards: FakeCards) -> None:
    high, low = powerd.talk(), powerd.talk()
    assert low.lease(0, 180)["cap_watts"] == 180
    assert high.lease(0, 220)["cap_watts"] == 220
    assert low.lease(0, 140)["cap_watts"] == 220
    assert low.read(0)["cap_watts"] == 220
    assert high.lease(3, 120)["cap_watts"] == 120
    high.close()
    powerd.until(lambda: cards.limits_mw() == (140_000, *ORIGINAL_MW[1:]))
    powerd.until(lambda: powerd.saved() == {uuid_of(0): 300_000})
    assert low.lease(0, 160)["cap_watts"] == 160
    low.close()
    powerd.until(lambda: cards.limits_mw() == ORIGINAL_MW)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stop_restores_every_card(powerd: Powerd, cards: FakeCards, number: int) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("the tests were started with nohup")
    talk, other = powerd.talk(), powerd.talk()
    for card in range(4):
        talk.lease(card, 123)
        other.lease(card, 110 + card)
    assert cards.limits_mw() == (123_000,) * 4
    assert powerd.kill(number) == 0
    assert cards.limits_mw() == ORIGINAL_MW
    assert powerd.saved() == {} and not powerd.path.exists()


def test_who_starts_it_with_nohup_wants_it_to_outlive_the_terminal(
    powerd: Powerd, cards: FakeCards
) -> None:
    powerd.kill(signal.SIGTERM)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a child inherits that
    try:
        powerd.start()
    finally:
        signal.signal(signal.SIGHUP, before)
    talk = powerd.talk()
    powerd.signal(signal.SIGHUP)
    assert talk.lease(0, 250)["cap_watts"] == 250
    assert powerd.kill(signal.SIGTERM) == 0 and cards.limits_mw() == ORIGINAL_MW


def test_a_second_one_changes_nothing(powerd: Powerd, cards: FakeCards, tmp_path: Path) -> None:
    talk = powerd.talk()
    talk.lease(0, 150)
    same_state = Powerd(powerd.folder, cards)
    same_state.run("--socket", str(tmp_path / "another.sock"))
    assert same_state.wait() == 1
    another = tmp_path / "another.json"
    another.write_text('{"version":1,"limits_mw":{"GPU-fake-0":200000,"GPU-fake-1":111000}}')
    same_socket = Powerd(powerd.folder, cards)
    same_socket.run("--state", str(another))
    assert same_socket.wait() == 1
    assert "another llmd-powerd has" in powerd.log() and "another daemon" in powerd.log()
    assert cards.limits_mw() == (150_000, *ORIGINAL_MW[1:])
    assert talk.lease(0, None)["cap_watts"] == 300


def test_what_is_not_understood_is_told_and_the_connection_goes_on(
    powerd: Powerd, cards: FakeCards
) -> None:
    talk = powerd.talk()
    for line, said in BAD_LINES.items():
        told = talk.send(line + b"\n")
        assert told["ok"] is False and said in told["error"], (line, told)
    assert cards.limits_mw() == ORIGINAL_MW
    assert "not understood" not in powerd.log(), "nobody fills the log with that"
    assert talk.lease(0, 250)["ok"]


def test_questions_come_in_pieces_and_in_bulk(powerd: Powerd) -> None:
    talk = powerd.talk()
    question = b'{"verb":"lease","device":"GPU-fake-0","watts":250}\n'
    for one in question[:-1]:
        talk.sock.sendall(bytes([one]))
    assert talk.send(b"\n")["cap_watts"] == 250
    talk.sock.sendall(question * 500)
    assert [talk.answer()["cap_watts"] for _ in range(500)] == [250.0] * 500
    longest = question[:-1].ljust(4095) + b"\n"
    assert talk.send(longest)["cap_watts"] == 250


@pytest.mark.parametrize("line", [b" " * 4096 + b"\n", b" " * 4096, b"x" * 100_000])
def test_a_line_that_is_too_long_ends_the_connection_and_its_lease(
    powerd: Powerd, cards: FakeCards, line: bytes
) -> None:
    talk = powerd.talk()
    talk.lease(0, 250)
    said = talk.is_closed_after(line)
    assert said.endswith("at most 4096 bytes") or len(line) > 4097
    powerd.until(lambda: cards.limits_mw() == ORIGINAL_MW)


def test_who_does_not_read_answers_keeps_nobody_waiting(powerd: Powerd, cards: FakeCards) -> None:
    deaf = powerd.talk()
    deaf.lease(1, 111)
    deaf.sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            deaf.sock.send(b'{"verb":"read","device":"GPU-fake-0"}\n' * 100)
    assert powerd.talk().read(0)["ok"]
    deaf.sock.settimeout(20)
    for _ in range(2000):
        assert deaf.answer()["ok"]
    assert cards.limits_mw()[1] == 111_000
    deaf.close()
    powerd.until(lambda: cards.limits_mw() == ORIGINAL_MW)


def test_who_asks_much_at_once_takes_turns(powerd: Powerd, cards: FakeCards) -> None:
    hog, other = powerd.talk(), powerd.talk()
    assert hog.read(0)["ok"] and other.read(0)["ok"]
    cards.machine.slow_us = 10_000
    hog.sock.sendall(b'{"verb":"read","device":"GPU-fake-0"}\n' * 100)
    hog.sock.recv(1, socket.MSG_PEEK)
    assert other.read(1)["ok"]
    hog.sock.settimeout(0)
    told = hog.sock.recv(1 << 20, socket.MSG_PEEK)
    assert told.count(b"\n") < 50, "the other one did not wait for all of them"
    cards.machine.slow_us = 0
    hog.sock.settimeout(20)
    assert all(hog.answer()["ok"] for _ in range(100))


def test_connections_are_counted(powerd: Powerd) -> None:
    talks = [powerd.talk() for _ in range(16)]
    assert all(talk.read(0)["ok"] for talk in talks)
    assert powerd.talk().answer() == {"ok": False, "error": "there are too many connections"}
    talks.pop().close()
    powerd.until(lambda: _is_answered(powerd))


def test_who_cannot_be_accepted_waits_and_costs_nothing(powerd: Powerd) -> None:
    """There is no descriptor for it: the listener can be read all the time, to no use."""
    powerd.until(lambda: _is_answered(powerd))
    with powerd.without_descriptors():
        talks = [powerd.talk() for _ in range(2)]
        powerd.until(lambda: "was not accepted" in powerd.log())
        before_s = powerd.cpu_s()
        time.sleep(0.3)
        assert powerd.cpu_s() - before_s < 0.1
    assert all(talk.read(0)["ok"] for talk in talks)
    assert powerd.log().count("was not accepted") == 1


def test_systemd_hears_of_it_as_long_as_its_loop_turns(
    tmp_path: Path, cards: FakeCards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver that does not answer feeds no watchdog."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "100000")
        with Powerd(tmp_path, cards) as powerd:
            assert manager.recv(4096).startswith(b"READY=1")
            for _ in range(5):
                assert manager.recv(4096) == b"WATCHDOG=1"
            cards.machine.slow_us = 1_000_000
            powerd.talk().sock.sendall(b'{"verb":"read","device":"GPU-fake-0"}\n')
            time.sleep(0.2)
            manager.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while manager.recv(4096):
                    pass
            time.sleep(0.3)
            with pytest.raises(BlockingIOError):
                manager.recv(4096)
            manager.settimeout(20)
            assert manager.recv(4096) == b"WATCHDOG=1"


def _is_answered(powerd: Powerd) -> bool:
    try:
        return bool(powerd.talk().read(0)["ok"])
    except (OSError, AssertionError):
        return False


def test_the_socket_is_of_its_user_and_group_alone(powerd: Powerd) -> None:
    mode = powerd.path.stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o660
    assert stat.S_IMODE(powerd.state.with_name("limits.json.lock").stat().st_mode) == 0o600


def test_a_socket_that_a_crash_left_is_replaced(tmp_path: Path, cards: FakeCards) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "powerd.sock"))
    left.close()
    with Powerd(tmp_path, cards) as powerd:
        assert powerd.talk().lease(0, 250)["ok"]
