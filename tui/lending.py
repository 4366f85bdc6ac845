"""Loans as bars: each borrower's lies below the blocks of its lender that it borrows.

A column is the same number of blocks in all bars. A lender's bar is its reservation: the blocks
that it holds, keeps and lends. A borrower's bar is its loan, at the place where its lender needs
it.
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
"""Tokens; a borrower whose lender is this near will soon leave, unless it ends."""

_HELD, _LENT, _KEPT, _NONE = "█", "▒", "─", " "
_LOOK = {_HELD: "main", _LENT: "extra", _KEPT: "faint", _NONE: "text"}


class Placed(NamedTuple):
    """A row's blocks in the numbering of its outermost lender: `first` .. `end`, some
    of them lent.
    """

    row: LoanStatus
    depth: int  # 0: it borrows nothing
    first: int
    end: int
    held: int  # blocks held from `first` on; a borrower's: of its loan
    left: int  # tokens until its lender needs the loan; -1: it borrows nothing
    lent: tuple[tuple[int, int], ...]  # stretches, as `first` and `end`


def placed(rows: Sequence[LoanStatus], block_size: int) -> list[Placed]:
    """The place of each row's blocks. A borrower is left out if its lender is not among the rows
    before it: its place is unknown.
    """
    found: dict[int, Placed] = {}
    for row in rows:
        lender = found.get(row.host)
        own = row.num_reserved - row.num_borrowed
        if row.host < 0:
            found[row.sequence] = Placed(
                row=row, depth=0, first=0, end=row.num_reserved, held=row.num_held, left=-1, lent=()
            )
        elif lender is not None:
            first = _zero(lender) + row.due_token // block_size
            end = first + row.num_borrowed
            found[lender.row.sequence] = lender._replace(lent=(*lender.lent, (first, end)))
            held = min(max(0, row.num_held - own), row.num_borrowed)
            left = row.due_token - lender.row.num_tokens
            found[row.sequence] = Placed(
                row=row, depth=lender.depth + 1, first=first, end=end, held=held, left=left, lent=()
            )
    return list(found.values())


def _zero(entry: Placed) -> int:
    """The place of its block 0: a borrower's own blocks lie before its loan."""
    return entry.end - entry.row.num_reserved


def loan_lines(lending: LendingStatus, block_size: int, width: int, height: int) -> list[Text]:
    """A line per lender or borrower, as many as fit; then the number of further ones."""
    if height < 1:
        return []
    rows = placed(lending.shown, block_size)
    total = lending.num_loans
    fitting = rows if len(rows) <= height and _num_loans(rows) == total else rows[: height - 1]
    most = max((row.end for row in fitting), default=1)
    words = [_words(row) for row in fitting]
    room = width - _LABEL - 2 - max((text.cell_len for text in words), default=0)
    room = min(room, width - _LABEL - 2 - _WORDS)  # a constant width, whatever the numbers are
    lines = [_line(*row, most, room) for row in zip(fitting, words, strict=True)]
    if more := total - _num_loans(fitting):
        lines.append(Text(f"and {more} more loans", ink.muted))
    return lines


def _num_loans(rows: Sequence[Placed]) -> int:
    return sum(row.depth > 0 for row in rows)


def _line(row: Placed, words: Text, most: int, room: int) -> Text:
    line = Text(_label(row), ink.text if row.depth == 0 else ink.muted, no_wrap=True, end="")
    if room >= LEAST_BAR:
        line.append_text(_bar(row, most, room)).append("  ")
    return line.append_text(words)


def _label(entry: Placed) -> str:
    depth = min(entry.depth, _MOST_DEPTH)
    label = f"{'  ' * (depth - 1)}└ " if depth else ""
    return f"{label}{ending(str(entry.row.sequence), _LABEL - 1 - len(label))}".ljust(_LABEL)


def _bar(entry: Placed, most: int, width: int) -> Text:
    """The row's cells; lent blocks are drawn over kept ones, and held ones over both."""
    cells = [_NONE] * width

    def fill(first: int, end: int, sign: str) -> None:
        at = min(first * width // most, width - 1)
        for cell in range(at, max(at + 1, min(width, -(-end * width // most)))):
            cells[cell] = sign

    fill(entry.first, entry.end, _KEPT)
    for first, end in entry.lent:
        fill(first, end, _LENT)
    if entry.held:
        fill(entry.first, entry.first + entry.held, _HELD)
    bar = Text(no_wrap=True, end="")
    for sign in cells:
        bar.append(sign, getattr(ink, _LOOK[sign]))
    return bar


def _words(entry: Placed) -> Text:
    row, words = entry.row, Text(no_wrap=True, end="")
    if entry.depth == 0:
        words.append(f"holds {row.num_held} of {row.num_reserved}", ink.text)
    else:
        words.append(f"{row.num_borrowed} due at {row.due_token}, ", ink.text)
        words.append(
            f"in {count(max(0, entry.left))}",
            ink.warn if entry.left <= _SOON else ink.text,
        )
    return words.append(f", lends {row.num_lent}", ink.extra) if row.num_lent else words
