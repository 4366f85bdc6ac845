"""A real daemon whose instance has a made-up card and computes a toy: flips, orders, figures, its
end.
"""

import json
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from daemon.cli.main import main
from daemon.control.client import flip
from daemon.supervisor.spare import WORKER
from daemon.wire.faults import TEST_MODE
from tests.chaos.cases import toy_folder
from tests.e2e.live import LiveDaemon
from tests.hangs import HANG_S
from tests.powerd.fake_cards import (
    DEFAULT_MW,
    MIN_MW,
    ORIGINAL_MW,
    FakeCards,
    needs_compiler,
    uuid_of,
)
from tests.powerd.live import Powerd

pytestmark = needs_compiler

CONFIG = """
[slo]
tpot_s = 9.0

[power]
enabled = "on"
socket = "{socket}"

[[instance]]
device = "cpu"
name = "one"
role = "prefill"
card = "{card}"
"""


def wait_until(happened: Callable[[], bool]) -> None:
    limit_s = time.monotonic() + HANG_S
    while not happened():
        assert time.monotonic() < limit_s
        time.sleep(0.01)


@pytest.fixture
def daemon(powerd: Powerd) -> Iterator[LiveDaemon]:
    file = powerd.folder / "llmd.toml"
    file.write_text(CONFIG.format(socket=powerd.path, card=uuid_of(1)), encoding="utf-8")
    model = toy_folder(powerd.folder / "toy")
    env = {TEST_MODE: "1", WORKER: "tests.chaos.worker"}
    one = LiveDaemon("--config", str(file), "--model", str(model), env=env)
    try:
        one.wait_ready()
        yield one
    finally:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()


def ctl(daemon: LiveDaemon, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """What `llmd ctl` comes to and says."""
    status = main(["ctl", "--socket", str(daemon.socket), *words])
    told = capsys.readouterr()
    return status, (told.out or told.err).strip()


def metrics_of(daemon: LiveDaemon) -> str:
    """What `/metrics` says: of a second ago at most."""
    with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def test_a_daemon_caps_by_role_and_as_it_is_told(
    daemon: LiveDaemon, powerd: Powerd, cards: FakeCards, capsys: pytest.CaptureFixture[str]
) -> None:
    wait_until(lambda: cards.limits_mw()[1] == 300_000)

    assert ctl(daemon, capsys, "cap", "one", "20") == (
        0,
        "one: 100 W instead of 20 W: its card can have 100 to 350 W",
    )
    assert cards.limits_mw()[1] == MIN_MW
    _, said = ctl(daemon, capsys, "status", "--json")
    (told,) = json.loads(said)["instances"]
    assert (told["watts"], told["cap_watts"], told["cap_pinned"]) == (71.5, 100.0, True)
    status, said = ctl(daemon, capsys, "cap", "one", "auto", "--json")
    assert status == 0 and json.loads(said)["cap_watts"] == 300.0
    assert ctl(daemon, capsys, "cap", "on", "200")[1].endswith("did you mean 'one'?")

    for name in ("power_watts", "power_cap_watts", "energy_joules_total"):
        wait_until(lambda name=name: f'llmd:{name}{{engine="one"' in metrics_of(daemon))

    assert ctl(daemon, capsys, "cap", "one", "222") == (0, "one: 222 W")
    assert ctl(daemon, capsys, "flip", "one", "decode")[0] == 0
    assert cards.limits_mw()[1] == 222_000

    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(20.0) == 0
    wait_until(lambda: cards.limits_mw() == ORIGINAL_MW)


@pytest.mark.soak
def test_caps_follow_flips_within_a_second(
    daemon: LiveDaemon, powerd: Powerd, cards: FakeCards
) -> None:
    """A decode instance's cap has fallen to half; then each flip moves it, there and back."""
    cards.cards[1].reasons = 0  # it does not bind, so that it falls in one step
    flip(daemon.socket, "one", "decode", 0.0)
    while cards.limits_mw()[1] != DEFAULT_MW // 2:  # a look takes ten seconds of answers
        answer(daemon)
    took_s = []
    for number in range(20):
        role, cap_mw = (("prefill", DEFAULT_MW), ("decode", DEFAULT_MW // 2))[number % 2]
        began_s = time.monotonic()
        flip(daemon.socket, "one", role, 0.0)
        wait_until(lambda cap_mw=cap_mw: cards.limits_mw()[1] == cap_mw)
        took_s.append(time.monotonic() - began_s)
        time.sleep(0.13)  # at every moment of the second in which cards are read
    print(f"caps followed {len(took_s)} flips, the slowest after {1e3 * max(took_s):.0f} ms")
    assert max(took_s) < 1.0


def answer(daemon: LiveDaemon) -> None:
    """Some steps of decodes."""
    question = [{"role": "user", "content": "What is an owl?"}]
    body = {"model": daemon.model()["id"], "max_tokens": 64, "messages": question}
    url, kind = f"{daemon.url}/v1/chat/completions", {"Content-Type": "application/json"}
    asked = urllib.request.Request(url, json.dumps(body).encode(), kind)
    with urllib.request.urlopen(asked, timeout=60) as told:
        told.read()


@pytest.mark.soak
def test_a_daemon_that_is_killed_leaves_no_limit(
    powerd: Powerd, cards: FakeCards, daemon: LiveDaemon
) -> None:
    wait_until(lambda: cards.limits_mw()[1] == 300_000)
    daemon.process.kill()
    wait_until(lambda: cards.limits_mw() == ORIGINAL_MW)
