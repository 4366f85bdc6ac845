"""The dashboard's application: it receives the news and shows them on the open screen."""

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.screen import Screen
from textual.theme import Theme
from textual.timer import Timer, TimerCallback

from daemon.control.client import ControlError
from daemon.protocol.control import BlockOwners, InstanceStatus, Role, Snapshot, Story
from tui import commands
from tui.boxes import ChoiceScreen, ConfirmScreen
from tui.client import DaemonSource
from tui.format import printable, size
from tui.header import Sign
from tui.help import HelpScreen
from tui.orders import OperatorOrder, drain_order, flip_order, migration_order, policy_order
from tui.palette import THEME, ink
from tui.policies import PolicyScreen
from tui.recording import RecordingError, RecordingWriter
from tui.replay import Replay
from tui.screens.blocks import BlocksScreen
from tui.screens.instances import CardsScreen
from tui.screens.live import LiveScreen
from tui.screens.overview import OverviewScreen
from tui.screens.tree import TreeScreen
from tui.settings import KeptSettings, keep_settings, read_settings
from tui.source import Source
from tui.style import CSS as STYLE
from tui.watched import Watched

REFRESH_INTERVAL_S = 0.25  # at most four frames a second, however often snapshots come
SEEK_S, FAR_S = 10.0, 60.0
ORDERING = {"r": "flip", "d": "drain", "m": "migrate"}
"""Keys that give the daemon orders, and their actions."""


def clock(seconds: float) -> str:
    """A place in a recording: 3:07."""
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02}"


def signs_of(
    source: Source, recorder: RecordingWriter | None, *, held: bool, trouble: str
) -> tuple[Sign, ...]:
    """All signs that hold now."""
    signs = []
    if held:
        signs.append(Sign("‖ paused", "warn"))
    if recorder is not None:
        text = recorder.trouble or f"● REC {size(recorder.size_bytes)}"
        signs.append(Sign(text, "warn" if recorder.trouble else "bad"))
    if isinstance(source, Replay):
        state = "‖" if source.paused else "▶"
        at = f"{clock(source.at_s)} of {clock(source.end_s)}"
        end = " (cut off)" if source.cut_off else ""
        signs.append(Sign(f"REPLAY {state} {at}{end} ×{source.speed:g}", "warn"))
    if trouble:
        signs.append(Sign(trouble, "bad"))
    return tuple(signs)


class LlmdTop(App[None]):
    """Follows `source`; with `readonly`, or where the source is no daemon, nothing can be changed.

    `recorder` receives all messages. `settings` is the file of the chosen theme; None: none.
    """

    TITLE = "llmd-top"
    CSS = STYLE
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (34, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("p", "pause", "pause"),
        Binding("t", "open('tree')", "tree"),
        Binding("i", "open('cards')", "cards"),
        Binding("k", "open('blocks')", "KV map"),
        Binding("o", "policy", "policy"),
        Binding("r", "flip", show=False),
        Binding("d", "drain", show=False),
        Binding("m", "migrate", show=False),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("comma", f"seek(-{SEEK_S})", show=False),
        Binding("full_stop", f"seek({SEEK_S})", show=False),
        Binding("less_than_sign", f"seek(-{FAR_S})", show=False),
        Binding("greater_than_sign", f"seek({FAR_S})", show=False),
        Binding("plus", "faster(1)", show=False),
        Binding("minus", "faster(-1)", show=False),
    ]

    def __init__(
        self,
        source: Source,
        *,
        readonly: bool = False,
        recorder: RecordingWriter | None = None,
        settings: Path | None = None,
    ) -> None:
        super().__init__()
        self.register_theme(THEME)
        kept = read_settings(settings) if settings is not None else KeptSettings()
        self.theme = kept.theme if kept.theme in self.available_themes else THEME.name
        self.watched = Watched()
        self.overview = OverviewScreen()
        self.trouble = ""  # why a recording cannot be played further
        self._source = source
        self._daemon = source if isinstance(source, DaemonSource) and not readonly else None
        self._recorder = recorder
        self._settings = settings
        self._kept_theme = self.theme
        self._started_in = Path.cwd()

    def get_css_variables(self) -> dict[str, str]:
        """The theme's variables, and those that the inks add; from here on all is drawn in them."""
        variables = super().get_css_variables()
        return {**variables, **ink.wear(variables)}

    def get_default_screen(self) -> Screen[Any]:
        """The overview."""
        return self.overview

    def on_mount(self) -> None:
        """Start to follow the source, and to show its news."""
        self.theme_changed_signal.subscribe(self, self._theme_changed)
        self.run_worker(self._follow(), exclusive=True)
        self.set_interval(REFRESH_INTERVAL_S, self.show)

    def set_timer(
        self,
        delay: float,
        callback: TimerCallback | None = None,
        *,
        name: str | None = None,
        pause: bool = False,
    ) -> Timer:
        """A timer that rings once, however late: Textual's own never rings where the process gets
        no core as it begins, and each resize waits for the one before.
        """
        timer = super().set_timer(delay, callback, name=name, pause=pause)
        timer._skip = False
        return timer

    async def _follow(self) -> None:
        try:
            async for news in self._source.news():
                if self._recorder is not None and isinstance(news, Snapshot | Story | BlockOwners):
                    self._recorder.write(time.monotonic(), news)
                self.watched.hear(news)
                if isinstance(news, Snapshot):
                    self.ask()
        except RecordingError as error:
            self.trouble = str(error)

    def ask(self) -> None:
        """Ask the open screen's questions beyond the snapshots, if one is open still."""
        for screen in self.screen_stack[-1:]:
            if isinstance(screen, LiveScreen):
                for question in screen.questions(self.watched):
                    self._source.ask(question)

    def show(self) -> None:
        """Bring the open screen up to date with the news; one below a box too."""
        stack = self.screen_stack
        visible = stack[-2:] if stack and stack[-1].is_modal else stack[-1:]
        held = self.watched.held
        signs = signs_of(self._source, self._recorder, held=held, trouble=self.trouble)
        for screen in visible:
            if isinstance(screen, LiveScreen):
                screen.update_from(self.watched, signs)

    def on_live_screen_opened(self) -> None:
        """Another screen is in front."""
        self.ask()
        self.show()

    def _theme_changed(self, theme: Theme) -> None:
        if self._settings is not None and theme.name != self._kept_theme:
            self._kept_theme = theme.name
            keep_settings(self._settings, KeptSettings(theme.name))
        for screen in self.screen_stack:
            if isinstance(screen, LiveScreen):
                screen.repaint()
        self.show()

    # Commands

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """The command palette: Textual's own commands, and all of llmd-top's."""
        yield from super().get_system_commands(screen)
        yield SystemCommand("Pause", "hold the picture, or let it move again", self.action_pause)
        tree, blocks = partial(self.action_open, "tree"), partial(self.action_open, "blocks")
        yield SystemCommand("Tree", "instances and their sequences", tree)
        yield SystemCommand("Cards", "instances and what moves", partial(self.action_open, "cards"))
        yield SystemCommand("KV map", "each block's owner", blocks)
        yield from commands.sorts(self.overview.sequences.sort_by)
        if self.may_order and self.watched.newest is not None:
            yield from commands.orders(self.watched.newest, self.order)
            yield from commands.between(self.watched.newest, self.confirm)
        if self.watched.snapshot is not None:
            yield from commands.places(self.watched.snapshot, self.push_screen)

    def deliver_screenshot(
        self, filename: str | None = None, path: str | None = None, time_format: str | None = None
    ) -> str | None:
        """Save the screen as a picture in the folder where the program was started, and show its
        path.
        """
        try:
            place = self.save_screenshot(filename, path or str(self._started_in), time_format)
        except OSError as error:
            self.notify(f"no picture was saved: {error}", severity="error", markup=False)
            return None
        self.notify(f"saved as {place}", title="screenshot", markup=False)
        return place

    def action_pause(self) -> None:
        """Hold the picture, or the recording's time; or let it move again."""
        if isinstance(self._source, Replay):
            self._source.toggle()
        else:
            self.watched.hold(not self.watched.held)
        self.show()

    async def action_open(self, name: str) -> None:
        """Open a screen in place of those above the overview; return to the overview if
        it is open.
        """
        kinds = {"tree": TreeScreen, "blocks": BlocksScreen, "cards": CardsScreen}
        screen: LiveScreen = kinds[name]()
        again = isinstance(self.screen, type(screen))
        while len(self.screen_stack) > 1:
            await self.pop_screen()
        if not again:
            await self.push_screen(screen)

    async def action_back(self) -> None:
        """Go one screen back; the overview stays."""
        if len(self.screen_stack) > 1:
            await self.pop_screen()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(HelpScreen(replay=isinstance(self._source, Replay)))

    def action_seek(self, by_s: float) -> None:
        """Go to another place of the recording."""
        if isinstance(self._source, Replay):
            self._source.seek(by_s)

    def action_faster(self, steps: int) -> None:
        """Play the recording at another speed."""
        if isinstance(self._source, Replay):
            self._source.faster(steps)
            self.show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable actions that change the daemon where nothing may be changed."""
        del parameters
        return self.may_order if action in ("policy", *ORDERING.values()) else True

    def on_key(self, event: Key) -> None:
        """Say why a disabled key does nothing."""
        if event.key in ORDERING and not self.may_order:
            self._refuses()

    @property
    def front(self) -> LiveScreen:
        """The open screen, below a box if there is one."""
        return next(
            screen for screen in reversed(self.screen_stack) if isinstance(screen, LiveScreen)
        )

    @property
    def may_order(self) -> bool:
        """Whether the daemon can be changed from here."""
        return self._daemon is not None

    def action_policy(self) -> None:
        """Choose the policy."""

        def chosen(name: str | None) -> None:
            if name:
                self.order(policy_order(name))

        if self.may_order and self.watched.newest is not None:
            self.push_screen(PolicyScreen(self.watched.newest), chosen)

    def action_flip(self) -> None:
        """Choose another role for the screen's instance."""
        instance = self._chosen_instance()
        if instance is None:
            return
        roles = [role.value for role in Role]

        def chosen(place: int | None) -> None:
            if place is not None and place >= 0:
                self.confirm(flip_order(instance.name, roles[place]))

        title = f"{printable(instance.name, 20)} shall be"
        self.push_screen(ChoiceScreen(title, roles, roles.index(instance.role)), chosen)

    def action_drain(self) -> None:
        """Drain the screen's instance, or resume it."""
        instance = self._chosen_instance()
        if instance is not None:
            self.confirm(drain_order(instance))

    def action_migrate(self) -> None:
        """Choose the instance to which the screen's sequence migrates."""
        sequence, newest = self.front.chosen_sequence(), self.watched.newest
        if self._refuses() or newest is None:
            return
        if sequence is None:
            self._say("no sequence is chosen: Tab goes to their table, Enter opens one")
            return
        home = next((s.instance for s in newest.sequences if s.sequence == sequence), None)
        if home is None:
            self._say(f"sequence {sequence} is not listed any more")
            return
        names = [
            instance.name
            for instance in newest.instances
            if instance.name != home and instance.state == "ready" and not instance.drained
        ]
        if not names:
            self._say("there is no other instance that could take it")
            return

        def chosen(place: int | None) -> None:
            if place is not None and place >= 0:
                self.confirm(migration_order(sequence, names[place]))

        labels = [printable(name, 38) for name in names]
        self.push_screen(ChoiceScreen(f"{sequence} goes on at", labels), chosen)

    def _chosen_instance(self) -> InstanceStatus | None:
        """The open screen's instance, as it is now; None where nothing may be changed."""
        index, newest = self.front.chosen_instance(), self.watched.newest
        if self._refuses() or newest is None:
            return None
        if index is None or index >= len(newest.instances):
            self._say("no instance is chosen: Tab goes to their table, i shows them as cards")
            return None
        return newest.instances[index]

    def _refuses(self) -> bool:
        """Say why nothing can be ordered, if so."""
        if isinstance(self._source, Replay):
            self._say("this is a recording: nothing can be ordered")
        elif not self.may_order:
            self._say("llmd-top was started with --readonly: nothing can be ordered")
        elif self.watched.newest is None:
            self._say("no daemon has answered yet: nothing can be ordered")
        else:
            return False
        return True

    def _say(self, why: str) -> None:
        """Show why a key did nothing."""
        self.notify(why, severity="warning", markup=False)

    def confirm(self, order: OperatorOrder) -> None:
        """Carry out an order if a person confirms it."""

        def answered(meant: bool | None) -> None:
            if meant:
                self.order(order)

        self.push_screen(ConfirmScreen(order), answered)

    def order(self, order: OperatorOrder) -> None:
        """Carry out an order in the background, and show its result."""
        if self._daemon is not None:
            self.run_worker(self._carry_out(order, self._daemon.path))

    async def _carry_out(self, order: OperatorOrder, path: Path) -> None:
        try:
            self.notify(await asyncio.to_thread(order.carry_out, path), markup=False)
        except ControlError as error:
            self.notify(str(error), severity="error", markup=False)
