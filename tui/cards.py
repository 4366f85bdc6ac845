"""Instances as cards: a box each, as large as the screen allows, with a cursor among them."""

from typing import ClassVar, NamedTuple

from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message

from daemon.protocol.control import FlipStatus, InstanceStatus, Snapshot
from tui.blocks import looks_of, map_lines
from tui.format import bar, count, latency, percent, printable, share, size
from tui.instances import FALLBACK, pressure_colour
from tui.lines import Lines
from tui.moves import MOVE, TURN, cleared, newest_flips, took
from tui.palette import drawn, ink, role_colour, state_look

LEAST_CARD = 36
"""Cells of the narrowest card, its border included."""
LEAST_LINES, ALL_LINES, MOST_MAP_LINES = 2, 5, 6
LEAST_PANEL = 5
"""Lines below the cards that are kept for transfers and flips."""


class CardNews(NamedTuple):
    """The content of one card."""

    status: InstanceStatus
    flip: FlipStatus | None  # under way, or just done
    sending: tuple[int, int]  # transfers that leave it, and their bytes
    taking: tuple[int, int]


class CardLayout(NamedTuple):
    """The layout of cards: how many per row, their width, and their lines without borders."""

    columns: int
    width: int
    lines: int
    rest: int = 0  # cells that a row's last card is wider

    def rows(self, num_cards: int) -> int:
        """Number of rows of cards."""
        return -(-num_cards // self.columns)


def card_layout(num_cards: int, width: int, height: int) -> CardLayout:
    """Cards of equal size in as few rows as their least width allows, as tall as there is room."""
    most = max(1, min(num_cards, width // LEAST_CARD))
    rows = -(-num_cards // most)
    columns = -(-num_cards // rows)
    room = (height - LEAST_PANEL) // rows - 2
    lines = max(LEAST_LINES, min(room, ALL_LINES + MOST_MAP_LINES))
    if lines > ALL_LINES and (height - rows * (lines + 2)) < height // 3:
        lines = max(ALL_LINES, (height - height // 3) // rows - 2)
    return CardLayout(columns, width // columns, lines, width % columns)


def card_news(snapshot: Snapshot) -> list[CardNews]:
    """The content of each instance's card."""
    flips = newest_flips(snapshot)
    news = []
    for instance in snapshot.instances:
        out = [t.num_bytes for t in snapshot.transfers if t.source == instance.name]
        into = [t.num_bytes for t in snapshot.transfers if t.target == instance.name]
        pairs = (len(out), sum(out)), (len(into), sum(into))
        news.append(CardNews(instance, flips.get(instance.name), *pairs))
    return news


def card_lines(news: CardNews, width: int, height: int) -> list[Text]:
    """The inside of a card, `height` lines of `width` cells; the fewer lines, the denser."""
    status = news.status
    steps, queue, kv = _steps(status, width), _queue(status), _kv(status, width)
    if height <= 2:
        short = Text.assemble(_state(status, " "), f" {status.running} run {status.waiting} wait")
        kv = _kv(status, width - 12, "rem")
        return [short, kv.append(f" p99 {_p99(status):>7}", ink.muted)][:height]
    if height == 3:
        late = _state(status).append(f"  p99 {_p99(status)}", ink.muted)
        return [_with_power(late, status, width), queue, kv]
    lines = [_with_power(_state(status), status, width), queue, kv, steps]
    if height > 4:
        lines.append(_moves(news))
    return [*lines, *map_lines(looks_of(status), width, height - len(lines))]


def _state(status: InstanceStatus, gap: str = "  ") -> Text:
    sign, colour = state_look("draining" if status.drained else status.state)
    text = f"{sign} {'drained' if status.drained and status.state == 'ready' else status.state}"
    if status.state == "loading":
        stage = printable(status.load_stage, 18) or status.state
        text = f"{sign} {stage} {percent(status.load_fraction)}"
    line = Text(text, colour, no_wrap=True, end="")
    if status.fallbacks:
        line.append(f" {FALLBACK}", ink.warn)
    line.append(gap).append(status.role, role_colour(status.role))
    return line.append(f" in {status.pool}", role_colour(status.pool)) if status.pool else line


def _with_power(line: Text, status: InstanceStatus, width: int) -> Text:
    """The line with the card's power and limit, where they are known and there is room."""
    text = power(status)
    if not text or line.cell_len + len(text) + 2 > width:
        return line
    return line.append(f"  {text}", ink.text)


def power(status: InstanceStatus) -> str:
    """The card's power, its limit, and whether an operator chose that; empty: not known."""
    if status.watts is None or status.cap_watts is None:
        return ""
    pinned = " pinned" if status.cap_pinned else ""
    return f"{status.watts:.0f}/{status.cap_watts:.0f} W{pinned}"


def _queue(status: InstanceStatus) -> Text:
    waits = ink.warn if status.waiting else ink.muted
    batch = f" wait · batch {status.batch_rows}/{count(status.batch_tokens)}"
    return Text.assemble(
        (str(status.running), ink.good), (" run  ", ink.muted),
        (str(status.waiting), waits), (batch, ink.muted),
        no_wrap=True, end="",
    )  # fmt: skip


def _kv(status: InstanceStatus, width: int, word: str = "remote") -> Text:
    """The pool's share in use; the part of sequences that left has another colour."""
    used = share(status.kv_used, status.kv_blocks)
    remote = f"  {status.remote_kvs} {word}" if status.remote_kvs else ""
    room = max(3, width - 9 - len(remote))
    line = Text("KV ", ink.muted, no_wrap=True, end="")
    cells = drawn(bar(used, room), pressure_colour(used))
    full = int(used * room)
    left_behind = min(full, round(share(status.remote_kv_blocks, status.kv_blocks) * room))
    if left_behind:
        cells.stylize(ink.extra, full - left_behind, full)
    line.append_text(cells).append(f" {percent(used)}", pressure_colour(used))
    return line.append(remote, ink.extra)


def _steps(status: InstanceStatus, width: int) -> Text:
    mean = latency(status.step_s if status.steps else None)
    line = Text.assemble(
        ("step ", ink.muted), (mean, ink.text), (f"  p99 {_p99(status)}", ink.text)
    )
    steps = f"  {count(status.steps)} steps"
    return line.append(steps, ink.muted) if line.cell_len + len(steps) <= width else line


def _p99(status: InstanceStatus) -> str:
    return latency(status.step_p99_s or None)


def _moves(news: CardNews) -> Text:
    """The flip with its reason and duration; else the transfers out and in."""
    flip = news.flip
    if flip is not None:
        return Text(f"{TURN} {printable(flip.why, 16)}: {took(flip)}, {cleared(flip)}", ink.warn)
    parts = [
        f"{num} {word}, {size(num_bytes)}"
        for word, (num, num_bytes) in (("out", news.sending), ("in", news.taking))
        if num
    ]
    if not parts:
        return Text(f"{MOVE} nothing", ink.faint)
    return Text(f"{MOVE} {'  '.join(parts)}", ink.extra)


class CardGrid(Lines, can_focus=True):
    """All instances; where their cards do not fit, the rows around the cursor are shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1)", show=False),
        Binding("right", "move(1)", show=False),
        Binding("up", "row(-1)", show=False),
        Binding("down", "row(1)", show=False),
        Binding("home", "move(-1_000_000)", show=False),
        Binding("end", "move(1_000_000)", show=False),
        Binding("enter", "choose", "open", show=False),
    ]

    class Chosen(Message):
        """A person pressed Enter on a card, or clicked it while the cursor was there."""

        def __init__(self, instance: int) -> None:
            super().__init__()
            self.instance = instance

    def __init__(self) -> None:
        super().__init__(id="cards")
        self.cursor = 0
        self._news: list[CardNews] = []
        self._layout_of_cards = CardLayout(1, LEAST_CARD, LEAST_LINES)
        self._first_row = 0

    def update_from(self, snapshot: Snapshot, width: int, height: int) -> None:
        """Show these instances in a body of this size."""
        self._news = card_news(snapshot)
        self.cursor = max(0, min(self.cursor, len(self._news) - 1))
        self._layout_of_cards = layout = card_layout(max(1, len(self._news)), width, height)
        wanted = min(layout.rows(len(self._news)) * (layout.lines + 2), height - LEAST_PANEL)
        wanted = max(wanted, layout.lines + 2)
        if self.styles.height is None or self.styles.height.value != wanted:
            self.styles.height = wanted
        self.redraw()

    def lines(self, width: int, height: int) -> list[Text]:
        """The rows of cards that fit, the cursor's among them."""
        layout = self._layout_of_cards
        card_height = layout.lines + 2
        shown = max(1, height // card_height)
        row = self.cursor // layout.columns
        self._first_row = max(row - shown + 1, min(self._first_row, row))
        lines: list[Text] = []
        for place in range(self._first_row, self._first_row + shown):
            first = place * layout.columns
            cards = range(first, min(first + layout.columns, len(self._news)))
            boxes = [self._box(index, layout) for index in cards]
            lines += [Text("").join(parts) for parts in zip(*boxes, strict=True)]
        return lines[:height]

    def _box(self, index: int, layout: CardLayout) -> list[Text]:
        """A card with its border: name and flip above, device below."""
        news = self._news[index]
        chosen = index == self.cursor and self.has_focus
        border, width = (ink.main if chosen else ink.line), layout.width
        if index % layout.columns == layout.columns - 1:
            width += layout.rest
        top = Text("╭─ ", border).append(printable(news.status.name, 14), f"bold {ink.text}")
        if news.flip is not None:
            text = f"{news.flip.was} → {news.flip.role} {took(news.flip)}"
            top.append(f" {TURN} {text}"[: max(0, width - top.cell_len - 3)], ink.warn)
        top.append(" ").append("─" * max(0, width - top.cell_len - 1) + "╮", border)
        device = printable(news.status.device, width - 6)
        end = Text("╰" + "─" * (width - 5 - len(device)) + " ", border)
        end.append(device, ink.muted).append(" ─╯", border)
        side = Text("│", border)
        inside = [
            Text.assemble(side, " ", _fitted(line, width - 4), " ", side)
            for line in card_lines(news, width - 4, layout.lines)
        ]
        return [top, *inside, end]

    # Keys and clicks

    def action_move(self, cards: int) -> None:
        """Move the cursor to another card."""
        self.cursor = max(0, min(self.cursor + cards, len(self._news) - 1))
        self.redraw()

    def action_row(self, rows: int) -> None:
        """Move the cursor a row up or down."""
        to = self.cursor + rows * self._layout_of_cards.columns
        if 0 <= to < len(self._news):
            self.action_move(to - self.cursor)

    def action_choose(self) -> None:
        """Open the card under the cursor."""
        if self._news:
            self.post_message(self.Chosen(self.cursor))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor; a second click opens the card."""
        layout = self._layout_of_cards
        column = min(event.x // layout.width, layout.columns - 1)
        row = self._first_row + event.y // (layout.lines + 2)
        index = row * layout.columns + column
        if index >= len(self._news):
            return
        if index == self.cursor:
            self.action_choose()
        self.action_move(index - self.cursor)

    def watch_has_focus(self, _has_focus: bool) -> None:
        """Show the cursor while the keys are here."""
        super().watch_has_focus(_has_focus)
        self.redraw()


def _fitted(line: Text, width: int) -> Text:
    """The line cut or padded to `width` cells."""
    fitted = line.copy()
    fitted.truncate(width, overflow="ellipsis", pad=True)
    return fitted
