"""An instance's reservations by predictions: both queues, groups, the peak, and loans."""

from rich.text import Text

from daemon.protocol.control import InstanceStatus, PeakStatus, ReservedStatus
from tui.chart import chart_lines
from tui.format import bar, count, percent, share
from tui.instances import pressure_colour
from tui.lending import loan_lines
from tui.lines import Lines
from tui.palette import drawn, ink, state_look

_LABEL = 9


def step_use(instance: InstanceStatus, most: int) -> str:
    """The newest steps, one character each, and their share of the budget."""
    tokens = instance.newest_tokens[-most:]
    line = chart_lines(tokens, instance.batch_budget, len(tokens), 1)[0]
    return f"{line} {percent(share(sum(tokens), instance.batch_budget * len(tokens))).strip()}"


def queue_words(instance: InstanceStatus) -> str:
    """Both queues; empty where the policy has one."""
    if instance.reserved is None:
        return ""
    return f"{count(instance.waiting)} prompts, {count(instance.reserved.ready)} ready"


def loan_words(reserved: ReservedStatus) -> str:
    """The loans in all; empty where the policy lends nothing."""
    lending = reserved.lending
    if lending is None:
        return ""
    owed = f", {lending.num_owed} owed" if lending.num_owed else ""
    loans = "loan" if lending.num_loans == 1 else "loans"
    return f"{lending.num_blocks} blocks in {lending.num_loans} {loans}{owed}"


def peak_words(peak: PeakStatus) -> str:
    """The size and time of the peak."""
    return f"{peak.num_blocks} blocks in {count(peak.num_steps)} steps"


class ReservedPanel(Lines):
    """A panel beside the map of a pool; hidden where nothing is reserved by predictions."""

    def __init__(self) -> None:
        super().__init__(id="reserved")
        self.border_title = "kept by predictions"
        self.display = False
        self._pool: InstanceStatus | None = None
        self._block_size = 1

    def update_from(self, pool: InstanceStatus | None, block_size: int) -> None:
        """Show this pool's reservations, in blocks of `block_size` tokens."""
        self._pool, self._block_size = pool, max(1, block_size)
        reserved = pool.reserved if pool is not None else None
        self.display = reserved is not None
        if reserved is not None:
            self.set_class(reserved.lending is not None, "-loans")
            self.border_subtitle = loan_words(reserved)
        self.redraw()

    def lines(self, width: int, height: int) -> list[Text]:
        """The queues, the newest steps, groups, the peak; then loans, as many as fit."""
        pool = self._pool
        if pool is None or pool.reserved is None:
            return []
        reserved = pool.reserved
        lines = [_queues(pool, reserved), _use(pool, width)]
        if reserved.groups:
            lines.append(_groups(reserved, width))
        if reserved.peak is not None:
            lines.append(_peak(pool, reserved.peak, width))
        if reserved.lending is not None:
            room = height - len(lines)
            lines += loan_lines(reserved.lending, self._block_size, width, room)
        return lines[:height]


def _labelled(label: str) -> Text:
    return Text(label.ljust(_LABEL), ink.muted, no_wrap=True, end="")


def _queues(pool: InstanceStatus, reserved: ReservedStatus) -> Text:
    sign, colour = state_look("waiting")
    line = _labelled("queues").append(f"{sign} {count(pool.waiting)} prompts wait", colour)
    sign, colour = state_look("ready")
    text = f"{count(reserved.ready)} answers ready, hold {reserved.ready_blocks} blocks"
    return line.append("   ").append(f"{sign} {text}", colour if reserved.ready else ink.muted)


def _use(pool: InstanceStatus, width: int) -> Text:
    """KV written beside KV held, and the newest steps."""
    held = percent(share(pool.kv_used, pool.kv_blocks)).strip()
    written = percent(pool.kv_written).strip()
    line = _labelled("KV").append(f"{written} written, {held} held", ink.text)
    room = width - line.cell_len - 14
    if pool.batch_budget and pool.newest_tokens and room > 0:
        line.append("   steps ", ink.muted).append(step_use(pool, room), ink.info)
    return line


def _groups(reserved: ReservedStatus, width: int) -> Text:
    """`length:begun+ready` of each group, as many as fit."""
    line = _labelled("groups")
    for place, group in enumerate(reserved.groups):
        ready = f"+{group.num_ready}" if group.num_ready else ""
        text = f"{group.num_tokens}:{group.num_begun}{ready} "
        more = f"and {reserved.num_groups - place} more"
        if line.cell_len + len(text) + len(more) > width:
            return line.append(more, ink.muted)
        line.append(text, ink.text if group.num_begun + group.num_ready > 1 else ink.muted)
    if more_groups := reserved.num_groups - len(reserved.groups):
        line.append(f"and {more_groups} more", ink.muted)
    return line


def _peak(pool: InstanceStatus, peak: PeakStatus, width: int) -> Text:
    """The peak as a share of the pool."""
    fraction = share(peak.num_blocks, pool.kv_blocks)
    words = f" {percent(fraction)} of the pool: {peak_words(peak)}"
    room = max(0, width - _LABEL - len(words))
    line = _labelled("peak").append_text(drawn(bar(fraction, room), pressure_colour(fraction)))
    return line.append(words, ink.text)
