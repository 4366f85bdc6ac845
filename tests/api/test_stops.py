"""The stop matcher against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from daemon.api.answer.stops import StopMatcher

LETTERS = st.text(alphabet="ab🙂", min_size=1, max_size=4)


def expected(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """Read letter by letter: the first moment at which the text ends with a stop string."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(len(stop) for stop in found)], True
    return text, False


def matched(pieces: list[str], stops: tuple[str, ...]) -> tuple[str, bool]:
    """What the matcher shows of the pieces."""
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        text, found = matcher.push(piece)
        shown += text
        if found:
            assert matcher.finish() == ""
            return shown, True
    return shown + matcher.finish(), False


@given(pieces=st.lists(LETTERS, max_size=12), stops=st.lists(LETTERS, min_size=1, max_size=4))
def test_matches_the_definition(pieces: list[str], stops: list[str]):
    assert matched(pieces, tuple(stops)) == expected("".join(pieces), tuple(stops))


@given(pieces=st.lists(LETTERS, max_size=12), stops=st.lists(LETTERS, min_size=1, max_size=4))
def test_holds_back_no_more_than_it_must(pieces: list[str], stops: list[str]):
    matcher, shown, text = StopMatcher(tuple(stops)), "", ""
    for piece in pieces:
        text += piece
        more, found = matcher.push(piece)
        shown += more
        if found:
            return
        held = text[len(shown) :]
        assert text == shown + held
        assert not held or any(stop.startswith(held) for stop in stops)
