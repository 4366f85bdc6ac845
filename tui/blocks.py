"""The KV block map: every pool's blocks as coloured cells, two to a character."""

import numpy as np
from rich.text import Text
from textual.geometry import Size
from textual.widget import Widget

from daemon.control.protocol import BlockUse, InstanceStatus
from daemon.wire.columns import Column, UInt8
from tui.format import count, percent, printable, share, size
from tui.instances import pressure_colour, used_blocks
from tui.palette import MUTED, TEXT, USE_LOOK

_COLOURS = [USE_LOOK[use][1] for use in range(4)]
_HALF = "▀"
_INLINE_NAME, _INLINE_PERCENT = 8, 6
_LEAST_WIDTH = 20


def fit_map(blocks: Column, num_cells: int) -> UInt8:
    """uint8 [num_cells]: the use in the middle of each stretch of `blocks` (uint8 [n], n >= 1).

    The middle, not the busiest, keeps the colours' areas true. Fewer blocks are drawn wider.
    """
    middles = (2 * np.arange(num_cells) + 1) * len(blocks) // (2 * num_cells)
    cells: UInt8 = np.minimum(blocks[middles], np.uint8(BlockUse.HELD))
    return cells


def map_lines(blocks: Column, width: int, height: int) -> list[Text]:
    """`height` lines of `width` half-block characters that show all of `blocks`."""
    if not len(blocks):
        return [Text(" " * width) for _ in range(height)]
    grid = fit_map(blocks, width * height * 2).reshape(height * 2, width)
    return [_line(grid[2 * row], grid[2 * row + 1]) for row in range(height)]


def _line(upper: UInt8, lower: UInt8) -> Text:
    """One line of characters; runs of the same colours share one style."""
    pair = upper.astype(np.int16) * 4 + lower
    starts = np.flatnonzero(np.diff(pair, prepend=-1))
    line = Text(no_wrap=True, end="")
    for start, end in zip(starts, [*starts[1:], len(pair)], strict=True):
        style = f"{_COLOURS[upper[start]]} on {_COLOURS[lower[start]]}"
        line.append(_HALF * int(end - start), style)
    return line


def heading(instance: InstanceStatus, width: int) -> Text:
    """Name, share and counts of one pool, in one line; the bytes only where they fit."""
    used = share(used_blocks(instance), instance.kv_blocks)
    held_bytes = used_blocks(instance) * instance.kv_block_bytes
    text = Text(no_wrap=True, end="")
    text.append(f"{printable(instance.name, 12)} ", TEXT)
    text.append(percent(used).strip(), pressure_colour(used))
    text.append(f"  {used_blocks(instance)} of {instance.kv_blocks} blocks", MUTED)
    in_bytes = f"  {size(held_bytes)}"
    if text.cell_len + len(in_bytes) <= width:
        text.append(in_bytes, MUTED)
    return text


def legend(instances: tuple[InstanceStatus, ...]) -> list[Text]:
    """Each colour, its name and how many blocks of all pools have that use."""
    counts = {
        BlockUse.HELD: sum(i.kv_held for i in instances),
        BlockUse.FENCED: sum(i.kv_fenced for i in instances),
        BlockUse.CACHED: sum(i.kv_cached for i in instances),
        BlockUse.FREE: sum(max(0, i.kv_free - i.kv_cached) for i in instances),
    }
    return [
        Text.assemble(("■ ", USE_LOOK[use][1]), (f"{USE_LOOK[use][0]} {count(number)}", MUTED))
        for use, number in counts.items()
    ]


class BlockMap(Widget):
    """All pools below each other; one line each where there is little room."""

    def __init__(self) -> None:
        super().__init__(id="blocks")
        self.border_title = "KV blocks"
        self._pools: list[InstanceStatus] = []
        self._legend: list[Text] = []
        self._subtitle = ""

    def update_from(self, instances: tuple[InstanceStatus, ...]) -> None:
        """Show the pools of these instances."""
        pools = [instance for instance in instances if instance.kv_blocks]
        resized = len(pools) != len(self._pools)
        self._pools = pools
        self._legend = legend(instances)
        self._place_legend()
        self.refresh(layout=resized)

    def on_resize(self) -> None:
        """Another width may leave no room for the legend in the border."""
        self._place_legend()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Where the layout leaves the height open: one line a pool."""
        return max(1, len(self._pools))

    def render(self) -> Text:
        """Share the height evenly; the legend stands below if it is not in the border."""
        width, height = self.size
        if not self._pools or width < _LEAST_WIDTH or height < 1:
            return Text("no pool yet", style=MUTED)
        below = [] if self._subtitle else [*_in_twos(self._legend, width)]
        room = height - len(below) if height > 2 * len(below) else height
        each = room // len(self._pools)
        lines: list[Text] = []
        for pool in self._pools:
            lines += _tall(pool, width, each) if each >= 3 else [_flat(pool, width)]
        if len(lines) > room:
            hidden = len(lines) - room + 1
            lines[room - 1 :] = [Text(f"and {hidden} more pools", style=MUTED)]
        return Text("\n").join([*lines[:room], *([Text()] * (room - len(lines))), *below][:height])

    def _place_legend(self) -> None:
        joined = Text("  ").join(self._legend)
        fits = joined.cell_len <= self.size.width - 2
        subtitle = joined.plain if fits else ""
        if subtitle != self._subtitle:
            self._subtitle = subtitle
            self.border_subtitle = joined if fits else None


def _in_twos(parts: list[Text], width: int) -> list[Text]:
    """The parts, two to a line, aligned in two halves."""
    lines = []
    for left, right in zip(parts[::2], parts[1::2], strict=True):
        gap = max(1, width // 2 - left.cell_len)
        lines.append(Text.assemble(left, " " * gap, right))
    return lines


def _tall(pool: InstanceStatus, width: int, height: int) -> list[Text]:
    """A heading, then the map; a blank line below where there is room."""
    gap = 1 if height >= 5 else 0
    lines = [heading(pool, width), *map_lines(pool.block_map, width, height - 1 - gap)]
    return lines + [Text()] * gap


def _flat(pool: InstanceStatus, width: int) -> Text:
    """Name, share and map in one line."""
    used = share(used_blocks(pool), pool.kv_blocks)
    line = Text(no_wrap=True, end="")
    line.append(f"{printable(pool.name, _INLINE_NAME - 1):<{_INLINE_NAME}}", TEXT)
    line.append(f"{percent(used)} ", pressure_colour(used))
    line.append_text(map_lines(pool.block_map, width - _INLINE_NAME - _INLINE_PERCENT, 1)[0])
    return line
