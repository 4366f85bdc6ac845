"""Pictures of a recording, for docs/watching.md: `python -m tui.screenshots RECORDING FOLDER`.

Every screen of the dashboard at the end of the recording, as Textual exports it: one SVG each.
The recording's last messages must be a snapshot, a story of one of its sequences and the owners
of the first instance's blocks, as `llmd-top --record` leaves them where those screens were open.
"""

import argparse
import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from daemon.control.client import Message
from daemon.protocol.control import Closer, Story
from tui.dashboard import LlmdTop
from tui.recording import Recording, RecordingError
from tui.screens.blocks import BlocksScreen
from tui.screens.instance import InstanceScreen
from tui.screens.live import LiveScreen
from tui.screens.sequence import SequenceScreen
from tui.screens.tree import TreeScreen

SIZE = (132, 36)
LIMIT_BYTES = 150_000
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class _Silence:
    """A source without news: the messages are handed to the dashboard here."""

    def ask(self, question: Closer) -> None:
        """Ignore the question."""

    async def news(self) -> AsyncIterator[Message]:
        """Wait for ever."""
        await asyncio.Event().wait()
        yield Story(-1, 0.0)


async def take(recording: Recording, folder: Path) -> list[Path]:
    """Make the pictures; return their paths. The sequence's is first: its pace grows visibly."""
    messages = [recording.message(number) for number in range(len(recording))]
    sequence = next(
        (message.sequence for message in reversed(messages) if isinstance(message, Story)), -1
    )
    screens: dict[str, LiveScreen | None] = {
        "sequence": SequenceScreen(sequence),
        "overview": None,
        "tree": TreeScreen(),
        "instance": InstanceScreen(0),
        "blocks": BlocksScreen(),
    }
    app = LlmdTop(_Silence())
    taken = []
    async with app.run_test(size=SIZE) as pilot:
        for name, screen in screens.items():
            if screen is not None:
                await app.push_screen(screen)
            for message in messages:
                app.watched.hear(message)
                app.show()
            messages.clear()
            app.show()
            await pilot.pause()
            taken.append(folder / f"llmd-top-{name}.svg")
            taken[-1].write_text(picture(app), encoding="utf-8")
            if screen is not None:
                await app.pop_screen()
    return taken


def picture(app: LlmdTop) -> str:
    """The screen as SVG, in the viewer's monospaced font: none is fetched."""
    return _FONTS.sub("", app.export_screenshot(title="llmd-top", simplify=True))


def main(argv: list[str] | None = None) -> int:
    """Run the program; return 1 where there is no recording, or a picture is too large
    for a page.
    """
    parser = argparse.ArgumentParser(prog="python -m tui.screenshots", description=__doc__)
    parser.add_argument("recording", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args(argv)
    try:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        taken = asyncio.run(take(Recording(arguments.recording), arguments.folder))
    except (RecordingError, OSError) as error:
        sys.stderr.write(f"screenshots: {error}\n")
        return 1
    large = [path for path in taken if path.stat().st_size > LIMIT_BYTES]
    for path in taken:
        sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")
    return 1 if large else 0


if __name__ == "__main__":
    sys.exit(main())
