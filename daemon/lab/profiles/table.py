"""The list of shipped profiles, `docs/profiles.md`: `python -m daemon.lab.profiles.table FILE`."""

import argparse
from pathlib import Path

from daemon.cost.forward_size import ForwardSize, size_of
from daemon.cost.profile import Fit, PhaseFit, Profile
from daemon.lab.profiles.errors import ProfileError
from daemon.lab.profiles.load import load_profile, names

BEGIN, END = "<!-- profiles: begin -->\n", "<!-- profiles: end -->\n"


def listing() -> str:
    """A Markdown table, one line per profile: its step model, its target forward size, the points
    of its fit, its source.
    """
    heads = "Profile", "Step", "TFS", "Points", "Error", "Noise", "Power", "Source"
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [_line(load_profile(name)) for name in names()]
    return "\n".join(lines) + "\n"


def size_words(size: ForwardSize) -> str:
    """A target forward size, for people; a lower bound has a sign before it."""
    return f"{'' if size.levelled else '≥ '}{size.num_tokens:,}"


def error_words(fit: Fit) -> str:
    """The error on a fit's held-out points, for people; 0 stands for none."""
    return f"{fit.mape:.1%}" if fit.mape else "not known"


def write(document: Path) -> None:
    """Put the table into the document, between its markers. Raises ProfileError."""
    text = document.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ProfileError(f"{document}: the markers {BEGIN.strip()} and {END.strip()} are missing")
    head, tail = text.split(BEGIN)[0], text.split(END)[1]
    document.write_text(head + BEGIN + listing() + END + tail, encoding="utf-8")


def _line(profile: Profile) -> str:
    kind = "phases" if isinstance(profile.step, PhaseFit) else "operators"
    fit = profile.fit
    points = f"{fit.num_points:,}" if fit.num_points else "-"
    power = "yes" if profile.power else "-"
    noise = f"{fit.noise_sigma:.1%}"
    known = size_words(size_of(profile)), points, error_words(fit), noise, power
    return "| " + " | ".join((f"`{profile.name}`", kind, *known, profile.source[0])) + " |"


def main() -> None:
    """Bring the document's table up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("document", type=Path, metavar="FILE")
    write(parser.parse_args().document)


if __name__ == "__main__":
    main()
