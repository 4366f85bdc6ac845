"""Stop strings, found across token boundaries."""


class StopMatcher:
    """Passes text on as soon as no stop string can begin in it.

    The stop string that is complete first wins, and among those that end together the longest, so
    that the outcome does not depend on how the text was split into pieces.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._first_letters = frozenset(stop[0] for stop in stops)
        self._longest = max(len(stop) for stop in stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string was found right after it."""
        text = self._held + text
        found = [
            (start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0
        ]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        cut = self._first_possible_start(text)
        self._held = text[cut:]
        return text[:cut], False

    def finish(self) -> str:
        """The text held back, at the end."""
        held, self._held = self._held, ""
        return held

    def _first_possible_start(self, text: str) -> int:
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first_letters:
                rest = text[start:]
                if any(stop.startswith(rest) for stop in self._stops):
                    return start
        return len(text)
