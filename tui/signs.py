"""What the header says of the picture itself: held, recorded, replayed."""

from tui.format import size
from tui.header import Sign
from tui.recording import RecordingWriter
from tui.replay import Replay
from tui.source import Source


def clock(seconds: float) -> str:
    """A place in a recording: 3:07."""
    whole = int(seconds)
    return f"{whole // 60}:{whole % 60:02}"


def signs_of(
    source: Source, recorder: RecordingWriter | None, *, held: bool, trouble: str
) -> tuple[Sign, ...]:
    """All that holds now."""
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
