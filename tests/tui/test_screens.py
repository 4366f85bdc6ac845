"""The tree, the screens of a sequence, an instance and its blocks, and the boxes above them."""

import json
from pathlib import Path

import msgspec
import pytest
from textual.widgets import OptionList

from daemon.control.client import ControlError
from daemon.protocol.control import AskOwners, AskStory, RankStatus, Story
from tests.tui import scenario
from tests.tui.driving import watching
from tui import orders
from tui.client import DaemonSource
from tui.dashboard import LlmdTop
from tui.orders import ORDERS, policy_order
from tui.palette import ink
from tui.screens.blocks import BlocksScreen
from tui.screens.instance import InstanceScreen
from tui.screens.overview import OverviewScreen
from tui.screens.sequence import SequenceScreen
from tui.screens.tree import TreeScreen


async def test_the_tree_folds_sorts_and_opens() -> None:
    async with watching(scenario.swapping(10), size=(80, 24)) as top:
        text = await top.press("t")
        screen = top.app.screen
        assert isinstance(screen, TreeScreen)
        assert "▾ gpu0 (12)" in text and "1000" in text
        rows = len(screen.branches.rows)
        text = await top.press("space")
        assert "▸ gpu0 (12)" in text and "▾ gpu1 (12)" in text
        assert len(screen.branches.rows) == rows - 12
        text = await top.press("f")
        assert all(f"▸ {name}" in text for name in ("gpu0", "gpu1", "nowhere yet"))
        await top.press("f")
        assert len(screen.branches.rows) == rows
        assert "oldest first" in await top.press("s")
        oldest = screen.branches.rows[1][0]
        await top.press("down", "down", "enter")
        assert isinstance(top.app.screen, SequenceScreen)
        assert f"s{top.app.screen.sequence}" == screen.branches.rows[2][0] != oldest
        await top.press("escape", "home", "enter")
        assert isinstance(top.app.screen, InstanceScreen)
        await top.press("escape", "t")
        assert isinstance(top.app.screen, OverviewScreen)


async def test_ranks_hide_no_instance_on_a_small_screen() -> None:
    ranks = (RankStatus(70, "ready", 300 << 20), RankStatus(71, "ready", 280 << 20))
    known = scenario.snapshot(8)
    instances = [msgspec.structs.replace(one, ranks=ranks) for one in known.instances]
    known = msgspec.structs.replace(known, instances=tuple(instances))
    assert len(instances) == 2
    async with watching(known, size=(80, 24)) as top:
        text = await top.picture()
        assert text.count("rank 0") == text.count("rank 1") == 2
        assert "gpu0" in text and "gpu1" in text and "1000" in text
        plain = await top.tell(scenario.snapshot(10))
        assert "rank" not in plain


async def test_a_sequence_tells_its_story() -> None:
    async with watching(scenario.swapping(36), size=(140, 40)) as top:
        text = await top.press("down", "down", "enter")
        assert top.source.asked == [AskStory(1002)]
        assert "not told" in text and "sequence 1002" in text
        text = await top.tell(scenario.swapping(38), scenario.story(1002, 119.0))
        assert top.source.asked == [AskStory(1002)] * 2
        for words in (
            "queued on gpu0",
            "predicted: 120 output tokens",
            "runs, 160 tokens from the prefix cache",
            "preempted: gave way to 1010; KV of 1440 tokens stays in host memory",
            "preempted: 1004 needed a block",
            "16 marks · 3 left out of the middle",
            "40-89, 120-139, 7",
            "TTFT       2.80 s",
            "178 of 256",
            "preempted 6.3 s",
            "goes on after a pause of 3.50 s (swapped)",
            "10.5 s; prompts 3.25 s",
            "3.0 s left",
        ):
            assert words in text
        assert "tok/s  8.0" in (text := await top.tell(scenario.swapping(40), _later(2.0, 8))), text
        ended = msgspec.structs.replace(scenario.story(1002, 121.0), status=None)
        assert "ended" in await top.tell(scenario.swapping(42), ended)
        forgotten = await top.tell(Story(1002, 122.0))
        assert "gave way to 1010" in forgotten and "ended" in forgotten
        await top.press("escape", "up", "enter")
        assert "nothing is known" in await top.tell(Story(1001, 122.0))


def _later(by_s: float, tokens_per_s: int) -> Story:
    story = scenario.story(1002, 119.0)
    assert story.status is not None
    grown = story.status.num_output_tokens + int(by_s * tokens_per_s)
    status = msgspec.structs.replace(story.status, num_output_tokens=grown)
    return msgspec.structs.replace(story, time_s=119.0 + by_s, status=status)


async def test_an_instance_and_its_blocks() -> None:
    news = [scenario.with_gpus(scenario.swapping(step)) for step in range(0, 40, 2)]
    async with watching(*news, size=(120, 40)) as top:
        text = await top.press("tab", "enter")
        assert isinstance(top.app.screen, InstanceScreen)
        for words in ("policy     mlfq", "NVIDIA Fake 9000", "72 of 250 W", "61 °C", "37 % busy"):
            assert words in text
        for words in ("swap link  34 %", "KV used  47 %", "21 run, 3 wait", "35 % of 1024"):
            assert words in text
        text = await top.press("k")
        screen = top.app.screen
        assert isinstance(screen, BlocksScreen)
        assert top.source.asked[-1] == AskOwners(0)
        owned = scenario.owners(news[-1])
        first = int((owned.owners >= 0).argmax())
        screen.map.cursor = first
        text = await top.tell(owned)
        assert f"block {first} of 2048: held, sequence {owned.owners[first]}" in text
        screen.map.focus()
        text = await top.press("right")
        assert f"block {first + 1} of 2048" in text
        await top.press("enter")
        assert isinstance(top.app.screen, SequenceScreen)
        assert top.app.screen.sequence == owned.owners[first]
        await top.press("escape", "n")
        assert screen.instance == 1


async def test_the_mouse_over_the_map_asks_whose_block_it_is() -> None:
    snapshot = scenario.swapping(10)
    async with watching(snapshot, size=(80, 40)) as top:
        blocks = top.app.overview.blocks
        assert not blocks.hovered()
        await top.pilot.hover("#blocks", offset=(40, 2))
        await top.tell(scenario.swapping(12))
        assert AskOwners(0) in top.source.asked
        await top.tell(scenario.owners(snapshot))
        assert "block" in str(blocks.tooltip) and "of 2048" in str(blocks.tooltip)
        await top.pilot.hover("#header")
        assert not blocks.hovered()


async def test_the_header_tells_of_drafts() -> None:
    async with watching(scenario.swapping(10)) as top:
        assert "drafts" not in await top.picture()
        await top.tell(scenario.drafting(scenario.swapping(12)))
        assert "3.5 a step, 75 % drafts" in await top.picture()


async def test_the_palette_reaches_everything(tmp_path: Path) -> None:
    place = tmp_path / "llmd" / "top.json"
    async with watching(scenario.swapping(10), settings=place) as top:
        commands = {one.title: one.callback for one in top.app.get_system_commands(top.app.screen)}
        assert {"Theme", "Quit", "Tree", "KV map of gpu1", "Instance gpu0"} <= commands.keys()
        assert not any(title.startswith(("Policy", "Drain")) for title in commands)
        commands["Sort: most output"]()
        assert top.app.overview.sequences.sort_name == "most output"
        commands["Sequence 1004"]()
        await top.picture()
        assert isinstance(top.app.screen, SequenceScreen)
        llmd = ink.main
        assert not place.exists(), "nobody has chosen anything yet"
        top.app.theme = "gruvbox"
        await top.picture()
        assert ink.main != llmd
        assert json.loads(place.read_text()) == {"theme": "gruvbox"}
        await top.press("escape")
    async with watching(settings=place) as top:
        assert top.app.theme == "gruvbox"
    async with watching() as top:
        assert top.app.theme == "llmd" and ink.main == llmd


async def test_orders_are_offered_only_where_they_can_be_given(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []

    def choose(_path: Path, name: str, _timeout_s: float) -> None:
        chosen.append(name)
        if name == "mlfq":
            raise ControlError("the daemon refused: not today")

    monkeypatch.setattr(orders, "choose_policy", choose)
    app = LlmdTop(DaemonSource(path))
    async with app.run_test(size=(120, 40)) as pilot:
        app.watched.hear(scenario.swapping(10))
        await pilot.press("o")
        names = app.screen.query_one("#policies", OptionList)
        assert [names.get_option_at_index(i).id for i in range(3)] == [
            "sarathi", "mlfq", "speculative",
        ]  # fmt: skip
        await pilot.press("down", "enter")
        while not app._notifications:
            await pilot.pause(0.01)
        assert chosen == ["mlfq"]
        assert [n.message for n in app._notifications] == ["the daemon refused: not today"]
        titles = {one.title for one in app.get_system_commands(app.screen)}
        assert {"Policy: mlfq", "Drain", "Resume", "Reload"} <= titles
    readonly = LlmdTop(DaemonSource(path), readonly=True)
    async with readonly.run_test() as pilot:
        readonly.watched.hear(scenario.swapping(10))
        await pilot.press("o")
        assert not readonly.screen.is_modal
        titles = {one.title for one in readonly.get_system_commands(readonly.screen)}
        assert not {"Policy: mlfq", "Drain"} & titles


def test_each_order_says_what_came_of_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "choose_policy", lambda *_: None)
    assert policy_order("mlfq").carry_out(path) == "the policy is mlfq now"
    for order in ORDERS:
        with pytest.raises(ControlError, match="no llmd daemon answers"):
            order.carry_out(path)
