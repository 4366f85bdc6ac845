"""Transfers in flight and the newest changes of roles, as lines."""

from collections.abc import Sequence

from rich.text import Text

from daemon.protocol.control import (
    WATCHED,
    FlipStatus,
    PlanStatus,
    RolesStatus,
    Snapshot,
    TransferStatus,
)
from tui.format import bar, duration, latency, percent, printable, size
from tui.lines import Lines
from tui.palette import drawn, ink, role_colour

FRESH_S = 10.0
"""Time for which a flip is shown on its instance, if it is not clearing for longer."""
BESIDE_CELLS = 110
"""Width from which flips are beside transfers, not below them."""
MOVE, TURN = "⇄", "⟳"
_NAME_CELLS = 8
_LEAST_BAR, _MOST_BAR = 6, 40


def is_fresh(flip: FlipStatus) -> bool:
    """Whether a flip is under way or was just done."""
    return flip.age_s < FRESH_S or (flip.clear_s < 0 and not flip.idle)


def newest_flips(snapshot: Snapshot) -> dict[str, FlipStatus]:
    """The newest flip of each instance that is still shown there, by name."""
    newest = {flip.instance: flip for flip in snapshot.flips}
    return {name: flip for name, flip in newest.items() if is_fresh(flip)}


def share_done(transfer: TransferStatus) -> float | None:
    """The expected share of a transfer by its age; None where its duration is unknown."""
    if not transfer.expected_s:
        return None
    return min(1.0, transfer.age_s / transfer.expected_s)


def took(flip: FlipStatus) -> str:
    """The time of a flip until its first work, or its time so far."""
    if flip.flip_s >= 0:
        return latency(flip.flip_s)
    return "no work" if flip.idle else f"{latency(flip.age_s)} …"


def cleared(flip: FlipStatus) -> str:
    """The time until nothing of the old role was left."""
    return f"clear {latency(flip.clear_s)}" if flip.clear_s >= 0 else "clearing"


def transfer_line(transfer: TransferStatus, width: int) -> Text:
    """Source and target, the sequence, progress, and size."""
    name = _NAME_CELLS
    ends = (
        f"{printable(transfer.source, name):>{name}} → {printable(transfer.target, name):<{name}}"
    )
    sort = "ahead" if transfer.ahead else "host" if transfer.from_host else "tail"
    left = Text.assemble((ends, ink.text), (f" {transfer.sequence:<6} ", ink.muted), no_wrap=True)
    right = Text.assemble((f" {size(transfer.num_bytes):>9}", ink.text), (f" {sort:<5}", ink.muted))
    done = share_done(transfer)
    progress_text = percent(done).strip() if done is not None else latency(transfer.age_s)
    late = bool(transfer.expected_s) and transfer.age_s > 2 * transfer.expected_s
    room = width - left.cell_len - right.cell_len - 9
    progress = Text(f" {progress_text:>8}", ink.warn if late else ink.text)
    if room >= _LEAST_BAR and done is not None:
        left.append_text(drawn(bar(done, min(room, _MOST_BAR)), ink.warn if late else ink.extra))
    elif room >= _LEAST_BAR:
        left.append(" " * min(room, _MOST_BAR))
    return left.append_text(progress).append_text(right)


def flip_line(flip: FlipStatus) -> Text:
    """An instance's change of role and its reason, its duration, and its age."""
    line = Text(no_wrap=True, end="")
    line.append(f"{TURN} ", ink.warn if is_fresh(flip) else ink.faint)
    line.append(f"{printable(flip.instance, _NAME_CELLS):<{_NAME_CELLS}} ", ink.text)
    line.append(flip.was, role_colour(flip.was)).append(" → ", ink.muted)
    line.append(flip.role, role_colour(flip.role))
    line.append(f" {printable(flip.why, 18)}: ", ink.muted).append(took(flip), ink.text)
    line.append(f", {cleared(flip)}", ink.muted)
    return line.append(f" · {duration(flip.age_s)} ago", ink.faint)


def roles_line(roles: RolesStatus) -> Text:
    """The choice of the automatic roles, and its reason."""
    line = Text(no_wrap=True, end="")
    line.append("roles ", ink.muted).append(printable(roles.present, 12), ink.text)
    why = printable(roles.decision, 120)
    return line.append(f" · {why}" if why else "", ink.muted)


def plan_line(plan: PlanStatus) -> Text:
    """The self-driving plan, its prediction and its truth."""
    line = Text(no_wrap=True, end="")
    return line.append("plan ", ink.muted).append(printable(plan.words, 160), ink.text)


class MovesPanel(Lines):
    """Transfers in flight, oldest first, and flips, newest first: side by side if it is wide."""

    def __init__(self) -> None:
        super().__init__(id="moves")
        self.border_title = "on the move"
        self._transfers: Sequence[TransferStatus] = ()
        self._flips: Sequence[FlipStatus] = ()
        self._roles = RolesStatus()
        self._plan = PlanStatus()

    def update_from(self, snapshot: Snapshot) -> None:
        """Show this snapshot's transfers and flips."""
        self._transfers, self._flips = snapshot.transfers, snapshot.flips[::-1]
        self._roles, self._plan = snapshot.roles, snapshot.plan
        self.border_subtitle = in_flight(snapshot)
        self.redraw()

    def lines(self, width: int, height: int) -> list[Text]:
        """As many as fit; flips below transfers keep a line or two."""
        if width >= BESIDE_CELLS:
            left_width = width * 11 // 20
            left = self._moving(left_width - 2, height)
            return _beside(left, self._flipped(height), left_width, height)
        below = len(self._flips) + (self._roles.mode in WATCHED) + bool(self._plan.words)
        kept = min(below, max(2, height - len(self._transfers)), height // 2)
        moving = self._moving(width, height - kept)
        return [*moving, *self._flipped(height - len(moving))] if below else moving

    def _moving(self, width: int, height: int) -> list[Text]:
        if not self._transfers:
            return [Text("nothing is being sent", ink.faint)][:height]
        shown = self._transfers
        if len(shown) > height:
            shown = shown[: max(0, height - 1)]
        lines = [transfer_line(transfer, width) for transfer in shown]
        more = len(self._transfers) - len(shown)
        return [*lines, Text(f"and {more} more", ink.muted)][:height] if more else lines

    def _flipped(self, height: int) -> list[Text]:
        watcher = [roles_line(self._roles)] if self._roles.mode in WATCHED else []
        watcher += [plan_line(self._plan)] if self._plan.words else []
        return [*watcher, *(flip_line(flip) for flip in self._flips)][:height]


def _beside(left: list[Text], right: list[Text], left_width: int, height: int) -> list[Text]:
    """Lines of two columns."""
    lines = []
    for place in range(min(height, max(len(left), len(right)))):
        line = left[place].copy() if place < len(left) else Text(no_wrap=True, end="")
        line.append(" " * max(0, left_width - line.cell_len))
        lines.append(line.append_text(right[place]) if place < len(right) else line)
    return lines


def in_flight(snapshot: Snapshot) -> str:
    """The amount in flight, and the number of handoffs so far."""
    counters, num_bytes = (
        snapshot.counters,
        sum(transfer.num_bytes for transfer in snapshot.transfers),
    )
    now = f"{len(snapshot.transfers)} in flight, {size(num_bytes)}"
    return f"{now} · {counters.handoffs} handed over, {counters.handoffs_failed} failed"


class MovesLine(Lines):
    """One line of the overview: transfers and flips under way; hidden where there are none."""

    def __init__(self) -> None:
        super().__init__(id="moving")
        self.display = False
        self._snapshot: Snapshot | None = None

    def update_from(self, snapshot: Snapshot) -> None:
        """Show this snapshot's transfers and flips."""
        self._snapshot = snapshot
        self.display = bool(snapshot.transfers or newest_flips(snapshot))
        self.redraw()

    def lines(self, width: int, height: int) -> list[Text]:
        """Flips under way, the sum of the transfers, then single transfers while they fit."""
        snapshot = self._snapshot
        if snapshot is None:
            return []
        line = Text(no_wrap=True, end="")
        for flip in newest_flips(snapshot).values():
            text = f"{TURN} {printable(flip.instance, _NAME_CELLS)} {flip.was} → {flip.role}"
            _add(line, Text(f"{text} {took(flip)}", ink.warn), width)
        if snapshot.transfers:
            num_bytes = size(sum(transfer.num_bytes for transfer in snapshot.transfers))
            total = f"{MOVE} {len(snapshot.transfers)} in flight, {num_bytes}"
            _add(line, Text(total, ink.extra), width)
        for transfer in snapshot.transfers:
            done = share_done(transfer)
            progress = percent(done).strip() if done is not None else latency(transfer.age_s)
            source = printable(transfer.source, _NAME_CELLS)
            ends = f"{source}→{printable(transfer.target, _NAME_CELLS)}"
            _add(line, Text(f"{ends} {progress}", ink.text), width)
        return [line][:height]


def _add(line: Text, part: Text, width: int) -> None:
    """Append a part if the line has room for it."""
    gap = 3 if line.cell_len else 1
    if line.cell_len + gap + part.cell_len <= width:
        line.append(" " * gap).append_text(part)
