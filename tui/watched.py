"""The state behind every screen: the newest news."""

from dataclasses import dataclass, field

from daemon.protocol.control import BlockOwners, InstanceStatus, SequenceStatus, Snapshot, Story
from tui.rates import History
from tui.source import Disconnected, News, Rewound


@dataclass
class Watched:
    """The newest of everything. While `held`, the screens' snapshot does not change."""

    history: History = field(default_factory=History)
    newest: Snapshot | None = None
    snapshot: Snapshot | None = None  # as screens see it
    lost: Disconnected | None = None
    story: Story | None = None
    owners: dict[int, BlockOwners] = field(default_factory=dict)
    held: bool = False
    version: int = 0  # changes with everything that screens show except `lost`

    def hear(self, news: News) -> None:
        """Take one piece of news."""
        match news:
            case Disconnected():
                self.lost = news
            case Snapshot():
                self.lost = None
                self.newest = news
                self.history.add(news)
                self.catch_up()
            case Story():
                self._take_story(news)
            case BlockOwners():
                self.owners[news.instance] = news
                self.version += 1
            case Rewound():
                self._rewind(news)

    def hold(self, held: bool) -> None:
        """Keep the picture, or let it move again."""
        self.held = held
        self.catch_up()

    def catch_up(self) -> None:
        """Show the newest snapshot, unless the picture is held."""
        if not self.held or self.snapshot is None:
            self.snapshot = self.newest
            self.version += 1

    def _take_story(self, story: Story) -> None:
        """Take a story, unless the daemon has forgotten what is known here."""
        known = self.story is not None and self.story.sequence == story.sequence
        if story.marks or not known:
            self.story = story
            self.version += 1

    def _rewind(self, news: Rewound) -> None:
        self.history.clear()
        self.story = None
        self.owners.clear()
        for snapshot in news.before:
            self.history.add(snapshot)

    def sequence(self, number: int) -> SequenceStatus | None:
        """A sequence of the snapshot, or of its story where that is newer."""
        story = self.story
        if story is not None and story.sequence == number and not self.held:
            return story.status
        listed = self.snapshot.sequences if self.snapshot is not None else ()
        return next((sequence for sequence in listed if sequence.sequence == number), None)

    def instance(self, index: int) -> InstanceStatus | None:
        """An instance of the snapshot."""
        instances = self.snapshot.instances if self.snapshot is not None else ()
        return instances[index] if index < len(instances) else None
