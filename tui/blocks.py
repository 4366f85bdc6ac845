"""The KV block map: every pool's blocks as coloured cells, two to a character."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from msgspec import UNSET
from rich.text import Text
from textual import events
from textual.geometry import Offset, Region, Size

from daemon.protocol.control import (
    BlockOwners,
    BlockUse,
    ExpertStatus,
    InstanceStatus,
    KindStatus,
    StateStatus,
)
from daemon.wire.columns import UInt8
from tui.format import count, percent, printable, share, size
from tui.instances import pressure_colour
from tui.lines import Lines
from tui.palette import USE_LOOK, block_colour, block_sign, ink, look_of

_HALF = "▀"
_INLINE_NAME, _INLINE_PERCENT = 8, 6
_LEAST_WIDTH = 20


def looks_of(pool: InstanceStatus) -> UInt8:
    """uint8 [cells]: the look of each cell of a pool's map, of held blocks by their kind."""
    looks: UInt8 = np.minimum(pool.block_map, np.uint8(BlockUse.HELD))
    if pool.by_kind is UNSET:
        return looks
    of_kinds = np.array([look_of(kind.kind) for kind in pool.kv_kinds], np.uint8)
    return np.where(looks == BlockUse.HELD, of_kinds[pool.by_kind.kind_map], looks)


def fit_map(looks: UInt8, num_cells: int) -> UInt8:
    """uint8 [num_cells]: the look in the middle of each stretch of `looks` (uint8 [n], n >= 1).

    The middle, not the busiest, keeps the colours' areas true. Fewer blocks are drawn wider.
    """
    middles = (2 * np.arange(num_cells) + 1) * len(looks) // (2 * num_cells)
    cells: UInt8 = looks[middles]
    return cells


def map_lines(blocks: UInt8, width: int, height: int, *, coloured: bool = True) -> list[Text]:
    """`height` lines of `width` characters that show all of these looks: two cells a character, or
    without colours one.
    """
    if not len(blocks):
        return [Text(" " * width) for _ in range(height)]
    if not coloured:
        rows = fit_map(blocks, width * height).reshape(height, width).tolist()
        return [Text("".join(map(block_sign, row)), end="") for row in rows]
    grid = fit_map(blocks, width * height * 2).reshape(height * 2, width)
    return [_line(grid[2 * row], grid[2 * row + 1]) for row in range(height)]


def cells_under(num_cells: int, width: int, height: int, x: int, y: int) -> list[int]:
    """The one or two cells, of `num_cells`, that the character at (x, y) of such a map shows."""
    shown = [(2 * y + half) * width + x for half in (0, 1)]
    total = 2 * width * height
    return sorted({(2 * cell + 1) * num_cells // (2 * total) for cell in shown})


def _line(upper: UInt8, lower: UInt8) -> Text:
    """One line of characters; runs of the same colours share one style."""
    pair = upper.astype(np.int16) << 8 | lower
    starts = np.flatnonzero(np.diff(pair, prepend=-1))
    line = Text(no_wrap=True, end="")
    for start, end in zip(starts, [*starts[1:], len(pair)], strict=True):
        style = f"{block_colour(upper[start])} on {block_colour(lower[start])}"
        line.append(_HALF * int(end - start), style)
    return line


def cell_words(pool: InstanceStatus, owners: BlockOwners | None, cell: int) -> str:
    """One cell of a pool's map in words: its blocks, their use, and their owner."""
    blocks = pool.kv_blocks
    per_cell = blocks / max(1, len(pool.block_map))
    first, last = int(cell * per_cell), max(int(cell * per_cell), int((cell + 1) * per_cell) - 1)
    which = f"block {first}" if first == last else f"blocks {first}-{last}"
    use = min(int(pool.block_map[cell]), BlockUse.HELD)
    words = f"{which} of {blocks}: {USE_LOOK[use][0]}"
    if pool.by_kind is not UNSET and use != BlockUse.FREE:
        words += f", {kind_words(pool.kv_kinds[int(pool.by_kind.kind_map[cell])])}"
    if owners is None or cell >= len(owners.owners) or owners.owners[cell] < 0:
        return words
    others = int(owners.shares[cell]) - 1
    more = f" and {others} more" if others > 0 else ""
    return f"{words}, sequence {owners.owners[cell]}{more}"


def kind_words(kind: KindStatus) -> str:
    """A kind of layers in words."""
    return kind.kind + (f" {kind.window:,}" if kind.window else "")


def kinds_held(pool: InstanceStatus) -> str:
    """The pages of each kind that a pool holds; "": a block has all layers."""
    return ", ".join(f"{count(kind.held)} {kind_words(kind)}" for kind in pool.kv_kinds)


def snapshots(states: StateStatus) -> str:
    """Snapshots of states in the prefix cache, and what they were good for."""
    kept = f"{count(states.snapshots)} snapshots, each of {count(states.pages)} blocks"
    began = f"{count(states.hits)} prompts went on from one"
    return f"{kept}, {began}, {count(states.hit_tokens)} tokens spared"


def experts_held(experts: ExpertStatus) -> str:
    """The places of a mixture's experts, and the share of tokens' experts that the CPU computed."""
    held = f"{count(experts.on_device)} on the device, {count(experts.in_ram)} in RAM"
    share = f"{percent(experts.ram_share).strip()} of the tokens' computed in RAM"
    return f"{held}, {share}, {count(experts.exchanged)} exchanged"


def heading(instance: InstanceStatus, width: int) -> Text:
    """Name, share and counts of one pool, in one line; bytes and the written share
    where they fit.
    """
    used = share(instance.kv_used, instance.kv_blocks)
    held_bytes = instance.kv_used * instance.kv_block_bytes
    text = Text(no_wrap=True, end="")
    text.append(f"{printable(instance.name, 12)} ", ink.text)
    text.append(percent(used).strip(), pressure_colour(used))
    text.append(f"  {instance.kv_used} of {instance.kv_blocks} blocks", ink.muted)
    in_bytes = f"  {size(held_bytes)}"
    if text.cell_len + len(in_bytes) <= width:
        text.append(in_bytes, ink.muted)
    of_kinds = f"  ({kinds_held(instance)})"
    if instance.kv_kinds and text.cell_len + len(of_kinds) <= width:
        text.append(of_kinds, ink.muted)
    written = f"  {percent(instance.kv_written).strip()} written"
    if instance.kv_written and text.cell_len + len(written) <= width:
        text.append(written, ink.muted)
    return text


def legend(instances: Sequence[InstanceStatus]) -> list[Text]:
    """Each colour with its name and the number of blocks of all pools in that use; of held ones,
    of each kind where pools tell them apart.
    """
    kinds: dict[str, int] = {}
    for kind in (kind for instance in instances for kind in instance.kv_kinds):
        kinds[kind.kind] = kinds.get(kind.kind, 0) + kind.held
    shown = [(look_of(kind), kind, number) for kind, number in kinds.items()]
    alike = [instance.kv_held for instance in instances if not instance.kv_kinds]
    uses = {
        BlockUse.FENCED: sum(i.kv_fenced for i in instances),
        BlockUse.CACHED: sum(i.kv_cached for i in instances),
        BlockUse.FREE: sum(i.kv_free for i in instances),
    }
    if alike or not kinds:
        uses = {BlockUse.HELD: sum(alike), **uses}
    shown += [(use, USE_LOOK[use][0], number) for use, number in uses.items()]
    return [
        Text.assemble(("■ ", block_colour(look)), (f"{name} {count(number)}", ink.muted))
        for look, name, number in shown
    ]


class _Area(NamedTuple):
    """The place of one pool's map in the widget."""

    pool: int  # its place among the pools
    region: Region


class BlockMap(Lines):
    """All pools below each other; one line each where there is little room.

    The mouse over a block shows its owner.
    """

    def __init__(self) -> None:
        super().__init__(id="blocks")
        self.border_title = "KV blocks"
        self._pools: list[tuple[int, InstanceStatus]] = []  # with the instances' indices
        self._owners: dict[int, BlockOwners] = {}
        self._areas: list[_Area] = []
        self._mouse: Offset | None = None
        self._legend: list[Text] = []
        self._subtitle = ""

    def update_from(
        self, instances: list[tuple[int, InstanceStatus]], owners: dict[int, BlockOwners]
    ) -> None:
        """Show the pools of these instances, which come with their indices."""
        pools = [(index, pool) for index, pool in instances if pool.kv_blocks]
        resized = len(pools) != len(self._pools)
        self._pools = pools
        self._owners = owners
        self._tell()
        self._legend = legend([instance for _, instance in instances])
        self._place_legend()
        if resized:
            self.refresh(layout=True)
        self.redraw()

    def on_resize(self) -> None:
        """Another width may leave no room for the legend in the border."""
        self._place_legend()
        super().on_resize()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The height if the layout leaves it open: one line per pool."""
        return max(1, len(self._pools))

    def lines(self, width: int, height: int) -> list[Text]:
        """Share the height evenly; the legend is below if it is not in the border. A single line
        has all of the legend.
        """
        self._areas = []
        if height == 1:
            return [Text("  ").join([Text("KV blocks", style=ink.muted), *self._legend])]
        if not self._pools or width < _LEAST_WIDTH:
            return [Text("no pool yet", style=ink.muted)]
        below = [] if self._subtitle else [*_in_twos(self._legend, width)]
        room = height - len(below) if height > 2 * len(below) else height
        each = room // len(self._pools)
        lines: list[Text] = []
        coloured = not self.app.no_color
        for place, (_, pool) in enumerate(self._pools):
            top, inset = len(lines), _INLINE_NAME + _INLINE_PERCENT
            if each >= 3:
                lines += _tall(pool, width, each, coloured)
                area = Region(0, top + 1, width, len(lines) - top - 1 - _gap(each))
            else:
                lines.append(_flat(pool, width, coloured))
                area = Region(inset, top, width - inset, 1)
            self._areas.append(_Area(place, area))
        if len(lines) > room:
            hidden = len(lines) - room + 1
            lines[room - 1 :] = [Text(f"and {hidden} more pools", style=ink.muted)]
        return [*lines[:room], *([Text()] * (room - len(lines))), *below][:height]

    def hovered(self) -> list[int]:
        """The instance whose map is under the mouse, if any."""
        if self._mouse is None or not self.is_mouse_over:
            return []
        mouse = self._mouse
        return [
            self._pools[area.pool][0] for area in self._areas if area.region.contains_point(mouse)
        ]

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Show the owner of the block under the mouse."""
        self._mouse = event.get_content_offset(self)
        self._tell()

    def on_leave(self) -> None:
        """The mouse has gone."""
        self._mouse = None
        self._tell()

    def _tell(self) -> None:
        """The tooltip of the block under the mouse."""
        text, mouse = None, self._mouse
        for area in self._areas:
            inside = mouse is not None and area.region.contains_point(mouse)
            if mouse is None or not inside or area.pool >= len(self._pools):
                continue
            index, pool = self._pools[area.pool]
            x, y = mouse.x - area.region.x, mouse.y - area.region.y
            size = area.region.size
            cells = cells_under(len(pool.block_map), size.width, size.height, x, y)
            owners = self._owners.get(index)
            text = "\n".join(cell_words(pool, owners, cell) for cell in cells)
        if text != self.tooltip:
            self.tooltip = text

    def _place_legend(self) -> None:
        joined = Text("  ").join(self._legend)
        fits = joined.cell_len <= self.size.width - 2
        subtitle = f"{joined.plain}{ink.main}" if fits else ""
        if subtitle != self._subtitle:
            self._subtitle = subtitle
            self.border_subtitle = joined if fits else None


def _in_twos(parts: list[Text], width: int) -> list[Text]:
    """The parts, two to a line, aligned in two halves; an odd last one alone."""
    lines = []
    for left, right in zip_longest(parts[::2], parts[1::2], fillvalue=Text()):
        gap = max(1, width // 2 - left.cell_len)
        lines.append(Text.assemble(left, " " * gap, right))
    return lines


def _gap(height: int) -> int:
    """Blank lines below a map, where there is room."""
    return 1 if height >= 5 else 0


def _tall(pool: InstanceStatus, width: int, height: int, coloured: bool) -> list[Text]:
    """A heading, then the map."""
    room = height - 1 - _gap(height)
    lines = [heading(pool, width), *map_lines(looks_of(pool), width, room, coloured=coloured)]
    return lines + [Text()] * _gap(height)


def _flat(pool: InstanceStatus, width: int, coloured: bool) -> Text:
    """Name, share and map in one line."""
    used = share(pool.kv_used, pool.kv_blocks)
    line = Text(no_wrap=True, end="")
    line.append(f"{printable(pool.name, _INLINE_NAME - 1):<{_INLINE_NAME}}", ink.text)
    line.append(f"{percent(used)} ", pressure_colour(used))
    room = width - _INLINE_NAME - _INLINE_PERCENT
    return line.append_text(map_lines(looks_of(pool), room, 1, coloured=coloured)[0])
