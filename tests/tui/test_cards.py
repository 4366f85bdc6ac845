"""Instances as cards, what moves between them, and the keys that order it."""

from pathlib import Path
from threading import Event

import msgspec
import pytest
from textual.pilot import Pilot

from daemon.control.client import ControlError
from daemon.protocol.control import Flipped, FlipStatus, Migrating, Role, Snapshot, TransferStatus
from tests.tui import scenario
from tests.tui.driving import screen_text, watching
from tui import orders
from tui.cards import card_layout, card_lines, card_news
from tui.client import DaemonSource
from tui.dashboard import LlmdTop
from tui.moves import MovesPanel, flip_line, is_fresh, transfer_line
from tui.palette import ink
from tui.screens.instance import InstanceScreen
from tui.screens.instances import CardsScreen

FLIP = FlipStatus(2, "gpu0", Role.MIXED, Role.PREFILL, "operator", 1.5, -1.0, -1.0, False)
SENT = TransferStatus(3, 1004, "gpu0", "gpu1", 9, 9 << 20, 0.03, 0.1, True, False)


@pytest.mark.parametrize("num_cards", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize(("width", "height"), [(80, 21), (112, 27), (200, 57)])
def test_cards_leave_room_for_what_moves(num_cards: int, width: int, height: int) -> None:
    layout = card_layout(num_cards, width, height)
    assert layout.columns * layout.width + layout.rest == width
    assert layout.width >= 36 and layout.lines >= 2
    taken = layout.rows(num_cards) * (layout.lines + 2)
    if num_cards <= 8:
        assert taken + 5 <= height
    assert layout.columns * (layout.rows(num_cards) - 1) < num_cards, "no row is empty"


@pytest.mark.parametrize("height", range(2, 12))
@pytest.mark.parametrize("width", [32, 46, 76])
def test_a_card_says_the_same_in_any_size(height: int, width: int) -> None:
    """Role, queue, KV left by others and the slowest steps are never left out, nor cut."""
    one = scenario.moving(10, 8)
    for news in card_news(one):
        lines = card_lines(news, width, height)
        assert len(lines) == height and max(line.cell_len for line in lines) <= width
        text = "\n".join(line.plain for line in lines)
        for words in (news.status.role, "18 run", "3 wait", "KV ━", "21.0 ms"):
            assert words in text
        assert (f"{news.status.remote_kvs} rem" in text) == bool(news.status.remote_kvs)


def test_a_card_shows_what_leaves_and_comes_or_the_flip() -> None:
    first, second = card_news(scenario.moving(10, 2))
    assert first.flip is not None and second.flip is None
    assert card_lines(first, 50, 5)[4].plain == "⟳ operator: 250 ms, clearing"
    assert card_lines(second, 50, 5)[4].plain == "⇄ 2 out, 61.9 MiB  2 in, 36.6 MiB"
    (alone,) = card_news(scenario.moving(10, 1))
    assert card_lines(alone, 50, 5)[4].plain == "⇄ nothing"


@pytest.mark.parametrize("changes", [{"state": "loading", "load_stage": "weights"}, {}])
def test_a_drained_card_says_so_and_a_loading_one_how_far_it_is(changes: dict[str, str]) -> None:
    one = msgspec.structs.replace(scenario.loading("gpu0", 0.4), state="ready", drained=True)
    one = msgspec.structs.replace(one, **changes)
    news = card_news(msgspec.structs.replace(scenario.snapshot(1), instances=(one,)))
    told = card_lines(news[0], 50, 4)[0].plain
    assert told.split() == (
        ["◑", "weights", "40", "%", "mixed"] if changes else ["◑", "drained", "mixed"]
    )


def with_power(**changes: object) -> Snapshot:
    """Two instances, of which the first one's card tells what it draws."""
    told = scenario.moving(10, 2)
    first = msgspec.structs.replace(told.instances[0], watts=243.6, cap_watts=262.5, **changes)
    return msgspec.structs.replace(told, instances=(first, *told.instances[1:]))


@pytest.mark.parametrize("height", [3, 4, 8])
def test_a_card_shows_its_power_where_it_is_known_and_fits(height: int) -> None:
    first, second = card_news(with_power(cap_pinned=True))
    assert "244/262 W pinned" in card_lines(first, 60, height)[0].plain
    assert " W" not in card_lines(second, 60, height)[0].plain
    assert " W" not in card_lines(first, 24, height)[0].plain


async def test_power_is_on_the_screen() -> None:
    async with watching(with_power(), size=(112, 30)) as top:
        text = await top.press("i")
        assert text.count("244/262 W") == 1 and "pinned" not in text


@pytest.mark.parametrize(
    ("age_s", "clear_s", "idle", "fresh"),
    [
        (3.0, 0.5, False, True),
        (10.5, 0.5, False, False),
        (60.0, -1.0, False, True),
        (60.0, -1.0, True, False),
    ],
)
def test_a_flip_is_shown_while_it_happens_and_shortly_after(
    age_s: float, clear_s: float, idle: bool, fresh: bool
) -> None:
    flip = msgspec.structs.replace(FLIP, age_s=age_s, clear_s=clear_s, idle=idle)
    assert is_fresh(flip) == fresh


def test_a_flip_in_one_line() -> None:
    def told(**changes: object) -> str:
        return flip_line(msgspec.structs.replace(FLIP, **changes)).plain

    begins = "⟳ gpu0     mixed → prefill operator: "
    assert told() == f"{begins}1.50 s …, clearing · 1.5 s ago"
    assert told(flip_s=0.25, clear_s=1.2) == f"{begins}250 ms, clear 1.20 s · 1.5 s ago"
    assert told(idle=True) == f"{begins}no work, clearing · 1.5 s ago"


def test_a_transfer_in_one_line() -> None:
    line = transfer_line(SENT, 70)
    assert line.plain.split() == [
        *("gpu0", "→", "gpu1", "1004", "━━━━━╸────────────", "30", "%", "9.00", "MiB", "ahead"),
    ]
    assert line.cell_len <= 70
    unknown = transfer_line(msgspec.structs.replace(SENT, expected_s=0.0, ahead=False), 70)
    assert "━" not in unknown.plain and "30.0 ms" in unknown.plain and "tail" in unknown.plain
    late = transfer_line(msgspec.structs.replace(SENT, age_s=0.3, from_host=True), 70)
    assert "100 %" in late.plain
    assert any(span.style == ink.warn for span in late.spans)
    assert not any(span.style == ink.warn for span in line.spans)


@pytest.mark.parametrize(("width", "height"), [(76, 3), (76, 6), (196, 9)])
def test_the_panel_keeps_a_place_for_flips(width: int, height: int) -> None:
    panel, one = MovesPanel(), scenario.moving(10, 8)
    panel._transfers, panel._flips = one.transfers, one.flips[::-1]
    lines = panel.lines(width, height)
    text = "\n".join(line.plain for line in lines)
    assert len(lines) == height and max(line.cell_len for line in lines) <= width
    assert "gpu0 → gpu1" in text and "⟳ gpu0     mixed → prefill" in text
    shown = text.count("MiB")
    assert f"and {16 - shown} more" in text


@pytest.mark.parametrize(
    ("size", "num_instances"),
    [((80, 24), 8), ((112, 30), 2), ((200, 60), 1)],
)
async def test_every_card_and_the_moves_are_on_the_screen(
    size: tuple[int, int], num_instances: int
) -> None:
    async with watching(scenario.moving(10, num_instances), size=size) as top:
        text = await top.press("i")
        lines = text.splitlines()
        assert isinstance(top.app.screen, CardsScreen)
        for index in range(num_instances):
            assert f"╭─ gpu{index} " in text and f" cuda:{index} ─╯" in text
        assert "╭─ on the move ─" in text
        assert max(map(len, lines)) == size[0] and len(lines) == size[1]
        if num_instances > 1:
            assert "╭─ gpu0 ⟳ mixed → prefill 250 ms" in text
            assert "◑ drained" in text
            assert " 40 handed over, 1 failed" in text
            assert "gpu0 → gpu1     1000" in text
        else:
            assert "nothing is being sent" in text


async def test_the_cursor_goes_from_card_to_card() -> None:
    async with watching(scenario.moving(10, 8), size=(80, 24)) as top:
        await top.press("i", "down", "right", "down", "down", "down", "left", "up")
        screen = top.app.screen
        assert isinstance(screen, CardsScreen)
        assert screen.chosen_instance() == 4
        await top.press("home", "left", "end", "right")
        assert screen.chosen_instance() == 7
        await top.pilot.click("#cards", offset=(50, 1))
        assert screen.chosen_instance() == 1
        await top.pilot.click("#cards", offset=(50, 1))
        assert isinstance(top.app.screen, InstanceScreen) and top.app.screen.instance == 1
        await top.press("escape", "enter")
        assert isinstance(top.app.screen, InstanceScreen)
        await top.press("i")
        assert isinstance(top.app.screen, CardsScreen)


async def test_where_cards_do_not_fit_the_cursors_row_is_shown() -> None:
    async with watching(scenario.moving(10, 16), size=(80, 24)) as top:
        assert "╭─ gpu0 " in await top.press("i")
        text = await top.press("end")
        assert "╭─ gpu15 " in text and "╭─ gpu0 " not in text


async def test_the_overview_tells_of_moves_while_there_are_any() -> None:
    async with watching(scenario.snapshot(8), size=(80, 24)) as top:
        assert not top.app.overview.moving.display
        text = await top.tell(scenario.moving(10, 2))
        assert "⟳ gpu0 mixed → prefill 250 ms   ⇄ 4 in flight, 98.4 MiB" in text
        assert "◑ drained" in text
        await top.tell(scenario.snapshot(12))
        assert not top.app.overview.moving.display


async def test_a_sequence_tells_where_it_went() -> None:
    marks = scenario.moved_story(1002, 119.0)
    async with watching(scenario.moving(36), size=(140, 40)) as top:
        await top.press("down", "down", "enter")
        text = await top.tell(marks)
        for words in (
            "48 blocks of its KV sent ahead to gpu1",
            "leaves for gpu1, takes the KV of 790 tokens along",
            "its KV of 790 tokens has landed",
            "▓ moving 0.5 s",
        ):
            assert words in text


# What a person orders


class Desk:
    """The client's end of the daemon: what was ordered, and what is answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ordered: list[object] = []
        self.done = Event()
        for name in ("flip", "migrate", "drain_instance", "resume_instance"):
            monkeypatch.setattr(orders, name, getattr(self, name))

    def flip(self, _path: Path, name: str, role: str, _timeout_s: float, wait_s: float) -> Flipped:
        self._note("flip", name, role)
        assert wait_s == 0.0, "whoever leaves llmd-top does not wait for it"
        return Flipped(3, name, Role.MIXED, Role(role), -1.0, -1.0, False)

    def migrate(self, _path: Path, sequence: int, name: str, _timeout_s: float) -> Migrating:
        self._note("migrate", sequence, name)
        raise ControlError("the daemon refused: not today")

    def drain_instance(self, _path: Path, name: str, _timeout_s: float) -> None:
        self._note("drain", name)

    def resume_instance(self, _path: Path, name: str, _timeout_s: float) -> None:
        self._note("resume", name)

    def _note(self, *order: object) -> None:
        self.ordered.append(order)


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch)


def hears(app: LlmdTop, told: Snapshot) -> None:
    app.watched.hear(told)
    app.show()


async def said(app: LlmdTop, pilot: Pilot[None]) -> str:
    """The newest note on the screen, once there is one."""
    while not app._notifications:
        await pilot.pause(0.01)
    (note,) = app._notifications
    app.clear_notifications()
    return note.message


async def test_a_flip_is_chosen_confirmed_and_carried_out(path: Path, desk: Desk) -> None:
    app = LlmdTop(DaemonSource(path))
    async with app.run_test(size=(80, 24)) as pilot:
        hears(app, scenario.moving(10))
        await pilot.press("i", "r", "down", "down", "enter")
        await pilot.pause()
        assert "Flip gpu0 to decode?" in screen_text(app)
        await pilot.press("n")
        await pilot.press("r", "escape")
        assert not desk.ordered and isinstance(app.screen, CardsScreen)
        await pilot.press("r", "down", "down", "enter", "y")
        assert await said(app, pilot) == "gpu0 is decode now"
        assert desk.ordered == [("flip", "gpu0", "decode")]


async def test_an_instance_is_drained_and_used_again(path: Path, desk: Desk) -> None:
    app = LlmdTop(DaemonSource(path))
    async with app.run_test(size=(80, 24)) as pilot:
        hears(app, scenario.moving(10))
        await pilot.press("i", "d")
        await pilot.pause()
        assert "21 sequences move to others" in " ".join(screen_text(app).split())
        await pilot.press("enter")
        assert "move away" in await said(app, pilot)
        await pilot.press("right", "d", "y")
        assert await said(app, pilot) == "gpu1 is used again"
        assert desk.ordered == [("drain", "gpu0"), ("resume", "gpu1")]


async def test_a_sequence_is_sent_elsewhere_and_a_refusal_is_told(path: Path, desk: Desk) -> None:
    app = LlmdTop(DaemonSource(path))
    async with app.run_test(size=(80, 24)) as pilot:
        hears(app, scenario.moving(10, 8))
        await pilot.press("down", "m", "down", "enter")
        await pilot.pause()
        assert "Migrate sequence 1001 to gpu2?" in screen_text(app), (
            "neither where it is nor drained"
        )
        await pilot.press("y")
        assert await said(app, pilot) == "the daemon refused: not today"
        assert desk.ordered == [("migrate", 1001, "gpu2")]
        hears(app, scenario.moving(11, 2))
        await pilot.press("home", "m")
        assert await said(app, pilot) == "there is no other instance that could take it"


async def test_orders_are_about_what_the_screen_is_about(path: Path, desk: Desk) -> None:
    app = LlmdTop(DaemonSource(path))
    async with app.run_test(size=(120, 40)) as pilot:
        hears(app, scenario.moving(10, 3))
        chosen = []
        for keys in (
            ("tab",),  # from the sequences to the instances
            ("t", "home"),
            ("t", "k", "n"),
            ("escape", "i", "end", "enter"),
            ("escape", "escape", "t", "down"),
        ):
            await pilot.press(*keys)
            await pilot.pause()
            app.show()
            chosen.append((app.front.chosen_instance(), app.front.chosen_sequence()))
        await pilot.press("enter")
        chosen.append((app.front.chosen_instance(), app.front.chosen_sequence()))
        assert chosen[1:] == [(0, None), (1, None), (2, None), (None, 1000), (None, 1000)]
        assert chosen[0][1] is None or chosen[0][0] is None
        assert not desk.ordered


async def test_a_viewer_that_may_only_look_orders_nothing(path: Path, desk: Desk) -> None:
    app = LlmdTop(DaemonSource(path), readonly=True)
    async with app.run_test(size=(80, 24)) as pilot:
        hears(app, scenario.moving(10))
        for key in ("m", "r", "i", "r", "d", "enter", "r", "d"):
            await pilot.press(key)
            await pilot.pause()
            assert not app.screen.is_modal
        assert isinstance(app.screen, InstanceScreen)
        assert "flip" not in screen_text(app).splitlines()[-1]
        titles = {one.title for one in app.get_system_commands(app.screen)}
        assert not any(title.startswith(("Flip", "Drain", "Resume")) for title in titles)
    assert not desk.ordered


async def test_the_palette_orders_what_the_keys_do(path: Path, desk: Desk) -> None:
    app = LlmdTop(DaemonSource(path))
    async with app.run_test(size=(80, 24)) as pilot:
        hears(app, scenario.moving(10))
        commands = {one.title: one.callback for one in app.get_system_commands(app.screen)}
        assert {"Flip gpu0 to mixed", "Flip gpu0 to decode", "Drain gpu0"} <= commands.keys()
        assert "Flip gpu0 to prefill" not in commands and "Resume gpu1" in commands
        commands["Flip gpu1 to prefill"]()
        await pilot.pause()
        assert not desk.ordered, "a person is asked first"
        await pilot.press("y")
        assert await said(app, pilot) == "gpu1 is prefill now"
        hears(app, scenario.moving(10, 1))
        titles = {one.title for one in app.get_system_commands(app.screen)}
        assert not any(title.startswith("Flip") for title in titles), "there is no other"
