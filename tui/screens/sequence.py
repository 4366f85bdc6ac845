"""One sequence: its state, the strip of its life, and its story mark by mark."""

from collections import deque
from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widget import Widget
from textual.widgets import Static

from daemon.protocol.control import AskStory, Closer, SequenceStatus, Story
from tui.chart import Chart
from tui.deadlines import left_words, scale_words
from tui.facts import facts
from tui.format import bar, count, duration, latency, percent, printable, rate, share
from tui.palette import ink, residency_look, state_look
from tui.screens.live import LiveScreen
from tui.sequences import exceeded
from tui.story import ranges, reason
from tui.story_table import LifeStrip, StoryTable
from tui.watched import Watched

INTERVAL_S = 0.4
WINDOW_S = 3.0
LENGTH = 600


class Pace:
    """Tokens per second of one sequence, while its screen is open."""

    def __init__(self) -> None:
        self.values: list[float | None] = []
        self._seen: deque[tuple[float, int]] = deque(maxlen=LENGTH)

    def add(self, time_s: float, num_tokens: int) -> None:
        """Add the number of tokens at a time; a time that is not newer than the last
        adds nothing.
        """
        if not self._seen:
            self._seen.append((time_s, num_tokens))
            return
        last_s, last = self._seen[-1]
        if time_s - last_s < INTERVAL_S:
            return
        self._seen.append((time_s, num_tokens))
        self.values.append(max(0, num_tokens - last) / (time_s - last_s))
        del self.values[:-LENGTH]

    def now(self) -> float | None:
        """The mean of the last seconds; None before there are two moments."""
        if len(self._seen) < 2:
            return None
        newest_s, newest = self._seen[-1]
        old_s, old = next(seen for seen in self._seen if newest_s - seen[0] <= WINDOW_S)
        if old_s == newest_s:
            old_s, old = self._seen[-2]
        return max(0, newest - old) / (newest_s - old_s)


class SequenceScreen(LiveScreen):
    """Facts at the left, the story at the right."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("m", "app.migrate", "move")]

    def __init__(self, sequence: int) -> None:
        super().__init__()
        self.sequence = sequence
        self.facts = Static(id="facts")
        self.facts.border_title = f"sequence {sequence}"
        self.pace = Chart("output tok/s", "main", rate)
        self.strip = LifeStrip()
        self.story = StoryTable()
        self._pace = Pace()

    def parts(self) -> Iterable[Widget]:
        """Facts, the pace below them; the strip above the story."""
        yield Container(self.facts, self.pace, id="left")
        yield Container(self.strip, self.story, id="side")

    def on_mount(self) -> None:
        """Give the keys to the story."""
        self.story.focus()

    def chosen_sequence(self) -> int | None:
        """This sequence."""
        return self.sequence

    def questions(self, watched: Watched) -> list[Closer]:
        """Ask for its story."""
        return [AskStory(self.sequence)]

    def show(self, watched: Watched) -> None:
        """Show the sequence as it is now."""
        story = watched.story
        if story is not None and story.sequence != self.sequence:
            story = None
        status = watched.sequence(self.sequence)
        snapshot = watched.snapshot
        if status is not None and snapshot is not None:
            time_s = story.time_s if story is not None and story.status else snapshot.time_s
            self._pace.add(time_s, status.num_output_tokens)
        self.facts.update(facts(_facts(status, story)))
        self.pace.update_from(self._pace.values, self._pace.now())
        names = [instance.name for instance in snapshot.instances] if snapshot is not None else []
        self.strip.update_from(story)
        self.story.update_from(story, names)


Pairs = list[tuple[str, str | Text]]


def _facts(status: SequenceStatus | None, story: Story | None) -> Pairs:
    if status is not None:
        due = _due(story, story.time_s) if story is not None else []
        return [*_standing(status, due), *_latencies(status, story), *_blocks(story)]
    if story is not None and story.marks:
        end = story.marks[-1]
        age_s = end.time_s - story.marks[0].time_s
        ended: Pairs = [
            ("state", Text(f"ended: {reason(end.other)}", ink.good)),
            ("prompt", f"{story.marks[0].amount} tokens"),
            ("output", f"{end.amount} tokens"),
            ("lived", duration(age_s)),
        ]
        return [*ended, *_due(story, end.time_s), *_latencies(None, story)]
    return [("state", Text("nothing is known of it (any more)", ink.muted))]


def _standing(status: SequenceStatus, due: Pairs) -> Pairs:
    """The sequence's state; its deadline is near the top, to be visible on a small terminal too."""
    sign, colour = state_look(status.state)
    done = share(
        min(status.num_computed_tokens, status.num_prompt_tokens), status.num_prompt_tokens
    )
    put = share(status.num_output_tokens, status.max_tokens)
    predicted = "nothing"
    if status.predicted_tokens >= 0:
        predicted = f"{status.predicted_tokens} tokens{', exceeded' if exceeded(status) else ''}"
    where, place_colour = residency_look(status.residency) if status.residency else ("–", ink.faint)
    held = f"{where} {status.residency}  {status.num_blocks} on the device, "
    held += f"{status.num_host_blocks} host"
    return [
        ("state", Text(f"{sign} {status.state}", colour)),
        ("instance", printable(status.instance) or "–"),
        *([("request", printable(status.request_id, 200))] if status.request_id else []),
        *([("key", printable(status.key))] if status.key else []),
        ("age", duration(status.age_s)),
        *due,
        ("prompt", f"{bar(done, 10)} {percent(done)} of {count(status.num_prompt_tokens)}"),
        ("output", f"{bar(put, 10)} {status.num_output_tokens} of {status.max_tokens} at most"),
        ("predicted", predicted),
        ("level", str(status.level)),
        ("priority", f"{status.priority:+}" if status.priority else "0"),
        ("preempted", f"{status.preemptions} times"),
        ("KV", Text(held, place_colour)),
    ]


def _latencies(status: SequenceStatus | None, story: Story | None) -> Pairs:
    """Time to the first token, and the mean time of one since then."""
    if story is None or not story.marks:
        return [("TTFT", "–")]
    until_s = story.time_s if status is not None else story.marks[-1].time_s
    if story.first_token_s < 0:
        return [("TTFT", "–")]
    ttft_s = story.first_token_s - story.marks[0].time_s
    output = status.num_output_tokens if status is not None else story.marks[-1].amount
    tpot_s = (until_s - story.first_token_s) / (output - 1) if output > 1 else None
    return [("TTFT", latency(ttft_s)), ("TPOT", latency(tpot_s)), *_paused(story)]


def _due(story: Story, until_s: float) -> Pairs:
    """The total time until its deadline, and the time left."""
    if not (story.deadline_s and story.marks):
        return []
    total = duration(story.deadline_s - story.marks[0].time_s)
    scale = f" ({scale_words(story.slo_scale)})" if story.slo_scale else ""
    return [("deadline", f"{left_words(story.deadline_s - until_s)} of {total}{scale}")]


def _paused(story: Story) -> Pairs:
    """The time that it paused since its first token, if it did."""
    if not story.paused_s:
        return []
    behind = story.behind_prompts_s
    prompts = f"; prompts {latency(behind)}" if behind else ""
    return [("paused", f"{latency(story.paused_s)}{prompts}")]


def _blocks(story: Story | None) -> Pairs:
    if story is None or not len(story.blocks):
        return []
    return [("blocks", ranges(story.blocks.tolist()))]
