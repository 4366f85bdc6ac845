"""Loans as bars: each lodger's lies below the blocks of its host that it borrows.

A column is the same number of blocks in all bars. A host's is its reservation: what it holds, what
it keeps, and what it lends. A lodger's is what it borrows, at the place where its host needs it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from daemon.protocol.control import LendingStatus, LoanStatus
from tui.format import count, ending
from tui.palette import ink

LEAST_BAR = 16
_LABEL, _WORDS = 12, 32
_MOST_DEPTH = 4
_SOON = 32
"""Tokens; a lodger whose host is as near as that is about to leave, if it is not done."""

_HELD, _LENT, _KEPT, _NONE = "█", "▒", "─", " "
_LOOK = {_HELD: "main", _LENT: "extra", _KEPT: "faint", _NONE: "text"}


class Placed(NamedTuple):
    """A row's blocks in those of the host above all: `first` .. `end`, of which some are lent."""

    row: LoanStatus
    depth: int  # 0: nobody lends to it
    first: int
    end: int
    held: int  # of its own from `first` on; where it borrows, of what it borrows
    left: int  # tokens until its host needs what it borrows; -1: it borrows nothing
    lent: tuple[tuple[int, int], ...]  # stretches, as `first` and `end`


def placed(rows: Sequence[LoanStatus], block_size: int) -> list[Placed]:
    """Where each row's blocks lie. A lodger whose host is not among the rows before it is left out:
    nobody knows where.
    """
    found: dict[int, Placed] = {}
    for row in rows:
        host = found.get(row.host)
        own = row.num_reserved - row.num_borrowed
        if row.host < 0:
            found[row.sequence] = Placed(
                row=row, depth=0, first=0, end=row.num_reserved, held=row.num_held, left=-1, lent=()
            )
        elif host is not None:
            first = _zero(host) + row.due_token // block_size
            end = first + row.num_borrowed
            found[host.row.sequence] = host._replace(lent=(*host.lent, (first, end)))
            held = min(max(0, row.num_held - own), row.num_borrowed)
            left = row.due_token - host.row.num_tokens
            found[row.sequence] = Placed(
                row=row, depth=host.depth + 1, first=first, end=end, held=held, left=left, lent=()
            )
    return list(found.values())


def _zero(one: Placed) -> int:
    """Where its block 0 would lie: what a lodger has of its own lies before what it borrows."""
    return one.end - one.row.num_reserved


def loan_lines(lending: LendingStatus, block_size: int, width: int, height: int) -> list[Text]:
    """A line a host or lodger, as many as fit; then how many there are beside them."""
    if height < 1:
        return []
    rows = placed(lending.shown, block_size)
    total = lending.num_loans
    fitting = rows if len(rows) <= height and _num_loans(rows) == total else rows[: height - 1]
    most = max((one.end for one in fitting), default=1)
    words = [_words(one) for one in fitting]
    room = width - _LABEL - 2 - max((one.cell_len for one in words), default=0)
    room = min(room, width - _LABEL - 2 - _WORDS)  # as wide as ever, whatever the numbers do
    lines = [_line(*row, most, room) for row in zip(fitting, words, strict=True)]
    if more := total - _num_loans(fitting):
        lines.append(Text(f"and {more} more loans", ink.muted))
    return lines


def _num_loans(rows: Sequence[Placed]) -> int:
    return sum(one.depth > 0 for one in rows)


def _line(one: Placed, words: Text, most: int, room: int) -> Text:
    line = Text(_label(one), ink.text if one.depth == 0 else ink.muted, no_wrap=True, end="")
    if room >= LEAST_BAR:
        line.append_text(_bar(one, most, room)).append("  ")
    return line.append_text(words)


def _label(one: Placed) -> str:
    depth = min(one.depth, _MOST_DEPTH)
    label = f"{'  ' * (depth - 1)}└ " if depth else ""
    return f"{label}{ending(str(one.row.sequence), _LABEL - 1 - len(label))}".ljust(_LABEL)


def _bar(one: Placed, most: int, width: int) -> Text:
    """The row's cells; what it lends is drawn over what it keeps, and what it holds over both."""
    cells = [_NONE] * width

    def fill(first: int, end: int, sign: str) -> None:
        at = min(first * width // most, width - 1)
        for cell in range(at, max(at + 1, min(width, -(-end * width // most)))):
            cells[cell] = sign

    fill(one.first, one.end, _KEPT)
    for first, end in one.lent:
        fill(first, end, _LENT)
    if one.held:
        fill(one.first, one.first + one.held, _HELD)
    bar = Text(no_wrap=True, end="")
    for sign in cells:
        bar.append(sign, getattr(ink, _LOOK[sign]))
    return bar


def _words(one: Placed) -> Text:
    row, words = one.row, Text(no_wrap=True, end="")
    if one.depth == 0:
        words.append(f"holds {row.num_held} of {row.num_reserved}", ink.text)
    else:
        words.append(f"{row.num_borrowed} due at {row.due_token}, ", ink.text)
        words.append(f"in {count(max(0, one.left))}", ink.warn if one.left <= _SOON else ink.text)
    return words.append(f", lends {row.num_lent}", ink.extra) if row.num_lent else words
