"""`llmd-top`: the dashboard, or one plain frame of it."""

import argparse
import contextlib
import sys
import time
from functools import partial

from daemon.cli.exit_status import to_the_end
from daemon.control.client import ControlError, attach_path, fetch_snapshot
from daemon.protocol.control import Snapshot
from tui.arguments import parser
from tui.plain import frame
from tui.recording import Recording, RecordingError, RecordingWriter


def main(argv: list[str] | None = None) -> int:
    """Run the program; return 1 if there is no terminal, no daemon for `-1`, or no usable
    recording.
    """
    return to_the_end("llmd-top", partial(_run, argv))


def _run(argv: list[str] | None) -> int:
    arguments = parser().parse_args(argv)
    try:
        if arguments.once:
            print(frame(_one(arguments)))
            return 0
        return _watch(arguments)
    except (ControlError, RecordingError) as error:
        print(f"llmd-top: {error}", file=sys.stderr)
        return 1


def _one(arguments: argparse.Namespace) -> Snapshot:
    """The daemon's snapshot now, recorded if that was asked for; or a recording's last."""
    if arguments.replay is not None:
        return _last(Recording(arguments.replay))
    snapshot = fetch_snapshot(arguments.socket or attach_path())
    if arguments.record is not None:
        with contextlib.closing(RecordingWriter(arguments.record)) as recorder:
            recorder.write(time.monotonic(), snapshot)
    return snapshot


def _last(recording: Recording) -> Snapshot:
    for number in reversed(range(len(recording))):
        message = recording.message(number)
        if isinstance(message, Snapshot):
            return message
    raise RecordingError(f"{recording.path} holds no snapshot")


def _watch(arguments: argparse.Namespace) -> int:
    """Run the dashboard until a person leaves it."""
    if not sys.stdin.isatty():
        print("llmd-top: this is no terminal; llmd-top -1 prints one plain frame", file=sys.stderr)
        return 1
    from tui.client import DaemonSource
    from tui.dashboard import LlmdTop
    from tui.replay import Replay
    from tui.settings import default_place

    recorder = RecordingWriter(arguments.record) if arguments.record is not None else None
    if arguments.replay is not None:
        source: Replay | DaemonSource = Replay(Recording(arguments.replay))
    else:
        source = DaemonSource(arguments.socket or attach_path())
    app = LlmdTop(source, readonly=arguments.readonly, recorder=recorder, settings=default_place())
    app.run()
    if recorder is not None:
        recorder.close()
        if recorder.trouble:
            print(f"llmd-top: {recorder.trouble}", file=sys.stderr)
    return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main())
