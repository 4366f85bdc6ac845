"""A sequence's story for people: each mark as a sentence, and its life as stretches of time. Pure.

`daemon/state/story.py` explains the marks.
"""

from collections.abc import Sequence
from typing import NamedTuple

from daemon.protocol.control import Cause, FinishReason, Mark, Story, What
from tui.format import latency

ADMITTED = (What.ADMITTED, What.SHARED, What.FETCHED, What.FOLLOWED)
PREEMPTED = (What.GAVE_WAY, What.OUT_OF_BLOCKS, What.WORKER_LOST)
MOVES = (What.SENT_AHEAD, What.LEFT, What.LANDED)
ARRIVALS = (What.LANDED, What.CHUNK, What.RESUMED, *PREEMPTED)
"""Marks that end a migration: the KV is there, or is computed or waited for again."""
STRETCH_LOOK = {  # character and colour
    "waiting": ("·", "muted"),
    "prefill": ("▒", "info"),
    "decode": ("█", "good"),
    "preempted": ("░", "warn"),
    "moving": ("▓", "extra"),
}


class Stretch(NamedTuple):
    """A time in one state: a key of STRETCH_LOOK."""

    start_s: float
    end_s: float
    kind: str


def sentence(mark: Mark, of: Story, instances: Sequence[str]) -> str:
    """One mark in words; `instances` are the names by index."""
    tokens = f"{mark.amount} token{'' if mark.amount == 1 else 's'}"
    kept = f"; KV of {tokens} stays in host memory" if mark.amount else ""
    match mark.what:
        case What.ARRIVED:
            return f"arrived with {mark.amount} prompt tokens"
        case What.HELD_BACK:
            return f"held back until {mark.other} has computed the prompt of both"
        case What.QUEUED:
            return f"queued on {_name(mark.amount, instances)}"
        case What.MOVED:
            return f"moved from {_name(mark.amount, instances)}, where it waited"
        case What.SENT_AHEAD | What.LEFT | What.LANDED:
            return _move(mark, instances)
        case What.PREDICTED:
            return f"predicted: {mark.amount} output tokens"
        case What.ADMITTED:
            cached = f", {tokens} from the prefix cache" if mark.amount else ""
            return f"runs{cached}"
        case What.SHARED:
            return f"runs, {tokens} shared with {mark.other}"
        case What.FETCHED:
            return f"runs again, KV of {tokens} comes from host memory"
        case What.FOLLOWED:
            return f"runs again, KV of {tokens} comes from {_name(mark.other, instances)}"
        case What.RESTORED:
            return "its KV is back on the device"
        case What.CHUNK:
            return f"computes {tokens}"
        case What.FIRST:
            return "first token"
        case What.PROMOTED | What.DEMOTED:
            return f"{mark.what} to level {mark.amount}"
        case What.GAVE_WAY:
            return f"preempted: gave way to {mark.other}{kept}"
        case What.OUT_OF_BLOCKS:
            own = mark.other == of.sequence
            why = "no block for its next token" if own else f"{mark.other} needed a block"
            return f"preempted: {why}{kept}"
        case What.WORKER_LOST:
            return "preempted: its worker was lost"
        case What.RESUMED:
            return (
                f"goes on after a pause of {latency(mark.amount / 1e3)} ({cause_word(mark.other)})"
            )
        case What.FINISHED:
            return f"finished with {tokens} ({reason(mark.other)})"
        case _:
            return mark.what


def _move(mark: Mark, instances: Sequence[str]) -> str:
    """A mark of a migration in words."""
    tokens = f"{mark.amount} token{'' if mark.amount == 1 else 's'}"
    if mark.what == What.LANDED:
        return f"its KV of {tokens} has landed"
    if mark.what == What.LEFT:
        takes = f"takes the KV of {tokens} along" if mark.amount else "without its KV"
        return f"leaves for {_name(mark.other, instances)}, {takes}"
    to = f" to {_name(mark.other, instances)}" if mark.other >= 0 else ""
    return f"{mark.amount} block{'' if mark.amount == 1 else 's'} of its KV sent ahead{to}"


def _name(index: int, instances: Sequence[str]) -> str:
    return instances[index] if 0 <= index < len(instances) else str(index)


def reason(number: int) -> str:
    """Why a sequence ended, in a word."""
    try:
        return FinishReason(number).name.lower()
    except ValueError:
        return f"reason {number}"


def cause_word(number: int) -> str:
    """Why a sequence paused, in a word or two."""
    try:
        return Cause(number).name.lower().replace("_", " ")
    except ValueError:
        return f"cause {number}"


def mark_colour(what: str) -> str:
    """The ink of a mark."""
    if what in PREEMPTED:
        return "warn"
    if what in (What.FETCHED, What.FOLLOWED, What.RESTORED, *MOVES):
        return "extra"
    if what in (What.CHUNK, *ADMITTED):
        return "info"
    return "good" if what in (What.FIRST, What.RESUMED, What.FINISHED) else "text"


def stretches(story: Story) -> list[Stretch]:
    """The life from its arrival to its end, or to now.

    A sequence that recomputed its tokens is taken to decode on after its last chunk.
    """
    found: list[Stretch] = []
    kind, since_s = "waiting", story.marks[0].time_s if story.marks else story.time_s
    answering = away = False
    for index, mark in enumerate(story.marks):
        answering = answering or mark.what == What.FIRST
        away = mark.what == What.LEFT or (away and mark.what not in ARRIVALS)
        if away and mark.what in ADMITTED:
            continue  # it has a slot there, but its KV is still being transferred
        after = _kind_after(mark.what, answering, _chunk_follows(story.marks, index))
        if after is None or after == kind:
            continue
        found.append(Stretch(since_s, mark.time_s, kind))
        kind, since_s = after, mark.time_s
    if kind:
        found.append(Stretch(since_s, story.time_s, kind))
    return [stretch for stretch in found if stretch.end_s > stretch.start_s or len(found) == 1]


def _kind_after(what: str, answering: bool, chunk_follows: bool) -> str | None:
    """The state after a mark; None: as before; "": the end."""
    if what == What.FINISHED:
        return ""
    if what in PREEMPTED:
        return "preempted"
    if what in (What.FETCHED, What.FOLLOWED, What.LEFT):
        return "moving"
    if what in (What.FIRST, What.RESUMED):
        return "decode"
    if what in (What.ADMITTED, What.SHARED, What.CHUNK, What.RESTORED, What.LANDED):
        return "decode" if answering and not chunk_follows else "prefill"
    return None


def _chunk_follows(marks: Sequence[Mark], index: int) -> bool:
    """Whether it recomputes known tokens before it leaves its slot."""
    for mark in marks[index + 1 :]:
        if mark.what in (*PREEMPTED, What.LEFT):
            return False
        if mark.what == What.CHUNK:
            return True
    return False


def strip_cells(found: Sequence[Stretch], width: int) -> list[str]:
    """The kind of each of `width` cells of equal time, as in the middle of the cell."""
    if not found or width < 1:
        return []
    start_s, whole_s = found[0].start_s, found[-1].end_s - found[0].start_s
    cells = []
    place = 0
    for cell in range(width):
        at_s = start_s + (cell + 0.5) / width * whole_s
        while place < len(found) - 1 and at_s >= found[place].end_s:
            place += 1
        cells.append(found[place].kind)
    return cells


def totals(found: Sequence[Stretch]) -> dict[str, float]:
    """Seconds of each kind, in order of STRETCH_LOOK."""
    sums = dict.fromkeys(STRETCH_LOOK, 0.0)
    for stretch in found:
        sums[stretch.kind] += stretch.end_s - stretch.start_s
    return {kind: seconds for kind, seconds in sums.items() if seconds > 0}


def ranges(blocks: Sequence[int]) -> str:
    """Block numbers, neighbours joined: "4-9, 12, 30-31"."""
    parts: list[list[int]] = []
    for block in blocks:
        if parts and block == parts[-1][1] + 1:
            parts[-1][1] = block
        else:
            parts.append([block, block])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)
